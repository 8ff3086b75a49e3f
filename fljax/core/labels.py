"""Labels of values: those of pandas and xarray, columns by name. What takes values by place takes none with labels."""
# An index that counts from 0, which pandas makes by itself, says nothing that places do not say.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

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
