"""One file for each published method."""
