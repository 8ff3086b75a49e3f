"""Files of users, written by what they hold."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FILES = "".join(f"images/{place}.png,{place % 2},{place},h{place // 2}\n" for place in (3, 2, 1, 0))
SCANS = {f"images/{place}.png": place for place in range(4)} | {"train.csv": f"file,ill,age,site\n{FILES}"}


def write(folder: pathlib.Path, files: Mapping[str, Any]) -> pathlib.Path:
    """Writes text, bytes, arrays (dictionaries), JSON (in .json), images (grey values, colours) and folders (None)."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
        elif isinstance(content, str):
            path.write_text(content)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, int | tuple):
            save_image(path, content)
        elif path.suffix.lower() == ".json":
            path.write_text(json.dumps(content))
        else:
            np.savez(path, **content)
    return folder


def save_image(path: pathlib.Path, value: int | tuple[int, int, int], size: tuple[int, int] = (4, 5)) -> None:
    """An image [height, width] that has one value all over: grey of a number, colours of three; JPEG in .jfif."""
    from PIL import Image  # an extra

    shape = size if isinstance(value, int) else (*size, 3)
    Image.fromarray(np.full(shape, value, np.uint8)).save(path, "JPEG" if path.suffix == ".jfif" else "PNG")


def leaf(rows_of: Mapping[str, Mapping[str, Sequence[Any]]], **changes: Any) -> dict[str, Any]:
    """The content of one of LEAF's JSON files."""
    sizes = [len(rows["y"]) for rows in rows_of.values()]
    return {"users": list(rows_of), "num_samples": sizes, "user_data": rows_of, **changes}


def parts(count: int = 4, **starts: float) -> dict[str, Any]:
    """Arrays x and y of each part, ``x_train`` and so on, whose features begin at a number; ``_`` is no part."""
    found = {}
    for part, start in starts.items():
        end = "" if part == "_" else f"_{part}"
        found |= {f"x{end}": start + np.arange(2.0 * count).reshape(count, 2), f"y{end}": np.arange(count) % 2}
    return found
