"""Arrays out of pickles that NumPy wrote, and pickles that would make NumPy read memory that is not theirs."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest

from fljax.data.own.pickled_arrays import ArrayOfObjects, array_of, read_pickle
from tests.refusals import refuses

Bad = pickle.UnpicklingError


def content_of(value):
    outer = np.empty((), dtype=object)
    outer[()] = value
    return outer


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">i8"),
        np.arange(3, dtype=np.uint8),
        np.array([True, False]),
        np.array(["a", "größer"]),
        np.array([b"a", b"bc"]),
        np.zeros((0, 4), np.float16),
    ],
    ids=lambda array: f"{array.dtype}",
)
def test_what_numpy_writes(array, core, protocol):
    content = pickle.dumps(content_of({"x": array, "y": np.arange(2)}), protocol)
    if protocol < 4:  # later ones say the lengths of names
        for name in (b"numpy.core", b"numpy._core"):
            content = content.replace(b"c" + name + b".", b"c" + core + b".")
    found = array_of(read_pickle(content))
    assert isinstance(found, ArrayOfObjects)
    x, y = (array_of(found.items[0][key]) for key in "xy")
    np.testing.assert_array_equal(x, array)
    assert (x.dtype, x.flags.writeable, y.tolist()) == (array.dtype.newbyteorder("="), True, [0, 1])


class Called:
    """A pickle of it calls a function of NumPy, and may then give the result a state."""

    def __init__(self, function, *given, state=None):
        self.call = (function, given) if state is None else (function, given, state)

    def __reduce__(self):
        return self.call


RECONSTRUCT = np.zeros(1).__reduce__()[0]


def dtype_of(code, order="<", size=-1, flags=0, fields=None):
    names = None if fields is None else tuple(fields)
    return Called(np.dtype, code, False, True, state=(3, order, None, names, fields, size, 1 if fields else -1, flags))


def array(shape, dtype, data):
    return Called(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, shape, dtype, False, data))


POINTER = struct.pack("<Q", 0x4141414141414141)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (array((), dtype_of("O8", "|"), POINTER), "an array of objects without its objects"),
        (array((2,), dtype_of("O8", "|"), POINTER * 2), "an array of objects without its objects"),
        (array((2,), dtype_of("O8", "|"), [1]), "an array of objects without its objects"),
        (array((1,), dtype_of("V8", "|", 8, fields={"a": (np.dtype("f8"), 10**8)}), POINTER), "a dtype 'V8'"),
        (array((2,), dtype_of("U1", size=4 * 10**6), bytes(8)), "the dtype 'U1' with 4000000 bytes for each value"),
        (array((1,), dtype_of("c8"), bytes(8)), "an array of the dtype 'c8'"),
        (array((3,), dtype_of("f4"), bytes(8)), r"an array \[3\] of float32 with 8 bytes"),
        (array((2**40, 0), dtype_of("f4"), b""), "an array without a shape or a dtype"),
        (array((-1, -2), dtype_of("f4"), bytes(8)), "an array without a shape or a dtype"),
        (array((1,), "f4", bytes(4)), "an array without a shape or a dtype"),
        (array((1,), dtype_of("U1"), b"\xff" * 4), "characters that do not exist"),
        (Called(np.ndarray, (1, 4), "f4"), "an array in a form that NumPy does not write"),
        (Called(RECONSTRUCT, np.ndarray, (1, 4), "f4"), "an array without a shape or a dtype"),
        (Called(bytes, 2**40), "bytes in a form that Python does not write"),
        (Called(np.frombuffer, bytes(8)), "a pickle that asks for numpy"),
    ],
)
def test_what_reads_memory_of_others_is_refused(made, words):
    content = pickle.dumps(made, 4)
    refuses(lambda: array_of(read_pickle(content)), words, Bad)


def test_a_dtype_that_changes_after_its_array_was_made():
    one = b"cnumpy\ndtype\n(X\x02\x00\x00\x00U1\x89\x88tR"
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"
    grown = b"(K\x03X\x01\x00\x00\x00<NNNM\x20\x4eK\x04K\x08tb"
    state = b"(K\x01(K\x01t" + one + b"q\x01" + b"\x89C\x04a\x00\x00\x00tb"
    assert array_of(read_pickle(b"\x80\x03" + made + state + b".")).tolist() == ["a"]
    with pytest.raises(Bad, match="the dtype 'U1' with 20000 bytes for each value"):
        array_of(read_pickle(b"\x80\x03" + made + state + b"h\x01" + grown + b"0."))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x02cnumpy\ndtype\n}b.", "a pickle that changes numpy.dtype"),
        (b"\x80\x02N}X\x01\x00\x00\x00ar\xff\xff\xff\x7f.", "a part with the number 2147483647"),
        (b"\x80\x04" + b"]" * 20_000 + b"a" * 19_999 + b".", "a pickle of more than 10000 parts"),
        (b"cos\nsystem\n.", "a pickle that asks for os.system"),
    ],
)
def test_pickles_that_change_names_or_take_memory_are_refused(content, words):
    refuses(lambda: read_pickle(content), words, Bad)
