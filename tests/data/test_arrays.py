"""The data front door: what users hand in is stored as it is, or refused in one sentence."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.data import (
    Dataset,
    dataset,
    federate,
    federations,
    from_arrays,
    from_clients,
    from_frame,
    load,
    place,
    row_numbers,
)
from fljax.data.arrays import join_labels, number_labels, number_owners, plain_labels
from tests.drawn import at_most
from tests.refusals import refuses

N = 12
X = np.arange(N, dtype=np.float32)[:, None]
Y = np.arange(N) % 3
OWNERS = np.repeat(np.arange(4), 3)


def owned(federation):
    """The rows of each client, whatever they are for."""
    parts = (row_numbers(federation, part) for part in ("train", "valid", "test"))
    return [sorted(np.concatenate(rows).tolist()) for rows in zip(*parts, strict=True)]


# --- What is kept -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int16, np.uint16, np.uint32])
def test_tokens_stay_whole_numbers(kind):
    tokens = np.arange(2 * N).reshape(N, 2).astype(kind)
    for vocabulary in (None, 2 * N):
        stored = from_arrays(tokens, Y, OWNERS, vocabulary=vocabulary).examples.x
        assert stored.dtype == jnp.int32
        np.testing.assert_array_equal(stored, tokens)


@pytest.mark.parametrize("shape", [(N,), (N, 1), (N, 3), (N, 2, 2)])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, bool])
def test_labels_keep_their_shape(shape, kind):
    y = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(kind)
    made = from_arrays(X, y, OWNERS)
    assert made.examples.y.dtype == (jnp.float32 if np.issubdtype(kind, np.floating) else jnp.int32)
    np.testing.assert_array_equal(made.examples.y, y)
    assert owned(made) == [list(range(start, start + 3)) for start in range(0, N, 3)]


@pytest.mark.parametrize("partition", ["iid", "quantity", "noise", "natural"])
def test_partitions_that_do_not_look_at_labels_take_any(partition):
    found = dataset(X, np.linspace(-1, 1, 2 * N).reshape(N, 2), owner=OWNERS)
    assert found.classes is None
    options: dict = {"minimum": 1} if partition == "quantity" else {}
    made = federate(found, partition, clients=4, **options)
    assert sorted(row for rows in owned(made) for row in rows) == list(range(N))


# --- Owners and labels of 64 bits ---------------------------------------------------------------------------


def wide_owners():
    return np.array([1, 2**32 + 1, 3_000_000_000, -(2**40)], np.int64)[np.arange(N) % 4]


def made_by(way, owners):
    if way == "from_arrays":
        return from_arrays(X, Y, owners)
    if way == "dataset":
        return federate(dataset(X, Y, owner=owners), "natural")
    return federate(Dataset(X, Y, 3, N, owner=owners), "natural")


@pytest.mark.parametrize("way", ["from_arrays", "dataset", "Dataset"])
def test_owners_of_64_bits_are_not_merged_and_do_not_vanish(way):
    """Owner 2**32 + 1 is not owner 1, and only negative numbers are nobody's."""
    assert owned(made_by(way, wide_owners())) == [[0, 4, 8], [2, 6, 10], [1, 5, 9]]


def test_owners_of_unsigned_numbers_and_floats():
    assert owned(from_arrays(X, Y, np.array([2**63 + 5, 7], np.uint64)[np.arange(N) % 2])) == [
        list(range(1, N, 2)),
        list(range(0, N, 2)),
    ]
    floats = np.array([2.5, -1.0, 0.5])[np.arange(N) % 3]
    assert owned(from_arrays(X, Y, floats)) == [list(range(2, N, 3)), list(range(0, N, 3))]


# --- Labels out of range ------------------------------------------------------------------------------------


def test_labels_may_begin_at_1_where_classes_say_so():
    np.testing.assert_array_equal(from_arrays(X, Y + 1, OWNERS, classes=4).examples.y, Y + 1)
    assert dataset(X, Y + 1, classes=4).classes == 4
    assert dataset(X, np.ones(N, bool)).classes == 2


@pytest.mark.in_turn
def test_test_data_of_numbers_to_predict():
    y = np.linspace(0, 1, N)
    made = from_arrays(X, y, OWNERS, test_data=(X[:2], y[:2]))
    np.testing.assert_allclose(made.examples.y[N:], y[:2], rtol=1e-6)


# --- NaN and infinity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_are_not_finite_name_their_clients(value):
    x = X.astype(np.float64)
    x[[3, 4, 11]] = value
    names = np.array(["anna", "bob", "carla", "dora"])[OWNERS]
    message = r"expected finite features .* in 3 rows: 2 rows of client {}, 1 row of client {}$"
    refuses(lambda: from_arrays(x, Y, names), message.format("bob", "dora"))
    refuses(lambda: dataset(x, Y, owner=OWNERS), message.format(1, 3))
    refuses(lambda: federate(Dataset(x, Y, 3, N, owner=OWNERS), "natural"), message.format(1, 3))
    with pytest.raises(ValueError, match=r"expected finite features .* in 3 rows$"):
        federations(Dataset(x, Y, 3, N), seeds=[0, 1], clients=2)
    with pytest.raises(ValueError, match=r"expected finite labels .* in 1 row: 1 row of client anna$"):
        from_arrays(X, np.where(np.arange(N) == 1, value, 0.5), names)


def test_values_on_the_device_are_checked_as_well():
    x = jnp.asarray(X).at[4].set(jnp.nan)
    with pytest.raises(ValueError, match=r"expected finite features .* in 1 row: 1 row of client 1$"):
        federate(Dataset(x, Y, 3, N, owner=OWNERS), "natural")  # type: ignore[arg-type]
    found = place(Dataset(jnp.asarray(X), Y, 3, N))  # type: ignore[arg-type]
    assert place(found).x is found.x


def test_sources_pass_the_front_door():
    assert place(load("blobs", samples=20)).x.shape == (20, 4)


# --- Whatever comes -----------------------------------------------------------------------------------------

ARRAYS_KINDS = ["uint8", "int16", "int64", "uint64", "float16", "float32", "float64", "bool", "U3", "complex64"]
NUMBERS = st.sampled_from([0, 1, 2, 7, -1, 200, 2**31, 2**32 + 1, 1e30, 1e300, 0.5, float("nan"), float("inf")])


@st.composite
def arrays(draw, shapes):
    values = np.full((6, *draw(st.sampled_from(shapes))), draw(st.sampled_from([0, 1])), object)
    for place_ in draw(st.lists(st.integers(0, 5), max_size=2)):
        values[place_] = draw(NUMBERS)
    kind = draw(st.sampled_from(ARRAYS_KINDS))
    with np.errstate(all="ignore"):
        return values.astype("float64").astype(kind) if kind != "U3" else values.astype(kind)


def same_or_refused(make, x, y):
    """What is made equals what came in, up to single precision; otherwise one sentence says why not."""
    try:
        made = make()
    except ValueError as error:
        made, told = None, str(error)
    if made is None:
        assert told.startswith("expected ")
        assert "\n" not in told
        return
    assert (made.examples.x.shape, made.examples.y.shape) == (x.shape, y.shape)
    np.testing.assert_allclose(np.asarray(made.examples.x, np.float64), x.astype(np.float64), rtol=1e-6, atol=1e-37)
    y = y if made.names.classes is None else np.searchsorted(made.names.classes, y)
    np.testing.assert_allclose(np.asarray(made.examples.y, np.float64), y.astype(np.float64), rtol=1e-6, atol=1e-37)
    assert sorted(row for rows in owned(made) for row in rows) == list(range(6))


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@at_most(60)
@given(x=arrays([(2,), (), (2, 2)]), y=arrays([(), (1,), (2,)]), classes=st.sampled_from([None, 2, 9]))
def test_from_arrays_keeps_or_refuses(x, y, classes):
    same_or_refused(lambda: from_arrays(x, y, list("abcabc"), classes=classes), x, y)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@at_most(60)
@given(
    x=arrays([(2,), (), (2, 2)]),
    y=arrays([(), (1,), (2,)]),
    classes=st.sampled_from([None, 2, 9]),
    by_hand=st.booleans(),
    partition=st.sampled_from(["iid", "natural"]),
)
def test_dataset_and_federate_keep_or_refuse(x, y, classes, by_hand, partition):
    owner = np.array([5, 2**40, 5, 2**40, 9, 9])

    def make():
        found = Dataset(x, y, classes, 6, owner=owner) if by_hand else dataset(x, y, owner=owner, classes=classes)
        return federate(found, partition, clients=3)

    same_or_refused(make, x, y)


def test_minus_one_among_objects_is_nobody():
    """As a table's column of nullable whole numbers comes."""
    assert number_owners(np.array([-1, 0, 1, 0], object)).tolist() == [-1, 0, 1, 0]
    assert number_owners(np.array(["b", "a"], object)).tolist() == [1, 0]


def test_signed_and_unsigned_labels_stay_whole_numbers():
    made = from_arrays(
        np.zeros((4, 2)),
        np.array([0, 1, 0, 1]),
        [0, 0, 1, 1],
        test_data=(np.zeros((2, 2)), np.array([1, 0], np.uint64)),
    )
    assert made.examples.y.dtype == np.int32


@pytest.mark.parametrize(
    ("labels", "numbers", "names"),
    [
        (["dog", "cat", "dog"], [1, 0, 1], ("cat", "dog")),
        (np.array([b"b", b"a"]), [1, 0], ("a", "b")),
        ([True, True], [1, 1], (False, True)),
        ([3, 7, 3], [0, 1, 0], (3, 7)),
        ([-1, 1, -1], [0, 1, 0], (-1, 1)),
        ([1, 2, 3], [0, 1, 2], (1, 2, 3)),
        (np.array(["x", "y", "x"], object), [0, 1, 0], ("x", "y")),
        (np.array([5, 9], np.uint64), [0, 1], (5, 9)),
        (np.array(["2020-01-02", "2019-01-01"], "datetime64[D]"), [1, 0], None),
    ],
)
def test_labels_become_numbers_and_are_kept(labels, numbers, names):
    made = number_labels(labels)
    assert (made.y.tolist(), made.y.dtype) == (numbers, np.int32)
    assert made.names is not None
    assert names is None or made.names == names
    assert made.classes == len(made.names)


def test_numbers_of_classes_stay():
    assert number_labels([2, 0, 1])[1:] == (3, None)
    found = number_labels([5, 2], classes=9)
    assert (found.y.tolist(), found.classes, found.names) == ([5, 2], 9, None)


def test_floats_are_numbers_to_predict():
    found = number_labels([0.0, 1.0, 2.5])
    assert (found.y.dtype, found.classes, found.names) == (np.float32, None, None)
    as_classes = number_labels([0.5, 1.5, 0.5], regression=False)
    assert (as_classes.y.tolist(), as_classes.classes, as_classes.names) == ([0, 1, 0], 2, (0.5, 1.5))
    amounts = number_labels([300, 100], regression=True)
    assert (amounts.y.dtype, amounts.y.tolist(), amounts.classes) == (np.float32, [300, 100], None)


def test_several_numbers_for_each_row_stay():
    assert number_labels(np.ones((3, 2))).y.shape == (3, 2)
    assert number_labels(np.ones((3, 2), int), classes=4).classes == 4


def test_signed_and_unsigned_labels_are_joined():
    assert join_labels([np.array([1], np.uint64), np.array([-1])], ["a", "b"]).tolist() == [1, -1]


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3)  # others are refused
LABELS_KINDS = st.sampled_from([WORDS, st.booleans(), st.integers(-5, 5), st.integers(0, 2**63)])


@at_most(100)
@given(labels=LABELS_KINDS.flatmap(lambda kind: st.lists(kind, min_size=1, max_size=8)))
def test_names_give_the_labels_back(labels):
    made = number_labels(labels)
    names = range(made.classes or 0) if made.names is None else made.names
    assert [names[number] for number in made.y.tolist()] == labels
    assert plain_labels(labels).tolist() == labels


# --- Numbers to predict are float32 -------------------------------------------------------------------------


def read_csv(x, y, owners, folder):
    rows = "".join(f"{a},{b!r},{owner}\n" for a, b, owner in zip(x[:, 0], y.tolist(), owners, strict=True))
    (folder / "rows.csv").write_text("a,target,who\n" + rows)
    return load(str(folder / "rows.csv"), label="target", client="who", regression=True)


def read_npz(x, y, owners, folder):
    np.savez(folder / "rows.npz", x=x, y=y, who=owners)
    return load(str(folder / "rows.npz"), client="who", regression=True)


READERS = {
    "from_arrays": lambda x, y, owners, folder: from_arrays(x, y.astype(float), owners),
    "dataset": lambda x, y, owners, folder: dataset(x, y[:, None]),
    "place": lambda x, y, owners, folder: place(Dataset(x, y.astype(float), None, len(y))),
    "from_frame": lambda x, y, owners, folder: from_frame(
        {"a": x[:, 0], "target": y, "who": owners}, label="target", client="who", regression=True
    ),
    "columns": lambda x, y, owners, folder: from_frame(
        {"a": x[:, 0], "target": y, "b": y / 1e6, "who": owners}, label=["target", "b"], client="who"
    ),
    "from_clients": lambda x, y, owners, folder: from_clients(
        {owner: (x[owners == owner], y[owners == owner]) for owner in range(4)}, regression=True
    ),
    "csv": read_csv,
    "npz": read_npz,
}


@pytest.mark.parametrize("reader", READERS)
@given(st.sampled_from([2e7, 1e9 + 0.5, 1.7e9, -1e12, 2.0**53]), st.sampled_from([0.5, 1.0, 3.0]))
@at_most(3)
def test_labels_to_predict_keep_their_differences_or_are_refused(reader, tmp_path_factory, base, step):
    """Rounded to float32, 20,000,000 to 20,000,007 are four numbers."""
    steps, folder = np.arange(N) * step, tmp_path_factory.mktemp("rows")
    kept = READERS[reader](X, steps, OWNERS, folder)
    assert len(np.unique(np.asarray(getattr(kept, "examples", kept).y))) >= N
    whole = step != 0.5 and reader not in ("columns", "place")
    far = (base + steps).astype(np.int64) if whole and abs(base) < 2**31 else base + steps
    with pytest.raises(ValueError, match=r"expected labels to predict whose differences float32 holds.*their mean"):
        READERS[reader](X, far, OWNERS, folder)
