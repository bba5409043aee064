"""The command line."""

from popgibbs.cli.main import main

__all__ = ["main"]
