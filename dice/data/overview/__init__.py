"""A data set in one look: what it holds, how long, how fast, how sound. As numbers, and as one HTML page."""
