"""Names that people write: looking them up, and saying what was meant when they are wrong.

Floor 0: imports the standard library only.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# No import path is followed where this variable is set to anything but the empty text or 0.
NO_IMPORT = "FLJAX_NO_IMPORT"
_LONGEST_SHOWN = 200
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
        return f"expected no {kind} (there are none to choose from), got {shown(got)}"
    close = nearest(got, names)
    question = f" (did you mean {close!r}?)" if close is not None else ""
    return f"expected one of the {kind}s {', '.join(names)}, got {shown(got)}{question}"


def shown(value: Any) -> str:
    """``repr(value)`` for an error message: in the middle of a long one stands ``...``."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 40]}...{text[-37:]}"


def nearest(got: str, valid: Iterable[str]) -> str | None:
    """The name among ``valid`` that looks most like ``got``, blind to case and to ``-`` against ``_``.

    None where nothing looks like it.
    """
    if len(got) > _LONGEST_SHOWN:  # comparing would take long, and no name is like it
        return None
    plain = {_plain(name): name for name in valid}
    close = difflib.get_close_matches(_plain(got), plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def resolve(name: str, registry: Mapping[str, Any], kind: str, *, imports: bool = True) -> Any:
    """The entry of a registry, or the object at an import path.

    This is the only function of fljax that imports what a config names. Importing a module runs its code.

    Args:
      name: a key of ``registry``, or ``"module:object"`` (``"package.module:object.attribute"`` works too);
        modules in the current directory can be imported.
      registry: what fljax offers under this kind, by name.
      kind: what is named, in the singular, for the error message.
      imports: False refuses import paths. So does the environment variable FLJAX_NO_IMPORT, whatever is given here.

    Returns:
      The registry's entry as it is, or the imported object.

    Raises:
      ValueError: neither exists, or import paths are refused; one sentence with the nearest name. An exception
        raised by the module's own code while it is imported is reported in such a sentence too and stays attached
        as the cause.
    """
    if name in registry:
        return registry[name]
    module_name, colon, path = name.partition(":")
    if not colon:
        raise ValueError(f"{unknown(kind, name, registry)}; one's own {kind} is written 'module:name'")
    if not module_name or not path or module_name.startswith("."):
        raise ValueError(f"expected an import path 'module:name' of a {kind}, got {name!r}")
    if not imports or os.environ.get(NO_IMPORT, "0") not in ("", "0"):
        raise ValueError(
            f"expected one of the {kind}s {', '.join(registry)}, got the import path {shown(name)}, and import paths "
            f"are refused here (by --no-import or {NO_IMPORT}; fljax doctor follows them with --import only)"
        )
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


def renamed(old: str, new: str, names: Mapping[str, str], *, rest: bool = False) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module in which old public names still work, with a DeprecationWarning.

    Args:
      old: the module that had the names.
      new: the module that has them now.
      names: old names, and what they are called now.
      rest: whether all other names of the new module are found as well.
    """

    def find(name: str) -> Any:
        now = names.get(name, name if rest and not name.startswith("__") else None)
        if now is None:
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(new), now)
        words = f"{old}.{name} is {new}.{now} now; the old name goes with the next version"
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        return found

    return find
