"""Names that people write: looking them up, and saying what was meant when they are wrong.

Floor 0: imports the standard library only.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# How a note begins that says at which algorithm a fault appeared.
ABOUT_ALGORITHM = "algorithm "


@contextmanager
def about_algorithm(label: str) -> Iterator[None]:
    """Adds a note with the label of an algorithm to any error that passes; the error and its traceback stay."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{ABOUT_ALGORITHM}{label!r}")
        raise


def unknown(kind: str, got: str, valid: Iterable[str]) -> str:
    """The sentence for a name that does not exist.

    Args:
      kind: what is named, in the singular, e.g. ``"algorithm"``; an ``s`` makes the plural.
      got: the name that was given.
      valid: the names that exist, listed in the order given.

    Returns:
      ``expected one of the <kind>s a, b, got 'x' (did you mean 'a'?)``; no question where nothing is near.
    """
    names = [str(name) for name in valid]
    if not names:
        return f"expected no {kind} (there are none to choose from), got {got!r}"
    close = nearest(got, names)
    question = f" (did you mean {close!r}?)" if close is not None else ""
    return f"expected one of the {kind}s {', '.join(names)}, got {got!r}{question}"


def nearest(got: str, valid: Iterable[str]) -> str | None:
    """The name among ``valid`` that looks most like ``got``, blind to case and to ``-`` against ``_``.

    None where nothing looks like it.
    """
    plain = {_plain(name): name for name in valid}
    close = difflib.get_close_matches(_plain(got), plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def resolve(name: str, registry: Mapping[str, Any], kind: str) -> Any:
    """The entry of a registry, or the object at an import path.

    Args:
      name: a key of ``registry``, or ``"module:object"`` (``"package.module:object.attribute"`` works too);
        modules in the current directory can be imported.
      registry: what fljax offers under this kind, by name.
      kind: what is named, in the singular, for the error message.

    Returns:
      The registry's entry as it is, or the imported object.

    Raises:
      ValueError: neither exists; one sentence with the nearest name. An exception raised by the module's own
        code while it is imported is reported in such a sentence too and stays attached as the cause.
    """
    if name in registry:
        return registry[name]
    module_name, colon, path = name.partition(":")
    if not colon:
        raise ValueError(f"{unknown(kind, name, registry)}; one's own {kind} is written 'module:name'")
    if not module_name or not path or module_name.startswith("."):
        raise ValueError(f"expected an import path 'module:name' of a {kind}, got {name!r}")
    found = _module(module_name, name, kind)
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            public = [each for each in dir(found) if not each.startswith("_")]
            close = nearest(attribute, public)
            question = f" (did you mean {close!r}?)" if close is not None else ""
            message = f"expected a {kind} called {attribute!r} in {module_name!r}, got {name!r}{question}"
            raise ValueError(message) from None
    return found


def _module(module_name: str, name: str, kind: str) -> Any:
    with _current_directory_importable():
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # Only where the module itself (or its package) is missing; imports inside it are its own.
            missing = error.name or ""
            if module_name == missing or module_name.startswith(f"{missing}."):
                where = f"there is no module {missing!r} in {os.getcwd()!r} or among the installed packages"
                raise ValueError(f"expected the import path of a {kind}, got {name!r}; {where}") from None
            raise ValueError(f"expected {module_name!r} to import, got {error}") from error
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
            raise ValueError(f"expected {module_name!r} to import, got {got}") from error


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
