"""Measurements beside a peer, on one machine in one run: builds, verdicts, training."""
