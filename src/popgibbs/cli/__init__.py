"""The command line."""

from popgibbs.cli.commands import main

__all__ = ["main"]
