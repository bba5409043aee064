"""Numbers that show when to trust a posterior, and one labelling of its components."""

from popgibbs.diagnostics.measures import (
    combined_log_evidence,
    log_evidence_error,
    mean_and_error,
    mean_of,
    truth_rank_p_value,
    weak_blocks,
)
from popgibbs.diagnostics.relabelling import relabelled

__all__ = [
    "combined_log_evidence",
    "log_evidence_error",
    "mean_and_error",
    "mean_of",
    "relabelled",
    "truth_rank_p_value",
    "weak_blocks",
]
