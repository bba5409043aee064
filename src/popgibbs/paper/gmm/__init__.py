"""The Gaussian mixture (the paper, section 6.2 and appendix F.1)."""

from popgibbs.paper.gmm.experiment import EXPERIMENT as GMM

__all__ = ["GMM"]
