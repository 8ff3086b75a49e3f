"""A virtual environment for every peer: as it is installed by its own users, pinned."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.reporting import plain

TORCH = ("torch==2.13.0", "numpy")
RECIPES: dict[str, tuple[tuple[str, ...], ...]] = {
    "torch": (TORCH,),
    "pfl": (TORCH, ("pfl[pytorch]==0.6.0",)),
    "flower": (TORCH, ("flwr[simulation]==1.28.0",)),
    "fedjax": (("fedjax==0.0.17", "jax==0.10.2", "jaxlib==0.10.2"),),
}
OWN = "fljax"  # the environment that the driver itself runs in
FOLDER = Path.home() / ".cache" / "fljax-benchmarks"
_MARK = "complete"


def python_of(folder: Path, name: str) -> str | None:
    """The interpreter of an environment; None where it has not been made, or by another recipe."""
    if name == OWN:
        return sys.executable
    mark = folder / name / _MARK
    if not mark.exists() or mark.read_text() != _text(name):
        return None
    return str(folder / name / "bin" / "python")


def make(folder: Path, name: str) -> str | None:
    """Makes an environment unless it is there; gives the reason if it cannot be had."""
    if python_of(folder, name) is not None:
        return None
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    commands = [[sys.executable, "-m", "venv", str(place)]]
    commands += [[str(place / "bin" / "python"), "-m", "pip", "install", "-q", *recipe] for recipe in RECIPES[name]]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
            return f"its environment cannot be made: {plain(errors[-1] if errors else 'no reason given')}"
    (place / _MARK).write_text(_text(name))
    return None


def _text(name: str) -> str:
    return "\n".join(" ".join(recipe) for recipe in RECIPES[name])
