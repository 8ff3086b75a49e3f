"""What the checkpoints of a run folder are of: a config, a version of fljax and, of a sweep, a grid.

For a config, the identity of its checkpoints is its text (``origin.json``).
"""

from __future__ import annotations

import json
import pathlib
import shutil

from fljax.core.files import write
from fljax.results.differences import difference

CHECKPOINTS, ORIGIN = "checkpoints", "origin.json"


def begin(directory: pathlib.Path, text: str, grid: str | None) -> None:
    """Makes the folder of checkpoints, which names the config and the version that they are of.

    Raises:
      OSError: if the disk has no room.
    """
    from fljax.core.version import __version__

    path = directory / CHECKPOINTS / ORIGIN
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        write(path, json.dumps({"config": text, "fljax": __version__, "grid": grid}).encode())


def check(directory: pathlib.Path, text: str, grid: str | None) -> None:
    """Raises a ValueError if the checkpoints of a folder are of another config or version."""
    from fljax.core.version import __version__

    folder, where = directory / CHECKPOINTS, str(directory)
    if not folder.is_dir():
        return
    try:
        origin = json.loads((folder / ORIGIN).read_bytes())
        there, version, gridded = origin["config"], origin["fljax"], origin["grid"]
    except (OSError, ValueError, KeyError, TypeError):
        shutil.rmtree(folder, ignore_errors=True)  # nobody can say what they are of
        return
    if version != __version__:
        raise ValueError(
            f"expected checkpoints of fljax {__version__} in {where!r} to resume them, got those of fljax {version}"
        )
    if (changed := difference(there, text)) is not None:
        raise ValueError(
            f"expected the config of the checkpoints in {where!r} to resume them, got a changed one: {changed} "
            f"(without the folder {CHECKPOINTS!r} what they have is given up)"
        )
    if gridded != grid:
        raise ValueError(f"expected checkpoints of this command in {where!r}, got those of another grid")
