"""The configs that come with fljax, by name: ``quickstart``, ``incfl/table1_fmnist`` and so on.

A wheel has them in the package; a checkout, and so an editable install, has them in the folder ``configs`` beside it.
"""

from __future__ import annotations

import pathlib

from fljax.core.names import nearest

_PACKAGE = pathlib.Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def configs() -> dict[str, pathlib.Path]:
    """The files of all shipped configs by name, sorted."""
    folder = next((each for each in _FOLDERS if (each / "quickstart.toml").is_file()), None)
    if folder is None:
        return {}
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def find(config: str | pathlib.Path) -> pathlib.Path:
    """The file of a config: the given path if there is such a file, else the shipped config of this name.

    Args:
      config: a path, or a name with or without ``.toml``.

    Returns:
      The path; the given one if neither exists, so that reading it says what is missing.
    """
    path = pathlib.Path(config)
    try:
        if path.exists() and not path.is_dir():
            return path
    except (OSError, ValueError):  # a path that no file can have
        return path
    return configs().get(path.as_posix().removesuffix(".toml"), path)


def suggestion(config: str | pathlib.Path) -> str:
    """A question that names the shipped config with the most similar name; "" if none is similar."""
    close = nearest(pathlib.Path(config).as_posix().removesuffix(".toml"), configs())
    return "" if close is None else f" (did you mean the shipped config {close!r}?)"


def about(path: pathlib.Path) -> str:
    """What a config says of itself: the comment at its top, in one line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    top = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("#").strip() for line in lines[:top])
