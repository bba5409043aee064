"""Timings against peers in the same run."""
