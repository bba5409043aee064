"""Slow packages are imported by what needs them, not at the start."""

import subprocess
import sys

import popgibbs

SLOW = ("arviz", "blackjax", "matplotlib", "orbax", "pandas", "popgibbs.paper", "rich", "scipy.stats", "tensorstore")


def imported_by(program: str) -> set[str]:
    """The modules that a fresh process has imported at the end of a program."""
    told = "\nimport sys; print('imported:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", program + told], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("imported:")[2].split())


def test_importing_the_package_imports_nothing_slow():
    assert not imported_by("import popgibbs").intersection(("jax", *SLOW))


def test_using_every_public_name_imports_nothing_slow():
    found = imported_by("from popgibbs import *")
    assert "jax" in found
    assert not found.intersection(SLOW)


def test_help_imports_neither_jax_nor_experiments():
    for arguments in (["--help"], ["evaluate", "--help"]):
        program = f"""
import sys
from popgibbs.cli import main
sys.argv = ["popgibbs", *{arguments}]
try:
    main()
except SystemExit as stop:
    assert not stop.code
"""
        found = imported_by(program)
        assert "popgibbs.cli.commands.sample" in found
        assert not found.intersection(
            ("jax", "numpy", "numpyro", "matplotlib", "popgibbs.apg", "popgibbs.paper.experiment")
        )


def test_every_public_name_is_found_and_listed():
    assert set(popgibbs.__all__) <= set(dir(popgibbs))
    for name in popgibbs.__all__:
        assert getattr(popgibbs, name) is not None
    assert not hasattr(popgibbs, "nope")
