"""Checks of what a user gives (features, labels, owners, paths, mapped files), and casts to the dtypes that are stored.

A Federation made by hand is not checked for NaN; see ``fljax.results.non_finite``. A mapped file that has become
shorter ends the process that reads behind its end, and one that was written to has other numbers: each block of rows is
read after a comparison. A change between the comparison and the read remains unnoticed.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Shaped

from fljax.core.names import check_text, shown, unknown, with_article
from fljax.core.values import as_number
from fljax.protocol.data import mapped_file


def existing_file(path: str | Path) -> Path:
    """The path with ``~`` replaced."""
    place = with_home(path)
    if not is_file(place):
        got = "a folder" if is_folder(place) else "nothing there"
        raise ValueError(f"expected the path of a file, got {shown(str(path))} ({got})")
    return place


def with_home(path: str | Path) -> Path:
    """The path with ``~`` replaced, if it means somebody's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_folder(place: Path) -> bool:
    """Whether there is such a folder; False for names that no system has, too."""
    try:
        return place.is_dir()
    except (OSError, ValueError):
        return False


def is_file(place: Path) -> bool:
    """Whether there is such a file; False for names that no system has, too."""
    try:
        return place.is_file()
    except (OSError, ValueError):
        return False


def members_of_zip(place: Path) -> list[str]:
    """The names of an archive's files; none of a file of another kind."""
    try:
        with zipfile.ZipFile(place) as file:
            return file.namelist()
    except (zipfile.BadZipFile, OSError):
        return []


def is_hidden(below: Path) -> bool:
    """Whether a path below a user's folder is hidden, or of the folder that macOS adds to archives."""
    return any(name.startswith(".") or name == "__MACOSX" for name in below.parts)


def one_line(error: BaseException) -> str:
    """What an error of another library says, for a sentence."""
    return shown(" ".join(str(error).split()) or type(error).__name__)


def choose(kind: str, name: str, registry: Mapping[str, Any]) -> Any:
    """Returns ``registry[name]``."""
    if isinstance(name, str) and name in registry:
        return registry[name]
    raise ValueError(unknown(kind, str(name), registry))


def check_keywords(kind: str, name: str, options: Iterable[str], valid: Iterable[str]) -> None:
    """Raises a ValueError for the first of ``options`` that is not ``valid`` for this ``kind``."""
    valid = sorted(valid)
    for option in options:
        if option not in valid:
            advice = advice_on_clients(option, name) if kind == "dataset" else ""
            raise ValueError(f"{unknown('parameter', option, valid)} for the {kind} {name}{advice}")


def advice_on_clients(option: str, name: str) -> str:
    """The end of the sentence for ``client``, an option of single files, where the data set is a folder."""
    if option != "client" or not is_folder(Path(name)):
        return ""
    return "; the files of this folder say themselves whose rows they have, so leave client out"


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Returns ``value`` as an int of at least ``least``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise ValueError(f"expected {name} to be a whole number of at least {least}, got {value!r}")
    return value.__index__()


def check_positive(name: str, value: Any) -> float:
    """Returns ``value`` as a finite float above 0, or raises a ValueError."""
    number = as_number(value)
    if number is None or not 0 < number < float("inf"):
        raise ValueError(f"expected {name} to be a finite number above 0, got {value!r}")
    return number


def check_fraction(name: str, value: Any, *, zero: bool = True) -> float:
    """Returns ``value`` as a float in [0, 1), or in the open interval if ``zero`` is False, or raises a ValueError."""
    low = "[0, 1)" if zero else "(0, 1)"
    number = as_number(value)
    if number is None or not 0 <= number < 1 or (number == 0 and not zero):
        raise ValueError(f"expected {name} to be a fraction in {low}, got {value!r}")
    return number


# Bytes that are read after one comparison.
_PART = 2**26
# The attribute of the mapped array that NumPy opened, which all its views refer to.
_STAMP = "fljax_stamp"


class Stamp(NamedTuple):
    """Size, time of change and inode of a file: they tell a changed file from an unchanged one without reading it."""

    size: int
    changed: int  # in nanoseconds
    inode: int  # a file that takes the place of another one has another inode

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Stamp:
        """The stamp of a file now."""
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def check_unchanged(*arrays: Any) -> None:
    """Compares the files of mapped arrays, also of views, with what they were when this was first called."""
    for array in arrays:
        file = mapped_file(array)
        if file is None or file.filename is None:
            continue
        before: Stamp | None = getattr(file, _STAMP, None)
        if before is None:
            file.flush()  # what the caller wrote to the array does not count as a change
        try:
            now = Stamp.of(file.filename)
        except OSError as error:
            raise ValueError(_words(file.filename, f"none ({error.strerror})")) from None
        if before is None:
            setattr(file, _STAMP, now)
        elif now.size != before.size:
            raise ValueError(_words(file.filename, f"one of {now.size} bytes in place of {before.size}"))
        elif now.inode != before.inode:
            raise ValueError(_words(file.filename, "another file in its place"))
        elif now != before:
            raise ValueError(_words(file.filename, "one that was written to"))


def _words(path: str | os.PathLike[str], got: str) -> str:
    return (
        f"expected the mapped file {os.fspath(path)!r} as it was when it was loaded, got {got}; restore it and load "
        "the data again (a run with checkpoints goes on where the newest one is)"
    )


def checked_parts(array: Any) -> Iterator[Any]:
    """The rows of an array in order, all at once unless it is a mapped file, which is compared before each part."""
    if mapped_file(array) is None or not array.size:
        yield array
        return
    rows = max(1, _PART * len(array) // array.nbytes)
    for first in range(0, len(array), rows):
        check_unchanged(array)
        yield array[first : first + rows]


_LARGEST = float(np.finfo(np.float32).max)
# The number of clients that an error message names.
_NAMED = 3


def check_finite(name: str, values: Any, owner: Any = None, *, missing: bool = False) -> None:
    """Raises a ValueError, which says ``name`` and ``owner``, if floats do not fit float32, or have NaN."""
    # NaN may be ``missing`` numbers.
    if not jnp.issubdtype(values.dtype, jnp.floating) or values.size == 0:
        return
    # Minimum and maximum suffice, without a copy of the array: any NaN makes both NaN.
    parts = checked_parts(values)
    if missing:
        ends = [(np.fmin.reduce(part, None, initial=0), np.fmax.reduce(part, None, initial=0)) for part in parts]
    else:
        ends = [(float(part.min()), float(part.max())) for part in parts]
    low, high = float(np.min(ends)), float(np.max(ends))
    if low >= -_LARGEST and high <= _LARGEST:
        return
    flat = np.asarray(values).astype(np.float64).reshape(len(values), -1)
    wrong = np.any(~((flat >= -_LARGEST) & (flat <= _LARGEST) | missing & np.isnan(flat)), axis=1)
    raise ValueError(
        f"expected finite {name} that fit 32 bits, got NaN, infinity or larger numbers in "
        f"{_count_words(int(wrong.sum()))}{_of_owners(wrong, owner)}"
    )


def _of_owners(wrong: np.ndarray, owner: Any) -> str:
    if owner is None:
        return ""
    names, counts = np.unique(np.asarray(owner)[wrong], return_counts=True)
    named = [
        f"{_count_words(int(n))} of client {name}" for name, n in zip(names[:_NAMED].tolist(), counts, strict=False)
    ]
    more = len(names) - len(named)
    return f": {', '.join(named)}" + (f", and rows of {more} more clients" if more else "")


def _count_words(rows: int) -> str:
    return f"{rows} row" + ("" if rows == 1 else "s")


def as_array(name: str, values: Any) -> np.ndarray:
    """An array of NumPy of what a user gives as features, labels or owners."""
    advice = ""
    if isinstance(values, list | tuple):  # of which NumPy cuts NUL off
        check_text(name, values)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of PyTorch with gradients
        array, advice = np.empty((), object), f" ({' '.join(str(error).split())})"
    if isinstance(values, Mapping):
        advice = "; fljax.data.from_frame takes columns by name"
    elif hasattr(values, "toarray") and not hasattr(values, "__array__"):
        advice = ", a sparse matrix; its toarray() is an array"
    elif isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        array, advice = np.empty((), object), " with masked entries; its filled() has a number there"
    elif array.dtype.kind in "US" and isinstance(values, list | tuple) and len(set(map(type, values))) > 1:
        array = np.asarray(values, object)  # NumPy has made text of what is none
    if array.dtype == object and array.ndim == 0:
        raise ValueError(f"expected {name} to be an array [n, ...], got {with_article(type(values).__name__)}{advice}")
    return array


def stored_features(x: np.ndarray) -> np.ndarray:
    """Casts features for storage: uint8 stays, other whole numbers become int32, floats and bools become float32."""
    check_unchanged(x)
    if np.issubdtype(x.dtype, np.integer):
        return x if x.dtype in (np.uint8, np.int32) else whole_numbers("features", x)
    check_numbers("features", x)
    return x.astype(np.float32, copy=False)


def check_numbers(name: str, values: Any) -> None:
    """Raises a ValueError unless the values are whole numbers, floats or bools."""
    kinds = (jnp.integer, jnp.floating)
    if values.dtype != bool and not any(jnp.issubdtype(values.dtype, kind) for kind in kinds):
        raise ValueError(f"expected {name} to be numbers, got an array of {values.dtype}")


def stored_labels(y: np.ndarray) -> np.ndarray:
    """Casts labels of any shape for storage: whole numbers and bools become int32, floats become float32."""
    if y.dtype == bool or np.issubdtype(y.dtype, np.integer):
        if y.ndim > 1:  # losses make floats of them
            numbers_to_predict(y)
        return whole_numbers("labels", y)
    if not jnp.issubdtype(y.dtype, jnp.floating):
        raise ValueError(
            f"expected labels to be numbers, got an array of {y.dtype}; numpy.unique(y, return_inverse=True)[1] "
            "numbers names"
        )
    return numbers_to_predict(y)


def numbers_to_predict(y: np.ndarray) -> np.ndarray:
    """Labels ``[n, ...]`` as float32."""
    narrow = y.astype(np.float32)
    if np.can_cast(y.dtype, np.float32) or y.dtype.itemsize < 4 or not y.size:
        return narrow
    wide = y.astype(np.float64)
    change, spread = np.abs(narrow - wide).max(axis=0), (wide - wide[:1]).std(axis=0)
    lost = (change > 2**-14 * spread) & (wide.max(axis=0) > wide.min(axis=0))
    if np.any(lost):
        place = np.unravel_index(int(np.argmax(lost)), lost.shape)
        column = wide[(slice(None), *place)]
        raise ValueError(
            f"expected labels to predict whose differences float32 holds, got numbers in {column.min():.17g}.."
            f"{column.max():.17g} with a standard deviation of {column.std():.3g}; subtract their mean, "
            f"{column.mean():.17g}, and add it to predictions"
        )
    return narrow


def whole_numbers(name: str, values: np.ndarray) -> Int[np.ndarray, " ..."]:
    """Returns ``values`` as int32."""
    if values.dtype != bool and not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"expected {name} to be whole numbers, got an array of {values.dtype}")
    if not fits(values):
        raise ValueError(f"expected {name} that fit 32 bits, got numbers in {values.min()}..{values.max()}")
    return values.astype(np.int32)


def fits(values: np.ndarray) -> bool:
    """Whether whole numbers fit into int32."""
    limits = np.iinfo(np.int32)
    return not values.size or (int(values.min()) >= limits.min and int(values.max()) <= limits.max)


def check_classes(y: Any, classes: int | None) -> int | None:
    """The number of classes of stored labels: ``classes``, or the largest label plus one; None for float labels."""
    # Labels with several numbers for each row have no classes unless ``classes`` is given.
    if not jnp.issubdtype(y.dtype, jnp.integer):
        if classes is not None:
            raise ValueError(f"expected whole-number labels for {classes} classes, got an array of {y.dtype}")
        return None
    if classes is None and y.ndim != 1:
        return None
    numbers = np.asarray(y)  # on the host: a device would first compile two programs for it
    low, high = int(numbers.min()), int(numbers.max())
    if classes is None and high >= max(_MANY, len(numbers)) and low >= 0:
        raise ValueError(
            f"expected labels of classes counted from 0, got labels in {low}..{high} in {len(numbers)} rows; give "
            f"numbers to predict (a regression) as floats, or classes={high + 1} where so few rows have so many classes"
        )
    if classes is None and low > 0:
        raise ValueError(
            f"expected labels from 0, got labels in {low}..{high}; subtract {low} from them, or give "
            f"classes={high + 1} where no row has the first classes"
        )
    count = high + 1 if classes is None else classes
    if low < 0 or high >= count:
        raise ValueError(f"expected labels in 0..{count - 1}, got labels in {low}..{high}")
    return count


def number_owners(owners: np.ndarray) -> Int[np.ndarray, " n"]:
    """Numbers owners, numbers or names, from 0 in sorted order; negative owners become -1, which means no owner."""
    numeric = jnp.issubdtype(owners.dtype, jnp.floating) or np.issubdtype(owners.dtype, np.integer)
    if owners.dtype == object:  # e.g. of a list, or nullable whole numbers from a data frame
        entries, missing = owners.tolist(), sum(map(is_missing, owners.tolist()))
        kinds = {_word(owner) for owner in entries if not is_missing(owner)}
        numeric = kinds <= {"a number", "a whole number"}
        if len(kinds) > 1 and not numeric:
            raise ValueError(f"expected owners of one kind, numbers or names, got {' and '.join(sorted(kinds))}")
        if numeric and not missing:  # np.asarray alone would make 2**53 of both 2**53 and 2**53 + 1 beside a float
            entries = [int(owner) if owner % 1 == 0 else owner for owner in entries]
        owners = np.asarray(entries, object)
    else:
        missing = int(np.isnan(owners).sum()) if jnp.issubdtype(owners.dtype, jnp.floating) else 0
    if missing:
        got = _count_words(missing)
        raise ValueError(f"expected an owner for each row, got NaN in {got}; -1 says that a row is nobody's")
    somebody = owners >= 0 if numeric else np.ones(len(owners), bool)
    try:
        number = np.unique(owners[somebody], return_inverse=True)[1]
    except TypeError:
        raise ValueError(
            "expected owners that can be sorted, such as numbers or names, got values of several kinds"
        ) from None
    numbered = np.full(len(owners), -1, np.int32)
    numbered[somebody] = number.reshape(-1)
    return numbered


def check_wide(name: str, values: Any) -> None:
    """Raises a ValueError if whole numbers in a host array would lose bits on the device."""
    narrow = jax.dtypes.canonicalize_dtype(values.dtype).itemsize < values.dtype.itemsize
    if narrow and np.issubdtype(values.dtype, np.integer) and not fits(np.asarray(values)):
        raise ValueError(f"expected {name} that fit 32 bits, got numbers in {values.min()}..{values.max()}")


# Whole numbers with more different values than this, and more than a quarter as many as there are rows, may be amounts.
_MANY = 100


class Labels(NamedTuple):
    """Labels as fljax stores them."""

    y: Shaped[np.ndarray, "n ..."]  # numbers of classes, int32 ``[n]``; or other targets, float32 or int32
    classes: int | None  # None if labels are not classes
    names: tuple[Any, ...] | None  # the user's label of each class; None if labels are numbers of classes already


def number_labels(y: Any, *, classes: int | None = None, regression: bool | None = None) -> Labels:
    """Numbers text, bools and whole numbers from 0 in sorted order; floats and several by row stay numbers."""
    # With ``classes``, whole numbers are numbers of classes, although some classes may have no row.
    y = plain_labels(y)
    check_finite("labels", y)
    kind = y.dtype.kind
    if regression and kind not in "biuf":
        raise ValueError(f"expected numbers as labels for a regression, got {_kind(y.dtype)}")
    if regression and classes is not None:
        raise ValueError(f"expected classes or regression=True, got both, classes={classes} and regression=True")
    if regression or y.ndim > 1 or (kind == "f" and regression is None):
        if kind not in "biuf":
            raise ValueError(f"expected numbers where each row has several labels, got {_kind(y.dtype)}")
        y = numbers_to_predict(y) if regression else stored_labels(y)
        if y.ndim == 1 and classes is not None:
            raise ValueError(f"expected whole numbers or text as labels of {classes} classes, got {_kind(y.dtype)}")
        return Labels(y, classes, None)
    if kind in "iu" and classes is not None:
        return Labels(stored_labels(y), classes, None)
    if kind == "b":
        return Labels(y.astype(np.int32), _count_of_classes(2, classes), (False, True))
    names, numbers = np.unique(y, return_inverse=True)
    if kind in "iu" and np.array_equal(names, np.arange(len(names))):
        return Labels(stored_labels(y), len(names), None)
    if kind in "iu" and regression is None and len(names) > max(_MANY, len(y) // 4):
        raise ValueError(
            f"expected regression=True (numbers to predict) or regression=False (classes) for labels with "
            f"{len(names)} different whole numbers in {len(y)} rows, got neither"
        )
    return Labels(
        numbers.reshape(y.shape).astype(np.int32), _count_of_classes(len(names), classes), tuple(names.tolist())
    )


def text_of(name: Any) -> Any:
    """Bytes as text, as HDF5 and NumPy's S arrays have ids and labels; every other value as it is."""
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name


def as_text(names: Any) -> np.ndarray:
    """Ids or labels as an array, in which bytes are text."""
    # NumPy alone would make text of a list with text and numbers, and floats of large whole numbers.
    names = np.asarray(names) if hasattr(names, "dtype") else np.asarray(names, object)
    if names.dtype.kind == "S":
        return np.char.decode(names, "utf-8", "backslashreplace")
    return np.frompyfunc(text_of, 1, 1)(names) if names.dtype == object and names.size else names


# Words for a label that is not known, in small letters.
_UNKNOWN = ["", "?", "-", "-1", "na", "n/a", "<na>", "nan", "none", "null", "unknown", "hidden", "missing"]
_UNKNOWN += ["unlabeled", "unlabelled", "<unk>", "."]


def check_known(y: np.ndarray, test: np.ndarray, regression: bool | None = None) -> None:
    """Raises a ValueError if test rows alone have labels that mean "not known": below 0, or words such as "?"."""
    # Numbers to predict may be below 0: for them it is -1 in all rows of ``test`` (tests and validation).
    kind = y.dtype.kind
    if not test.any() or kind not in "iufU":
        return
    values: Any = np.char.lower(np.char.strip(y)) if kind == "U" else y
    targets = regression or (kind == "f" and regression is None) or (kind != "U" and y.ndim > 1)
    hidden: Any  # NumPy's stubs: perhaps one bool
    if kind == "U":
        hidden = np.isin(values, _UNKNOWN)
    elif kind == "u":
        hidden = values == np.iinfo(y.dtype).max  # -1 without a sign
    else:
        hidden = values == -1 if targets else values < 0
    hidden = (hidden & ~np.isin(y, y[~test][hidden[~test]])).reshape(len(y), -1)
    hidden = hidden.all(axis=1) if targets else hidden.any(axis=1)
    if not hidden.any() or (targets and not hidden[test].all()):
        return
    places, got = np.flatnonzero(hidden[test]), shown(y[hidden][0].tolist())
    raise ValueError(
        f"expected known labels in test and validation rows, got {got} in {len(places)} of {int(test.sum())}, first in "
        f"row {places[0]} of them, counted from 0, and in no training row"
    )


def plain_labels(y: Any, rows: str = "rows") -> np.ndarray:
    """Labels as an array of bools, numbers, text or dates, all of one kind; ``rows`` is what an error calls them."""
    y = as_text(y)
    if y.dtype.name == "bfloat16":
        return y.astype(np.float32)
    if y.dtype.kind != "O":
        if y.dtype.kind not in "biufUM":
            raise ValueError(f"expected labels to be numbers, bools or text, got {_kind(y.dtype)}")
        return y
    values: list[Any] = y.ravel().tolist()
    missing = sum(is_missing(value) for value in values)
    if missing:
        raise ValueError(f"expected a label in each row, got none in {missing} of {len(values)} {rows}")
    kinds = sorted({_word(value) for value in values})
    if kinds == ["text"]:  # of which NumPy cuts NUL off
        check_text("classes", set(values))
    if len(kinds) > 1 and kinds != ["a number", "a whole number"]:
        raise ValueError(f"expected labels of one kind, got {' and '.join(kinds)}")
    plain = np.asarray(values)
    if kinds == ["a whole number"] and plain.dtype.kind not in "iu":
        if min(values) < 0 or max(values) > np.iinfo(np.uint64).max:
            raise ValueError(f"expected whole numbers that fit 64 bits as labels, got {min(values)}..{max(values)}")
        plain = np.asarray(values, np.uint64)
    if plain.dtype.kind not in "biufUM" or plain.shape != (len(values),):
        raise ValueError(f"expected labels to be numbers, bools or text, got {shown(values[0])}")
    return plain.reshape(y.shape)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or what pandas writes in their place."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def join_labels(parts: Sequence[np.ndarray], owners: Sequence[Any], regression: bool | None = None) -> np.ndarray:
    """Joins labels that ``plain_labels`` made; ``owners`` says whose each part is, for the error message."""
    # Whole numbers alone are classes, and floats numbers to predict: ``regression`` must say what both together are.
    for part, owner in zip(parts, owners, strict=True):
        alike = _group(part, regression) == _group(parts[0], regression)
        if not alike or part.shape[1:] != parts[0].shape[1:]:
            first, other = (f"{_kind(labels.dtype)} {labels.shape}" for labels in (parts[0], part))
            raise ValueError(
                f"expected labels alike in all clients, got {first} of {shown(owners[0])} and {other} of {shown(owner)}"
            )
    if {part.dtype.kind for part in parts} == {"i", "u"}:  # NumPy alone would make floats of them
        parts = [part.astype(np.int64) for part in parts]
    return np.concatenate(parts)


def _group(y: np.ndarray, regression: bool | None) -> str:
    """The kind of labels; whole numbers with and without a sign may be joined."""
    return "number" if y.dtype.kind in ("iu" if regression is None else "iuf") else y.dtype.kind


def _word(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "a bool"
    if isinstance(value, int | np.integer):
        return "a whole number"
    if isinstance(value, float | np.floating):
        return "a number"
    return "text" if isinstance(value, str) else f"a {type(value).__name__}"


def _kind(dtype: np.dtype) -> str:
    return {"U": "text", "b": "bools", "M": "dates"}.get(dtype.kind, str(dtype))


def _count_of_classes(count: int, classes: int | None) -> int:
    if classes is not None and classes < count:
        raise ValueError(f"expected at most {classes} different labels, which is the number of classes, got {count}")
    return count if classes is None else classes
