"""Families whose outputs each follow from one element of the inputs, or from few."""
