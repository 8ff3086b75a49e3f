"""Names that users write, looked up or refused with a suggestion, and short texts about values.

Values may have labels, those of pandas and xarray. Code that takes values by place refuses labels.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import os
import re
import sys
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

from fljax.core.errors import AlgorithmError, attach

# An index that counts from 0, which pandas makes by itself, says nothing that places do not say.


_ADVICE = "to_numpy() gives its values alone, which are taken by place"


def check_unlabelled(name: str, value: Any, advice: str = _ADVICE) -> None:
    """Raises a ValueError if a value, or an entry of a list, a tuple or a mapping, has labels."""
    if is_labelled(value):
        got = type(value).__name__
        raise ValueError(f"expected {name} to be without labels, which would be passed over, got a {got}; {advice}")
    if isinstance(value, list | tuple | Mapping):
        for entry in value.values() if isinstance(value, Mapping) else value:
            if not isinstance(entry, int | float | str):
                check_unlabelled(name, entry, advice)


def plain(value: Any, name: str = "values") -> Any:
    """A value that becomes an array, with what labels it has refused (ValueError): a mapping is one of labels alone."""
    check_unlabelled(name, value)
    if isinstance(value, Mapping) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        raise ValueError(f"expected {name} by place, such as a list, got a {type(value).__name__} of values by name")
    return value


def is_labelled(value: Any) -> TypeGuard[Any]:
    """Whether a value says by names what its entries are."""
    if hasattr(value, "iloc"):  # of pandas
        return not all(map(_counts, value.axes))
    if hasattr(value, "__dataframe__") or getattr(getattr(value, "dtype", None), "names", None):
        return True  # of Polars or Arrow; records of NumPy
    # Of xarray, the name of the only dimension says nothing; a Dataset has names of its values.
    return hasattr(value, "indexes") and (len(value.dims) > 1 or len(value.indexes) > 0 or not hasattr(value, "dtype"))


def check_same_labels(axis: int, values: Mapping[str, Any]) -> None:
    """Raises a ValueError if values of pandas or xarray have different labels along an axis, or in another order."""
    known = [(name, labels) for name, value in values.items() if (labels := labels_along(value, axis)) is not None]
    other = next((name for name, labels in known if not labels.equals(known[0][1])), None)
    if other is not None:
        raise ValueError(
            f"expected {known[0][0]} and {other} with the same {'columns' if axis else 'index'} in the same order, got "
            "others; reindex one of them, or give the values of both, e.g. by to_numpy()"
        )


def labels_along(value: Any, axis: int) -> Any:
    """The index along an axis of a value of pandas or xarray; None if it has none."""
    if hasattr(value, "iloc"):
        return value.axes[axis] if axis < value.ndim else None
    if axis and hasattr(value, "get_indexer"):  # the index itself
        return value
    if axis and hasattr(value, "__dataframe__"):  # of Polars or Arrow
        import pandas

        return pandas.Index(getattr(value, "column_names", None) or value.columns)
    dims = tuple(getattr(value, "dims", ()))
    return value.indexes.get(dims[axis]) if axis < len(dims) else None


def names_of_columns(table: Any) -> tuple[Any, ...] | None:
    """The labels of a table's columns, or in an index; None if there are none, or if they count from 0."""
    labels = labels_along(table, 1) if len(getattr(table, "shape", ())) < 3 else None
    return None if labels is None or _counts(labels) else tuple(labels.tolist())


def _counts(index: Any) -> bool:
    """Whether an index of pandas is 0, 1, 2, ... because nobody chose another one."""
    return type(index).__name__ == "RangeIndex" and (index.start, index.step, index.name) == (0, 1, None)


# Import paths are refused if this environment variable is set to anything except the empty text or 0.
NO_IMPORT = "FLJAX_NO_IMPORT"
_LONGEST_SHOWN = 200
_MOST_SHOWN = 5  # entries of a sequence
# The beginning of a note that names the algorithm in which an error appeared.
ABOUT_ALGORITHM = "algorithm "


@contextmanager
def about_algorithm(label: str) -> Iterator[None]:
    """Names an algorithm in any error inside: in the sentence of an ``AlgorithmError``, in a note of other errors."""
    try:
        yield
    except AlgorithmError as error:
        error.algorithm = label
        raise
    except Exception as error:
        attach(error, f"{ABOUT_ALGORITHM}{label!r}")
        raise


def unknown(kind: str, got: str, valid: Iterable[str]) -> str:
    """The sentence for an unknown name: ``expected one of the <kind>s a, b, got 'x' (did you mean 'a'?)``."""
    names = [str(name) for name in valid]
    if not names:
        return f"expected no {kind} (there are none to choose from), got {shown(got)}"
    question = did_you_mean(got, names) if isinstance(got, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
    return f"expected one of the {kind}s {', '.join(names)}, got {shown(got)}{question}"


def shown(value: Any) -> str:
    """``repr(value)`` for an error message; a long text is shortened by ``...`` in the middle."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 40]}...{text[-37:]}"


def check_text(kind: str, names: Iterable[Any]) -> None:
    """Raises a ValueError for a name with NUL or half of a surrogate pair, which files of results cannot hold."""
    for name in names:
        if isinstance(name, str) and not name.isprintable() and re.search("[\0\ud800-\udfff]", name):
            raise ValueError(f"expected text without NUL and surrogates in {kind}, got {shown(name)}")


def file_name(label: str) -> str:
    """A label as the name of a file or folder, with special characters as %-codes."""
    # Long labels, and labels with capital letters (some file systems ignore case), end in a checksum.
    name = urllib.parse.quote(label, safe=" ")
    if not name.strip("."):  # "." and ".." are folders
        name = name.replace(".", "%2E")
    if len(name) > 200 or label != label.lower():
        name = f"{name[:180]}-{hashlib.sha256(label.encode()).hexdigest()[:16]}"
    return name


def nearest(got: str, valid: Iterable[str]) -> str | None:
    """The most similar name, ignoring case and the difference of ``-`` and ``_``; None if no name is similar."""
    if len(got) > _LONGEST_SHOWN:  # slow to compare, and no name is similar
        return None
    plain = {_plain(name): name for name in valid}
    close = difflib.get_close_matches(_plain(got), plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def did_you_mean(got: str, valid: Iterable[str], what: str = "") -> str:
    """`` (did you mean 'a'?)`` with the most similar name, behind ``what`` it names; empty if no name is similar."""
    close = nearest(got, valid)
    return "" if close is None else f" (did you mean {what}{close!r}?)"


def with_article(kind: str) -> str:
    """A noun behind "a" or "an"."""
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def has_separator(name: str) -> bool:
    """Whether a name has the slash of a path, of any system; import paths and names of registries have none."""
    return any(mark in name for mark in ("/", "\\", os.sep))


def resolve(name: str, registry: Mapping[str, Any], kind: str, *, imports: bool = True) -> Any:
    """The entry of a registry, or the object at an import path ``"module:object"`` or ``"module:object.attribute"``."""
    # This is the only function that imports modules named in a config, which runs their code. ``imports`` False refuses
    # it, and the environment variable FLJAX_NO_IMPORT does in any case. The current directory has modules, too.
    if name in registry:
        return registry[name]
    module_name, colon, path = name.partition(":")
    if not colon:
        raise ValueError(f"{unknown(kind, name, registry)}; one's own {kind} is written 'module:name'")
    if not module_name or not path or module_name.startswith(".") or has_separator(name):
        got = f"{name!r}, which is a path of files" if has_separator(name) else repr(name)
        raise ValueError(f"expected an import path 'module:name' of {with_article(kind)}, got {got}")
    if not imports or os.environ.get(NO_IMPORT, "0") not in ("", "0"):
        known = f"one of the {kind}s {', '.join(registry)}" if registry else f"no {kind} of one's own"
        raise ValueError(
            f"expected {known}, got the import path {shown(name)}, and import paths "
            f"are refused here (by --no-import or {NO_IMPORT}; fljax doctor follows them with --import only)"
        )
    target = _module(module_name, name, kind)
    for attribute in path.split("."):
        try:
            target = getattr(target, attribute)
        except AttributeError:
            public = [entry for entry in dir(target) if not entry.startswith("_")]
            message = f"expected {with_article(kind)} called {attribute!r} in {module_name!r}, got {name!r}"
            raise ValueError(f"{message}{did_you_mean(attribute, public)}") from None
    return target


def _module(module_name: str, name: str, kind: str) -> Any:
    with _current_directory_importable():
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # Only if the module itself (or its package) is missing, not a module that it imports.
            missing = error.name or ""
            if module_name == missing or module_name.startswith(f"{missing}."):
                where = f"there is no module {missing!r} in {os.getcwd()!r} or among the installed packages"
                raise ValueError(f"expected the import path of {with_article(kind)}, got {name!r}; {where}") from None
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


# --- Short texts about values --------------------------------------------------------------------------------


def describe(value: Any) -> str:
    """A value in a few words: ``0.1``, ``float32[5]``, ``Local(learning_rate=0.1, batch_size=8)``, ``fedavg``."""
    # It reads only shapes and types of arrays, so that tracers, and shapes without arrays, are described, too.
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if hasattr(value, "_fields"):
        fields = {name: getattr(value, name) for name in value._fields}
        defaults: Mapping[str, Any] = getattr(value, "_field_defaults", {})
        changed = {
            name: field
            for name, field in fields.items()
            if not callable(field) and not (name in defaults and _is_equal(field, defaults[name]))
        }
        return f"{type(value).__name__}({describe_items(changed)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {describe(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        more = ", ..." if len(value) > _MOST_SHOWN else ""
        return "(" + ", ".join(map(describe, value[:_MOST_SHOWN])) + more + ")"
    return name_of(value) if callable(value) else type(value).__name__


def describe_items(values: Mapping[str, Any]) -> str:
    """``name=value, ...`` with short values."""
    return ", ".join(f"{name}={describe(value)}" for name, value in values.items())


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, also inside ``functools.partial``; of another callable, that of its type."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _is_equal(value: Any, default: Any) -> bool:
    plain = value is None or isinstance(value, bool | int | float | str | tuple)
    return value is default or (plain and type(value) is type(default) and value == default)


def duration(seconds: float) -> str:
    """``8 s``, ``3 min 20 s``, ``2 h 5 min``: whole seconds up to an hour, whole minutes above."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
