"""Build the wheel, install it into a fresh environment, and use it there once (tools/smoke.py).

    python tools/fresh.py                               # every dependency at its newest version
    python tools/fresh.py --lowest                      # every dependency at its lower bound in pyproject.toml
    python tools/fresh.py --lowest tests/moves  # and run tests there

The environment has the Python that runs this file and is removed at the end; the wheel stays in dist/. Lower bounds hold
for the oldest Python that the package supports, because newer ones need newer versions of NumPy and others.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Tests treat warnings as errors, and old releases of other packages use what has been deprecated since.
QUIET = [f"-Wignore::{warning}" for warning in ("DeprecationWarning", "FutureWarning", "PendingDeprecationWarning")]


def lowest(requirement: str) -> str:
    """`name==X` of a requirement `name>=X`."""
    if found := re.match(r"([\w.-]+)(?:\[.*?\])?\s*>=\s*([^\s,;]+)", requirement):
        return f"{found[1]}=={found[2]}"
    raise SystemExit(f"pyproject.toml: '{requirement}' has no lower bound; write name>=X")


def refuse_newer_python() -> None:
    supported = PROJECT["requires-python"].removeprefix(">=")
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running != supported:
        raise SystemExit(
            f"lower bounds are those of Python {supported}, and this is {running}: make lowest PYTHON=python{supported}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowest", action="store_true", help="every dependency at its lower bound")
    options, tests = parser.parse_known_args()  # the rest are arguments of pytest, which then runs there too
    if options.lowest:
        refuse_newer_python()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        constraints = directory / "constraints.txt"
        constraints.write_text("\n".join(map(lowest, PROJECT["dependencies"])) if options.lowest else "")
        venv.create(directory / "venv", with_pip=True)
        python = directory / "venv" / "bin" / "python"

        def run(*command: str | Path) -> None:
            if code := subprocess.run([python, *command], cwd=ROOT).returncode:
                raise SystemExit(code)

        run("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, ROOT)
        (wheel,) = directory.glob("*.whl")
        extra = "[test]" if tests else ""
        run("-m", "pip", "install", "--quiet", "--constraint", constraints, f"{wheel}{extra}")
        run("-m", "pip", "check")
        run("tools/smoke.py")
        if tests:
            run("-m", "pytest", *(QUIET if options.lowest else []), *tests)
        (ROOT / "dist").mkdir(exist_ok=True)
        shutil.copy(wheel, ROOT / "dist")
        print(f"dist/{wheel.name} works")


if __name__ == "__main__":
    main()
