"""What of the paper an experiment reproduces, and how much is spent on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from popgibbs._typing import PRNGKey
from popgibbs.apg import APG
from popgibbs.evaluation import Method
from popgibbs.paper.experiment import Experiment, Size

Samplers: TypeAlias = Mapping[str, APG]
"""Trained samplers by variant."""


def label_of(size: Size) -> str:
    return ", ".join(f"{number} {name}" for name, number in size.items())


class Setting(NamedTuple):
    """Held-out instances of one size."""

    size: Size
    num_instances: int
    chunk: int = 1000  # instances that are sampled between two saves
    only: tuple[str, ...] = ()  # methods that are measured, if not all

    @property
    def label(self) -> str:
        return label_of(self.size)

    def measures(self, method: str) -> bool:
        return not self.only or method in self.only


class Learning(NamedTuple):
    """A measure of a variant while it trains, for several K at the same K·L."""

    variant: str
    measure: Callable[[APG, PRNGKey], Mapping[str, float]]  # its mean and standard error
    label: str
    budget: int


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How much is spent."""

    settings: tuple[Setting, ...]
    num_particles: int
    num_sweeps: int = 19
    tuning_instances: int = 20  # on which the step sizes of HMC are tuned
    num_runs: int = 0  # of one instance, over which the bands of the convergence are
    budget: int = 1000  # K·L of the block strategies
    budget_ks: tuple[int, ...] = ()
    budget_instances: int = 0
    learning_ks: tuple[int, ...] = ()
    learning_steps: int = 0
    learning_batch: int = 20  # instances a step
    pictures: tuple[Size, ...]
    scaled_down: str  # from the paper's sizes, as a sentence; empty if nothing is


class Methods(Protocol):
    def __call__(
        self, samplers: Samplers, moved: Mapping[int, APG], *, num_sweeps: int, num_particles: int
    ) -> dict[str, Method]: ...


@dataclass(frozen=True, kw_only=True)
class Study:
    """The paper's comparisons on one experiment."""

    experiment: Experiment
    variants: tuple[str, ...]  # that are compared; RWS's is called `rws`
    methods: Methods  # by label, of trained samplers and of HMC after RWS by its leapfrog steps; the first is APG
    one_instance: Callable[[Mapping[str, Method]], Mapping[str, Method]] = dict  # methods whose convergence is shown
    leapfrog: tuple[int, ...] = (1, 5, 10)
    sum_out_finite: bool = True  # whether HMC sums finite sites out, or holds them while the others move
    shown_ks: tuple[int, ...] = (5, 10)  # of the first method, besides the last
    strategies: Callable[[Samplers], Mapping[str, APG]] | None = None  # of blocks, compared at a fixed budget
    learning: Learning | None = None
    presets: Mapping[str, Preset]
    suffixes: tuple[str, ...] = (".png",)  # of pictures of samples
    # By number and by the label of a setting, what the paper reports for a method; limits of the same numbers.
    paper: Mapping[str, Mapping[str, Mapping[str, float]]]
    limits: Mapping[str, Mapping[str, float]]
    reasons: Mapping[str, str]  # by method, why it may differ from the paper's
