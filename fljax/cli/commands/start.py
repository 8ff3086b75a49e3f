"""``fljax init``."""

from __future__ import annotations

import importlib.resources
import pathlib
import shlex
from typing import Annotated

import typer

FILE = "experiment.toml"


def init(
    path: Annotated[pathlib.Path, typer.Argument(help="The file to write, or a folder to write it in.")] = pathlib.Path(
        FILE
    ),
) -> None:
    """Write a config to start from: every table, with comments; it runs as it is in a few seconds."""
    text = importlib.resources.files("fljax").joinpath("starter.toml").read_text(encoding="utf-8")
    target = path / FILE if path.is_dir() else path
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"expected the path of a file that does not exist yet, got {str(target)!r}") from None
    except OSError as error:
        raise ValueError(f"expected a file to write to, got {str(target)!r} ({error.strerror})") from None
    print(f"{target} is written; to run it: {shlex.join(['fljax', 'run', str(target)])}")
