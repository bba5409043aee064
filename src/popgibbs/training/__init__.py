"""Training: gradients, steps, checkpoints and the loop."""

from popgibbs.training.checkpoint import Checkpoints, check_resumable, export, versions
from popgibbs.training.lock import Lock
from popgibbs.training.loop import History, made_with, run_training
from popgibbs.training.naming import SAMPLER, CheckpointError, from_names, part_of, to_names
from popgibbs.training.objective import accumulate
from popgibbs.training.progress import progress_of, sampling_progress, training_progress, waiting
from popgibbs.training.provenance import hyperparameters, refuse_changes
from popgibbs.training.reading import digest_of, fingerprint, holds_run, read, read_about, read_arrays
from popgibbs.training.signals import Interrupted, end_at_once, terminable
from popgibbs.training.step import Budget, Metrics, TrainingStep, start
from popgibbs.training.tempering import Temper, Tempering

__all__ = [
    "accumulate",
    "Budget",
    "CheckpointError",
    "Checkpoints",
    "check_resumable",
    "digest_of",
    "end_at_once",
    "export",
    "fingerprint",
    "from_names",
    "History",
    "holds_run",
    "hyperparameters",
    "Interrupted",
    "Lock",
    "made_with",
    "Metrics",
    "part_of",
    "progress_of",
    "read",
    "read_about",
    "read_arrays",
    "refuse_changes",
    "run_training",
    "SAMPLER",
    "sampling_progress",
    "start",
    "Temper",
    "Tempering",
    "terminable",
    "to_names",
    "training_progress",
    "TrainingStep",
    "versions",
    "waiting",
]
