"""Families of sums of products: of matrices, vectors and attention."""
