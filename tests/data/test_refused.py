"""Arrays, tables, clients, partitions and sources that are refused: each row is a call, and words of its sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pandas
import pytest

from fljax import data
from fljax.data.arrays import join_labels, number_labels
from fljax.data.partitions.partition import (
    PARTITIONERS,
    classes_per_client,
    cluster_labels,
    dirichlet,
    mixture,
    natural,
    quantity,
)
from fljax.data.registry import SOURCES
from fljax.data.tables import ListStore, held_rows
from tests.games.test_retraining import few

N = 12
X, Y = np.arange(N, dtype=np.float32)[:, None], np.arange(N) % 3
OWNERS = np.repeat(np.arange(4), 3)
WIDE = np.full((N, 2), 2**32 + 1)
TOKENS = np.arange(2 * N).reshape(N, 2)
NAN = float("nan")

Row = tuple[Callable[[], Any], str]

ARRAYS: list[Row] = [
    (lambda: data.from_arrays(TOKENS, Y, OWNERS, vocabulary=5), r"tokens \[n, length\] in 0..4"),
    (lambda: data.from_arrays(WIDE, Y, OWNERS), "features that fit 32 bits, got numbers in 4294967297"),
    (lambda: data.dataset(WIDE, Y), "features that fit 32 bits, got numbers in 4294967297"),
    (lambda: data.federate(data.Dataset(WIDE, Y, 3, N), clients=2), "features that fit 32 bits, .* 4294967297"),
    (lambda: data.from_arrays(X, Y + 1, OWNERS), "labels in 1..3; subtract 1 from them, or give classes=4"),
    (lambda: data.from_arrays(X, Y, OWNERS, classes=2), "labels in 0..1, got labels in 0..2"),
    (lambda: data.federate(data.Dataset(X, Y, 2, N), clients=2), "labels in 0..1, got labels in 0..2"),
    (lambda: data.from_arrays(X, Y / 2, OWNERS, classes=3), "whole-number labels for 3 classes, .* float32"),
    (lambda: data.from_arrays(X, np.array(["a", "b"])[Y % 2], OWNERS), "labels to be numbers, got an array of <U"),
    (lambda: data.from_arrays(X, Y, OWNERS, test_data=(X, Y / 2)), r"labels like int64 \(12,\), got float64 \(12,\)"),
    (lambda: data.from_arrays(X, Y, OWNERS, test_data=(X * NAN, Y)), "finite test features .* in 12 rows$"),
    (lambda: data.from_arrays(X, Y, OWNERS, test_data=(X[:, None], Y)), "test features"),
    (lambda: data.from_arrays(X, Y, np.where(Y < 1, NAN, 1.0)), "an owner for each row, got NaN in 4 rows; -1 says"),
    (lambda: data.from_arrays(X, Y, np.array([*"a" * 6, *[None] * 6], object)), "an owner for each row, .* 6 rows"),
    (lambda: data.stack([data.from_arrays(X, y, OWNERS) for y in (Y, Y / 2)]), "alike .* float32 .* labels int32"),
    (lambda: join_labels([np.array([1]), np.array([0.5])], ["a", "b"]), "labels alike in all clients"),
    (lambda: join_labels([np.array(["x"]), np.array([1])], ["a", "b"]), "labels alike .* text .* of 'a' and int64"),
]
ARRAYS += [
    (make, "one owner for each of the 12 rows, got shape")
    for owners in (OWNERS[:, None], OWNERS[:-1])
    for make in (
        lambda owners=owners: data.from_arrays(X, Y, owners),
        lambda owners=owners: data.dataset(X, Y, owner=owners),
    )
]
ARRAYS += [
    (make, f"labels that fit 32 bits, got numbers in .*{label}")
    for label in (2**32 + 1, -(2**32))
    for y in [np.where(np.arange(N) == 5, label, Y)]
    for make in (
        lambda y=y: data.from_arrays(X, y, OWNERS),
        lambda y=y: data.dataset(X, y),
        lambda y=y: data.federate(data.Dataset(X, y, 3, N), clients=2),
    )
]
LABELS: list[tuple[Any, dict[str, Any], str]] = [
    ([1, None], {}, "a label in each row, got none in 1 of 2 rows"),
    (np.array(["a", NAN], object), {}, "a label in each row"),
    (np.array([1, "a"], object), {}, "labels of one kind, got a whole number and text"),
    (np.array([True, 2], object), {}, "labels of one kind, got a bool and a whole number"),
    (np.array([1j]), {}, "numbers, bools or text, got complex128"),
    (np.array([NAN, 1.0]), {}, "finite labels"),
    (["a"], {"regression": True}, "numbers as labels for a regression, got text"),
    ([0, 1], {"regression": True, "classes": 2}, "classes or regression=True, got both"),
    (["a", "b", "c"], {"classes": 2}, "at most 2 different labels"),
    ([0.5], {"classes": 2}, "whole numbers or text as labels of 2 classes"),
    (np.arange(1000) * 3, {}, "regression=True .* 1000 different whole numbers in 1000 rows"),
    (np.array([["a"]]), {}, "several labels, got text"),
]
ARRAYS += [(lambda y=y, how=how: number_labels(y, **how), words) for y, how, words in LABELS]


def examples(rows: int) -> Any:
    return np.ones((rows, 3)), (["no", "yes"] * rows)[:rows]


SOME = examples(3)
GIVEN: list[tuple[Any, str]] = [
    ({}, "a mapping of each client"),
    ([1], "a mapping of each client"),
    ({"a": 3}, r"a pair \(x, y\) as train rows of client 'a', got 3"),
    ({"a": (np.ones((2, 2)), [1])}, "train rows of client 'a': expected features"),
    ({"a": (np.ones((0, 2)), [])}, "train rows of client 'a': expected features"),
    ({"a": {"test": SOME}}, "training rows of each client .* got none of client 'a'"),
    ({"a": {"train": SOME, "tset": SOME}}, "'tset' .*did you mean 'test'.* of client 'a'"),
    ({"a": {"train": SOME, "test": SOME}, "b": SOME}, "'test' of all clients or of none, got none of client 'b'"),
    ({"a": SOME, "b": (np.ones((3, 4)), ["no"] * 3)}, "features alike .* of 'b'"),
    ({"a": SOME, "b": (np.ones((3, 3), np.uint8), ["no"] * 3)}, "float64 of 'a' and .* uint8 of 'b'"),
    ({"a": SOME, "b": (np.ones((3, 3)), [1, 2, 3])}, "labels alike in all clients"),
    ({"a": (np.full((2, 2), NAN), [0, 1])}, "finite features of train rows of client 'a'"),
    # Whole numbers of one client are classes, and floats of the other are not.
    ({"a": (np.ones((4, 2)), [0.5, 1, 2, 3]), "b": (np.ones((2, 2)), [1, 2])}, "labels"),
]
CLIENTS: list[Row] = [(lambda given=given: data.from_clients(given), words) for given, words in GIVEN]
CLIENTS += [
    (
        lambda: data.federate(data.dataset_from_clients({"a": {"train": SOME, "test": SOME}}), "iid", clients=2),
        "such as natural, got iid",
    ),
    (lambda: data.from_clients({"a": {"train": SOME, "test": SOME}}, test="global"), 'test="own" for data whose'),
]


def table(**columns: Any) -> pandas.DataFrame:
    frame = {"age": np.arange(N), "income": np.arange(N) * 0.5, "member": [True, False] * 6}
    frame |= {"hospital": [f"h{row % 3}" for row in range(N)], "ill": ["no", "yes"] * 6}
    return pandas.DataFrame({**frame, **columns})


FRAMES: list[Row] = [
    (lambda c=columns, o=options: data.from_frame(table(**c), **{"label": "ill", "client": "hospital", **o}), words)
    for columns, options, words in [
        ({}, {"label": "il"}, r"column of the table \(age, .*\), got 'il' \(did you mean 'ill'\?\)"),
        ({}, {"client": "town"}, "column of the table .* got 'town'"),
        ({}, {"client": None}, "client, the column of the clients, or partition and clients"),
        ({"city": ["a"] * 12}, {"shape": [4, 1]}, "columns of pixels or tokens, got 'a' in row 0, .* of 'city'"),
        ({"city": [*range(11), "a"]}, {"shape": [4, 1]}, "got 'a' in row 11"),
        ({"born": [object()] * 12}, {}, "numbers or words in the columns of features, got <object .*in 'born'"),
        ({"born": pandas.Timestamp("2000-01-01")}, {}, "got dates in 'born'"),
        ({"age": [NAN] * 2 + [1.0] * 10}, {}, r"'age', got none \(NaN\) in 2 of 12 rows, .*; standardise = true puts"),
        (
            {"age": [None] * 2 + [True] * 10},
            {},
            r"'age', got none \(NaN\) in 2 of 12 rows, .*; standardise = true puts",
        ),
        ({"age": [NAN] * 2 + [1.0] * 10}, {"shape": [3], "standardise": True}, "'age', got none .* from 0$"),
        ({"hospital": [None] + ["a"] * 11}, {}, "'hospital', got none"),
        ({"ill": ["a"] * 11 + [None]}, {}, "'ill', got none .* first in row 11"),
        ({"income": [np.inf] * 12}, {}, "finite features"),
        ({"income": [1e39] * 12}, {}, "finite features"),
        ({"split": ["train"] * 11 + ["tset"]}, {"part": "split"}, "'tset' .* in the column 'split'"),
        ({}, {"features": []}, "one row and one column of features"),
        ({}, {"shape": [2, 2]}, "a shape of 3 entries"),
    ]
]
FRAMES += [
    (
        lambda names=names: data.from_frame({"id": names, "y": [0, 1] * 1002}, label="y", partition="iid", clients=2),
        "at most 1000 different words .*, and fewer than rows, got .* in 2004 rows of 'id'; choose columns with",
    )
    for names in ([str(row % 1001) for row in range(2004)], [str(row) for row in range(2004)])
]
FRAMES += [
    (lambda: data.from_frame("mine.csv", label="y", client="a"), "a table with columns"),
    (lambda: data.from_frame({"a": [1, 2], "y": [1]}, label="y", client="a"), "columns of equal lengths"),
]

BLOBS = data.load("blobs", samples=240, test_samples=40, classes=4, seed=1)
ALONE = data.load("blobs", samples=200, classes=4, seed=2)


def halves(labels: Any, *, clients: int, unseen: int, seed: int, shift: int = 0) -> Any:
    return [np.arange(k, len(labels), clients) for k in range(clients)]


def lists(*rows: Any, **parts: Any) -> Any:
    """A partition that returns these lists."""
    made = data.Partition(tuple(np.array(rows)), **parts) if parts else list(rows)

    def other(labels: Any, **options: Any) -> Any:
        return made

    return other


FEDERATIONS: list[Row] = [
    (lambda wrong=wrong: data.federate(BLOBS, **({"clients": 4} | wrong)), words)
    for wrong, words in [
        ({"clients": 0}, "clients .* 0"),
        ({"clients": -1}, "clients .* -1"),
        ({"clients": None}, "clients"),
        ({"clients": True}, "clients .* True"),
        ({"unseen": -1}, "unseen .* -1"),
        ({"seed": -1}, "seed .* -1"),
        ({"train_fraction": 0.0}, "train_fraction .* 0"),
        ({"train_fraction": 1.0}, "train_fraction .* 1"),
        ({"valid_fraction": 1.0}, "valid_fraction .* 1"),
        ({"held_fraction": -0.1}, r"held_fraction .* -0\.1"),
        ({"test": "globl"}, "globl"),
        ({"partition": "dirichlt"}, "'dirichlt'.*'dirichlet'"),
        ({"partition": "dirichlet", "bta": 0.1}, "'bta'.*'beta'"),
        ({"partition": "natural"}, "owner"),
        ({"partition": "mixture", "rotate": True}, "square images .* to turn by 90 degrees"),
        ({"partition": halves, "shft": 1}, "did you mean 'shift'"),
        ({"partition": lists([0, 1], [1, 2]), "clients": 2}, "at most once"),
        ({"partition": lists([0, 1], [2]), "clients": 3}, "to serve 3 clients"),
        # Lists of deployment rows and of later rows, beside two of training rows.
        ({"partition": lists([0, 1], [2, 3], deployment=()), "clients": 2}, "to serve 2 clients, got 0$"),
        ({"partition": lists([0, 1], [2, 3], deployment=(np.array([4]),)), "clients": 2}, "2 clients, got 1$"),
        ({"partition": lists([0, 1], [2, 3], later=(np.array([4]),)), "clients": 2}, "2 clients, got 1$"),
    ]
]
FEDERATIONS += [
    (lambda rows=rows: data.federate(ALONE, lists(*rows), clients=2), rf"other .* row numbers, got {got}$")
    for rows, got in [
        ([np.array([0.9, 1.7]), np.array([2.2])], r"0\.9 for client 0"),
        ([[0], [1, np.inf]], "inf for client 1"),
        ([[[0, 1]], [[2, 3]]], r"\(\(0, 1\)\) for client 0"),
        ([[[0], [1, 2]], [3]], r"\(\(0\), \(1, 2\)\) for client 0"),
        ([0, 1], "0 for client 0"),
        ([[True, False], [False, True]], r"\(True, False\) for client 0"),
        ([["0"], ["1"]], r"\('0'\) for client 0"),
        ([None, None], "None for client 0"),
    ]
]
FEDERATIONS += [
    (lambda returned=returned: data.federate(ALONE, lambda labels, **_: returned, clients=2), f"a list .*{words}")
    for returned, words in [
        ({0: [0, 1], 1: [2, 3]}, r"no mapping, got a mapping of 2 keys; list\(found.values\(\)\)"),
        (np.array([0, 0, 1, 1]), "no mapping, got an array of 4 numbers; if they are the owner of each row"),
        ([], r"no mapping, got \[\]"),
        (None, "no mapping, got None"),
    ]
]
OTHERS = [{"clients": 3}, {"clients": 4, "unseen": 1}]
FEDERATIONS += [
    (lambda o=o: data.stack([data.federate(ALONE, clients=4), data.federate(ALONE, **o)]), "alike") for o in OTHERS
]
FEDERATIONS += [
    (lambda: data.stack([data.federate(each, clients=4) for each in (ALONE, BLOBS)]), "alike"),
    (lambda: data.stack([]), "at least one"),
    (lambda: data.federations(BLOBS, clients=4, seeds=0), "a positive number of seeds"),
    (lambda: data.row_numbers(data.federate(ALONE, clients=3), unseen=True), "unseen clients"),
    (lambda: data.row_numbers(data.federate(ALONE, clients=3), "tests"), "test"),
    (lambda: data.row_numbers(data.federate(ALONE, "mixture", clients=4), "deployment"), "chooses deployment rows"),
    (lambda: data.row_numbers(data.federate(ALONE, "mixture", clients=4), "later"), "later rows, .*mixture with drift"),
]
CHANGING: dict[str, Any] = {"clients": 4, "complement": True, "train_fraction": 0.5}
FEDERATIONS += [
    (
        lambda more=more: data.stack([data.federate(ALONE, "mixture", **CHANGING, **each) for each in (more, {})]),
        f"alike in clients and held rows, got .*{part} rows",
    )
    for part, more in [("deployment", {"valid_fraction": 0.25}), ("later", {"drift_fraction": 0.5})]
]
FEDERATIONS += [
    (lambda make=make, number=number: make(np.array([0, number])), r"numbers of rows from 0 to 2\^31 - 1, got")
    for make in (held_rows, lambda rows: ListStore().add([rows]))
    for number in (2**31, 2**32 + 1, -1)
]
FEDERATIONS += [
    (lambda client=client: data.split_identities(few(3), client, 2), "client .* 0 to 2, got")  # pyright: ignore[reportArgumentType]
    for client in (3, -1, 1.5, True)
]
FEDERATIONS += [(lambda: data.split_identities(few(3), 0, 1), "identities")]

CLASSES = np.random.default_rng(0).integers(0, 8, 1200)
OWNER = np.random.default_rng(1).integers(-1, 30, 1200)
EXTRA: dict[str, dict[str, Any]] = {"natural": {"owner": OWNER}}


def part(name: str, **options: Any) -> Any:
    return PARTITIONERS[name](CLASSES, **({"clients": 4} | EXTRA.get(name, {}) | options))


PARTITIONS: list[Row] = [
    (lambda name=name, wrong=wrong: part(name, **wrong), f"{next(iter(wrong))}.* got {next(iter(wrong.values()))}")
    for name in PARTITIONERS
    for wrong in ({"clients": 0}, {"clients": -3}, {"unseen": -1}, {"clients": 1.5}, {"seed": -1})
]
PARTITIONS += [(lambda name=name: part(name, clients=2000), "expected at least") for name in PARTITIONERS]
PARTITIONS += [
    (lambda make=make, bad=bad: make(CLASSES, clients=4, beta=bad), "beta")
    for make in (dirichlet, quantity)
    for bad in (0, -1.0, NAN, float("inf"))
]
PARTITIONS += [
    (lambda name=name, how=how: part(name, **how), words)
    for name in ("dirichlet", "quantity")
    for how, words in [
        ({"alpha": 1.0, "beta": 0.5}, r"one of beta and alpha, .* beta=0\.5 and alpha=1"),
        ({"alpha": 0.0}, "alpha .* above 0"),
    ]
]
PARTITIONS += [
    (lambda shares=shares: cluster_labels(CLASSES, clients=40, groups=4, shares=shares), words)
    for shares, words in [
        ([0.5, 0.5], "each of 4 groups, got 2 shares"),
        ([0.5, 0.6, -0.1, 0], r"from 0 to 1, got -0\.1"),
        ([0.5, 0.3, NAN, 0.2], r"shares .*, got \[0.5, 0.3, nan, 0.2\]"),
        ([0.5, 0.3, "0.1", 0.1], r"shares .*, got \[0.5, 0.3, '0.1', 0.1\]"),
        ([0.5, 0.3, 0.1, 0.2], r"shares with the sum 1, got 1\.1"),
        ([0.97, 0.01, 0.01, 0.01], "10 samples for each of 39 clients of group 0, got "),
    ]
]
PARTITIONS += [
    (lambda: classes_per_client(CLASSES, clients=5, k=9), "at most 8"),
    (lambda: cluster_labels(CLASSES, clients=20, groups=8, minimum=60), "room for 20 clients"),
    (lambda: natural(CLASSES, clients=31, owner=OWNER), "at least 31 owners"),
    (lambda: natural(CLASSES, clients=3, owner=None), "owners"),
    (lambda: mixture(CLASSES, clients=4, size=5000), "source distributions"),
    (lambda: mixture(np.zeros(50, int), clients=2), "at least 2 classes"),
    (lambda: mixture(CLASSES, clients=10, drift_fraction=0.6), "complement with drift_fraction"),
    (
        lambda: mixture(CLASSES, clients=10, complement=True, deployment_fraction=0.4, drift_fraction=0.6),
        "deployment_fraction and drift_fraction .* 0.4 and 0.6",
    ),
]
PARTITIONS += [
    (lambda each=each: mixture(CLASSES, clients=4, complement=True, deployment_fraction=each), "deployment_fraction")
    for each in (-0.1, 1.0, NAN)
]
PARTITIONS += [
    (lambda each=each: mixture(CLASSES, clients=4, pattern=each), "one of the patterns")
    for each in ("10:80", "liner", "a:b", "")
]
PARTITIONS += [
    (
        lambda name=name, how=how, y=y: data.federate(data.dataset(X, y), name, clients=2, minimum=1, **how),
        "one whole-number label for each row, .*iid, quantity, noise and nat",
    )
    for y in (np.linspace(0, 1, N), np.ones((N, 2), int))
    for name, how in [
        ("dirichlet", {}),
        ("classes_per_client", {}),
        ("cluster_labels", {"groups": 2}),
        ("mixture", {}),
        ("block_mixture", {}),
        ("class_clusters", {}),
        ("iid", {"stratified": True}),
    ]
]

TOWNS = np.repeat(["elm", "fir", "oak", "yew"], 3)
NUMBERED = data.dataset(X, Y, owner=OWNERS)
UNSEEN: list[Row] = [
    (lambda unseen=unseen: data.from_arrays(X, Y, TOWNS, unseen=unseen), words)
    for unseen, words in [
        (["oka"], r"owners elm, fir, oak, yew .*, got 'oka' \(did you mean 'oak'"),
        ([True], "owners elm, .*, got True"),
        ([["oak"]], r"owners elm, .*, got \['oak'\]"),
        (["oak", "elm", "oak"], "different owners as unseen clients, got 'oak' twice"),
        ([], "unseen clients, or 0 for none, got an empty list"),
        ("oak", "unseen .* 'test', got 'oak'"),
        (1.5, "unseen .* 'test', got 1.5"),
        (-1, "unseen .* at least 0, got -1"),
        ("test", "owners whose rows are all test rows for unseen='test', got none"),
        (["elm", "fir", "oak", "yew"], "the number of owners less unseen"),
    ]
]
UNSEEN += [
    (
        lambda: data.from_arrays(
            np.zeros((200, 1)), np.arange(200) % 2, [f"c{at:03}" for at in range(200)], unseen=["x"]
        ),
        "owners c000, .*, c009 and 190 more as an unseen client, got 'x'",
    ),
    (lambda: data.federate(NUMBERED, "iid", clients=2, unseen=[1]), "the partition natural for unseen .* got iid"),
    (
        lambda: data.federate(NUMBERED._replace(owner=None), "iid", clients=2, unseen=[1]),
        "rows have owners, .* by name",
    ),
]

SOURCE: list[Row] = [
    (lambda options=options: data.load("synthetic", **cast(Any, options)), f"{next(iter(options))}.* got -?[0-9]")
    for options in ({"clients": 0}, {"alpha": -1.0}, {"cap": 0}, {"unseen": -1}, {"seed": -2})
]
SOURCE += [
    (lambda name=name: SOURCES[name](samples=2**40), "at most 268435456 numbers in a generated data set, got")
    for name in ("blobs", "two_means")
]
SOURCE += [
    (lambda x=x: data.dataset(x, [0], vocabulary=4), r"tokens \[n, length\] in 0\.\.3")
    for x in ([[1, 4]], [[-1, 0]], [1])
]
SOURCE += [
    (lambda: SOURCES["two_means"](std=1e200), "finite features in single precision"),
    (lambda: data.load("fashion-mnst"), "did you mean 'fashion_mnist'"),
    (lambda: data.load("synthetic", alfa=1.0), "did you mean 'alpha'"),
    (lambda: data.load("digits", folder="somewhere"), "folder"),
    (lambda: data.load(lambda: 3), r"fljax\.data\.Dataset"),  # pyright: ignore[reportArgumentType]
    (lambda: data.dataset([[0.5]], [0], vocabulary=4), "tokens to be whole numbers"),
    (
        lambda: data.federate(data.dataset([[1, 2], [3, 0]], [0, 1], vocabulary=4), "noise", clients=2),
        "without noise on features for texts",
    ),
]

ROWS = {"arrays": ARRAYS, "clients": CLIENTS, "frames": FRAMES, "federations": FEDERATIONS}
ROWS |= {"partitions": PARTITIONS, "unseen": UNSEEN, "sources": SOURCE}


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "words"), [pytest.param(*row, id=f"{kind}: {row[1]}") for kind, rows in ROWS.items() for row in rows]
)
def test_a_refusal_is_one_sentence_that_names_it(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "expected " in str(caught.value)
    assert "\n" not in str(caught.value)
