"""Arrays out of a pickle, read without running code of it and without NumPy's own unpickling.

A pickle can make NumPy's dtypes and arrays read memory that is not theirs. So plain records are made of it, and arrays
of the records, if lengths and dtypes are what NumPy writes.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import Any, NamedTuple

import numpy as np

# A dictionary of two arrays has about a hundred operations. Deeply nested content would exhaust Python's stack.
_MOST_OPERATIONS = 10_000
_BOUNDED = re.compile(r"b1|[iu][1248]|f[248]")
_TEXT = re.compile(r"[US]([1-9][0-9]{0,8})")
_LAST_CHARACTER = 0x10FFFF
_LONGEST_AXIS = 2**31


class ArrayOfObjects(NamedTuple):
    """An array of Python objects, of which only the shape and the objects of a 0-d one are known."""

    shape: tuple[int, ...]
    items: list[Any]


def read_pickle(content: bytes) -> Any:
    """The content of a pickle, with a record in place of each array; ``array_of`` makes arrays of records."""
    for count, (operation, argument, position) in enumerate(pickletools.genops(content)):
        if count >= _MOST_OPERATIONS:
            raise pickle.UnpicklingError(f"a pickle of more than {_MOST_OPERATIONS} parts")
        # Memory is reserved up to the number of a stored part, and there are no more parts than bytes.
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument is not None and argument > (position or 0):
            raise pickle.UnpicklingError(f"a part with the number {argument}")
    return _Records(io.BytesIO(content)).load()


def array_of(value: Any) -> Any:
    """The array that a record stands for; any other value as it is."""
    if not isinstance(value, _Array):
        return value
    shape = value.shape
    axes = shape if isinstance(shape, tuple) and all(type(length) is int and length >= 0 for length in shape) else None
    if axes is None or max(axes, default=0) >= _LONGEST_AXIS or not isinstance(value.dtype, _Dtype):
        raise pickle.UnpicklingError("an array without a shape or a dtype")
    if value.dtype.is_object():
        if not isinstance(value.data, list) or len(value.data) != math.prod(axes):
            raise pickle.UnpicklingError("an array of objects without its objects")
        return ArrayOfObjects(axes, value.data)
    dtype, data = value.dtype.plain(), value.data
    if not isinstance(data, bytes | bytearray) or len(data) != math.prod(axes) * dtype.itemsize:
        got = f"{len(data)} bytes" if isinstance(data, bytes | bytearray) else type(data).__name__
        raise pickle.UnpicklingError(f"an array {list(axes)} of {dtype} with {got}")
    flat = np.frombuffer(data, dtype)
    if dtype.kind == "b":
        flat = np.frombuffer(data, np.uint8) != 0
    if dtype.kind == "U" and flat.view(np.dtype("u4").newbyteorder(dtype.byteorder)).max(initial=0) > _LAST_CHARACTER:
        raise pickle.UnpicklingError("an array of text with characters that do not exist")
    return flat.astype(dtype.newbyteorder("=")).reshape(axes, order="F" if value.columns_first else "C")


class _Dtype:
    """The record of a dtype in a pickle."""

    __slots__ = ("code", "order", "size")

    def __init__(self, code: Any) -> None:
        if not isinstance(code, str):
            raise pickle.UnpicklingError(f"a dtype of {type(code).__name__}")
        self.code = code
        self.order = "|"
        self.size = -1

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 8 or state[0] != 3 or any(x is not None for x in state[2:5]):
            raise pickle.UnpicklingError(f"a dtype {self.code[:20]!r} that is not of numbers or text")
        if state[1] not in ("<", ">", "|", "=") or type(state[5]) is not int:
            raise pickle.UnpicklingError(f"a dtype {self.code[:20]!r} without an order of bytes")
        self.order, self.size = state[1], state[5]

    def is_object(self) -> bool:
        return self.code in ("O", "O4", "O8", "|O")

    def plain(self) -> np.dtype:
        """The dtype of numbers or text."""
        text = _TEXT.fullmatch(self.code)
        if not text and not _BOUNDED.fullmatch(self.code):
            raise pickle.UnpicklingError(f"an array of the dtype {self.code[:20]!r}")
        dtype = np.dtype(f"{self.order}{self.code}")
        if self.size not in (-1, dtype.itemsize):
            raise pickle.UnpicklingError(f"an array of the dtype {self.code!r} with {self.size} bytes for each value")
        return dtype


class _Array:
    """The record of an array in a pickle."""

    __slots__ = ("columns_first", "data", "dtype", "shape")

    def __init__(self) -> None:
        self.shape, self.dtype, self.columns_first, self.data = None, None, False, None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5 or state[0] != 1:
            raise pickle.UnpicklingError("an array in a form that NumPy does not write")
        _, self.shape, self.dtype, self.columns_first, self.data = state


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> _Array:
    if order not in ("C", "F") or axes is not None:
        raise pickle.UnpicklingError(f"an array in the order {str(order)[:20]!r} of axes")
    array = _Array()
    array.__setstate__((1, shape, dtype, order == "F", data))
    return array


def _bytes(text: Any = "", encoding: Any = "latin1") -> bytes:
    """Bytes as old protocols have them: as text, one character a byte."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("bytes in a form that Python does not write")
    return text.encode("latin-1")


def _nothing(*_: Any) -> None:
    raise pickle.UnpicklingError("an array in a form that NumPy does not write")


_KNOWN = {
    ("numpy", "ndarray"): _nothing,
    ("numpy", "dtype"): lambda code, *_: _Dtype(code),
    ("_codecs", "encode"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("__builtin__", "bytes"): _bytes,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
}


class _Called:
    """A name that a pickle asks for. A pickle can call it, but not change it, as it could change a function."""

    __slots__ = ("name",)

    def __init__(self, module: str, name: str) -> None:
        self.name = (module, name)

    def __call__(self, *arguments: Any) -> Any:
        return _KNOWN[self.name](*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError(f"a pickle that changes {'.'.join(self.name)}")


class _Records(pickle.Unpickler):
    """Reads pickles of arrays as records, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"a pickle that asks for {module}.{name}")
        return _Called(module, name)
