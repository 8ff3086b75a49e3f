"""Labels of values: those of pandas and xarray, and columns by name. What takes values by place takes none with labels.

An index that counts from 0, which pandas makes by itself, says nothing that places do not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def is_labelled(value: Any) -> bool:
    """Whether a value says by names what its entries are."""
    if hasattr(value, "iloc"):  # of pandas
        return not all(map(_counts, value.axes))
    if hasattr(value, "__dataframe__") or getattr(getattr(value, "dtype", None), "names", None):
        return True  # of Polars or Arrow; records of NumPy
    return hasattr(value, "dims") and len(value.dims) > 0  # of xarray


def _counts(index: Any) -> bool:
    """Whether an index of pandas is 0, 1, 2, ... because nobody chose another one."""
    return type(index).__name__ == "RangeIndex" and (index.start, index.step, index.name) == (0, 1, None)
