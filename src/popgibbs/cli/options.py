"""Options that several commands share, and those that an experiment adds: the sizes of its instances."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from popgibbs.cli.app import Command
from popgibbs.paper import registry

if TYPE_CHECKING:
    from popgibbs.paper.experiment import Experiment

Seed = Annotated[int, typer.Option(min=0, help="Random seed; equal seeds give equal results.")]
Sweeps = Annotated[int, typer.Option(min=0, help="Gibbs sweeps after the initial proposal; the paper's K is one more.")]
Particles = Annotated[int, typer.Option(min=1, help="Particles per population.")]
Populations = Annotated[int, typer.Option(min=1, help="Independent populations per instance.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Step = Annotated[
    int | None, typer.Option("--step", min=0, help="The checkpoint to read; by default the newest that can be read.")
]
Name = Annotated[str, typer.Argument(help=f"The experiment: {', '.join(registry.names())}.")]
RunOrName = Annotated[str, typer.Argument(help="A run's directory, or an experiment's name for its shipped sampler.")]

Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="NAME=NUMBER",
        help="The size of an instance, such as points=100, or --points 100 for short; may be repeated.",
    ),
]


class SizedCommand(Command):
    """A command in which `--points 100` stands for `--size points=100`; each experiment defines its sizes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for parameter in self.get_params(ctx) for name in (*parameter.opts, *parameter.secondary_opts)}
        rewritten: list[str] = []
        rest = iter(args)
        for word in rest:
            option, equals, value = word.partition("=")
            if not option.startswith("--") or option == "--" or option in known:
                rewritten.append(word)
                continue
            rewritten += ["--size", f"{option.removeprefix('--')}={value if equals else next(rest, '')}"]
        return super().parse_args(ctx, rewritten)


def parse_sizes(given: list[str] | None, experiment: "Experiment", *others: str) -> dict[str, int]:
    """The given sizes of an experiment's instances by name; `others` are further names that are allowed."""
    allowed = (*experiment.size, *others)
    found: dict[str, int] = {}
    for entry in given or []:
        name, _, value = entry.partition("=")
        if name not in allowed:
            there = " and ".join(f"--{name}" for name in allowed)
            raise ValueError(f"'{experiment.name}' has no option --{name}; the sizes of its instances are {there}")
        if not value.isdecimal() or int(value) < 1:
            raise ValueError(f"--{name} takes a whole number of at least 1" + (f", not '{value}'" if value else ""))
        found[name] = int(value)
    return found


def directory_of(run: str) -> Path:
    """A run's directory; the name of an experiment stands for its shipped sampler."""
    if run in registry.names() and not Path(run).exists():
        experiment = registry.experiment(run)
        return experiment.shipped / experiment.default
    return Path(run)
