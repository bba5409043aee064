"""Measures the examples against references that do not use popgibbs, and writes a table."""
