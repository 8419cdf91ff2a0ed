"""Hostile kernel files, each with the promise that it goes for, and what runs them on this machine."""
