"""Instances of data: arrays by name, declared axes, padding into buckets, sources of training batches, files."""

from popgibbs.data.instances import (
    Axes,
    Bucket,
    Data,
    Finite,
    Simulated,
    Source,
    as_instances,
    complete,
    into_buckets,
    largest,
    pad,
    parse_axes,
    plates,
    unpad,
)
from popgibbs.data.npz import SUFFIX, read_instances

__all__ = [
    "as_instances",
    "Axes",
    "Bucket",
    "complete",
    "Data",
    "Finite",
    "into_buckets",
    "largest",
    "pad",
    "parse_axes",
    "plates",
    "read_instances",
    "Simulated",
    "Source",
    "SUFFIX",
    "unpad",
]
