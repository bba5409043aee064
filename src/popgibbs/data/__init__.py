"""Instances of data: arrays by name, declared axes, padding into buckets, sources of training batches, files."""

from popgibbs.data.instances import Axes, Data, as_instances, complete, largest, parse_axes, plates
from popgibbs.data.npz import SUFFIX, read_instances
from popgibbs.data.padding import (
    Bucket,
    filled_rows,
    into_buckets,
    lengthen,
    needs_padding,
    num_shapes,
    on_grid,
    pad,
    parse_sizes,
    unpad,
)
from popgibbs.data.sources import Finite, Simulated, Source

__all__ = [
    "as_instances",
    "Axes",
    "Bucket",
    "complete",
    "Data",
    "filled_rows",
    "Finite",
    "into_buckets",
    "largest",
    "lengthen",
    "needs_padding",
    "num_shapes",
    "on_grid",
    "pad",
    "parse_axes",
    "parse_sizes",
    "plates",
    "read_instances",
    "Simulated",
    "Source",
    "SUFFIX",
    "unpad",
]
