"""Evaluation: models over benchmark problems, under protocols, into tables and pages."""
