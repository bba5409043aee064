"""Bouncing digits (the paper, section 6.4 and appendix F.3)."""

from popgibbs.paper.bmnist.experiment import EXPERIMENT as BMNIST

__all__ = ["BMNIST"]
