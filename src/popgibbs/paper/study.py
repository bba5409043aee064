"""The parts of the paper that an experiment reproduces, and the budgets for it."""

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
    only: tuple[str, ...] = ()  # the methods to measure; empty means all

    @property
    def label(self) -> str:
        return label_of(self.size)

    def measures(self, method: str) -> bool:
        return not self.only or method in self.only


class Learning(NamedTuple):
    """A measure of a variant while it trains, for several K at the same K·L."""

    variant: str
    measure: Callable[[APG, PRNGKey], Mapping[str, float]]  # returns a mean and a standard error
    label: str
    budget: int


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The budget of a reproduction."""

    settings: tuple[Setting, ...]
    num_particles: int
    num_sweeps: int = 19
    tuning_instances: int = 20  # for tuning HMC's step sizes
    num_runs: int = 0  # runs on one instance, for the bands of the convergence figure
    budget: int = 1000  # K·L of the block strategies
    budget_ks: tuple[int, ...] = ()
    budget_instances: int = 0
    learning_ks: tuple[int, ...] = ()
    learning_steps: int = 0
    learning_batch: int = 20  # instances per step
    pictures: tuple[Size, ...]
    scaled_down: str  # how the sizes differ from the paper's, for the page; empty if they do not


class Methods(Protocol):
    def __call__(
        self, samplers: Samplers, moved: Mapping[int, APG], *, num_sweeps: int, num_particles: int
    ) -> dict[str, Method]: ...


@dataclass(frozen=True, kw_only=True)
class Study:
    """The paper's comparisons on one experiment."""

    experiment: Experiment
    variants: tuple[str, ...]  # the variants to compare; the one of RWS is called `rws`
    methods: Methods  # from trained samplers and HMC samplers by leapfrog steps to methods by label; APG is first
    one_instance: Callable[[Mapping[str, Method]], Mapping[str, Method]] = dict  # methods in the convergence figure
    leapfrog: tuple[int, ...] = (1, 5, 10)
    sum_out_finite: bool = True  # as for `hmc_rws`
    shown_ks: tuple[int, ...] = (5, 10)  # rows of the first method, in addition to the last K
    strategies: Callable[[Samplers], Mapping[str, APG]] | None = None  # block strategies, compared at a fixed budget
    learning: Learning | None = None
    presets: Mapping[str, Preset]
    suffixes: tuple[str, ...] = (".png",)  # file formats for pictures of samples
    # The paper's results by number, setting and method; the limits of the same numbers by number and setting.
    paper: Mapping[str, Mapping[str, Mapping[str, float]]]
    limits: Mapping[str, Mapping[str, float]]
    reasons: Mapping[str, str]  # by method, why its result may differ from the paper's
