"""The whole module put together: each region's kernel file as a part of one file, and which regions that file has."""
