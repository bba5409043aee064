"""The command line."""

from popgibbs.cli.app import main

__all__ = ["main"]
