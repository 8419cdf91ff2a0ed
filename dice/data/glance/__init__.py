"""A data set at a glance: what it holds, how long, how fast, how sound. As numbers, and as one HTML page."""
