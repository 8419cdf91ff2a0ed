"""The problem audit: what is wrong with a set of problems, found out before anyone trains on it."""
