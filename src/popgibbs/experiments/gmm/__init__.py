"""The Gaussian mixture (the paper, section 6.2 and appendix F.1)."""
