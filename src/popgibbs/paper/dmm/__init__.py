"""The deep generative mixture (the paper, section 6.3 and appendix F.2)."""

from popgibbs.paper.dmm.experiment import EXPERIMENT as DMM

__all__ = ["DMM"]
