"""Unseen clients: owners by name, and owners who have test rows alone."""

from __future__ import annotations

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from fljax.data import dataset, dataset_from_frame, federate, federations, from_arrays, from_clients, row_numbers
from fljax.data.datasets import Piece, assemble
from fljax.data.partitions.assignment import chosen_owners, count_seen, owners_of
from tests.drawn import at_most

TOWNS = np.repeat(["elm", "fir", "oak", "yew"], 5)
ROWS = np.arange(20, dtype=np.float32)[:, None]
LABELS = np.arange(20) % 2


def pieces(*, own_tests=True):
    """Trained by elm and fir, with own test rows if asked for; oak and yew have test rows alone."""
    owner = ["elm"] * 4 + ["fir"] * 4
    tests = (["elm", "fir"] if own_tests else []) + ["yew", "oak", "yew"]
    x = np.arange(8.0 + len(tests))[:, None]
    y = np.arange(len(x)) % 2
    return [Piece(x[:8], y[:8], owner), Piece(x[8:], y[8:], tests, test=True)]


def rows(federation, part, *, unseen=False):
    found = row_numbers(federation, part, unseen=unseen)
    return [np.asarray(federation.examples.x)[each, 0].tolist() for each in found]


def everything(federation, *, unseen=False):
    parts = [rows(federation, part, unseen=unseen) for part in ("train", "valid", "test")]
    return [sorted(itertools.chain(*each)) for each in zip(*parts, strict=True)]


def test_owners_are_chosen_by_name():
    for seed in range(3):
        made = from_arrays(ROWS, LABELS, TOWNS, unseen=["yew", "fir"], seed=seed)
        assert (made.names.clients, made.names.unseen) == (("elm", "oak"), ("fir", "yew"))
        assert [
            sorted(each) for each in map(np.concatenate, zip(rows(made, "train"), rows(made, "test"), strict=True))
        ] == [
            list(range(5)),
            list(range(10, 15)),
        ]
        assert all(len(each) for each in rows(made, "test", unseen=True))


def test_fewer_clients_than_owners_are_drawn_among_the_others():
    found = [from_arrays(ROWS, LABELS, TOWNS, unseen=["oak"], clients=2, seed=seed) for seed in range(8)]
    assert {each.names.unseen for each in found} == {("oak",)}
    assert {each.names.clients for each in found} > {("elm", "fir")}
    assert not any("oak" in (each.names.clients or ()) for each in found)


@hypothesis.given(
    sizes=strategies.lists(strategies.integers(1, 12), min_size=2, max_size=8),
    options=strategies.fixed_dictionaries(
        {},
        optional={
            "minimum": strategies.integers(1, 8),
            "held_fraction": strategies.floats(0.05, 0.7),
            "valid_fraction": strategies.just(0.0) | strategies.floats(0.001, 0.5),
            "train_fraction": strategies.floats(0.3, 0.9),
            "test": strategies.sampled_from(["own", "global"]),
            "unseen": strategies.sampled_from([1, [0]]),
        },
    ),
)
@at_most(200)
def test_without_a_number_all_owners_that_are_left_are_clients(sizes, options):
    made = dataset(np.ones((sum(sizes), 1)), np.arange(sum(sizes)) % 2, owner=np.repeat(np.arange(len(sizes)), sizes))
    try:
        found = federations(made, "natural", seeds=2, **options)
    except ValueError as error:
        nobody_is_left = str(error).startswith("expected the number of owners less unseen")
        assert nobody_is_left
        return
    counts = {each.clients.id.shape[-1] for each in found}
    assert len(counts) == 1
    assert min(len(row) for each in found for row in row_numbers(each)) >= 1
    with pytest.raises(ValueError, match="expected at least "):
        federations(made, "natural", seeds=2, clients=max(counts) + 1, **options)


def test_owners_without_names_are_chosen_by_number():
    made = dataset(ROWS, LABELS, owner=np.repeat([3, 5, 7, 9], 5))
    found = federations(made, "natural", seeds=2, unseen=[7])
    assert [np.sort(rows(each, "train", unseen=True)[0]).tolist()[0] >= 10 for each in found] == [True, True]
    assert [each.clients.id.tolist() for each in found] == [[0, 1, 2]] * 2


def test_names_that_are_numbers_are_found_as_text():
    made = from_clients(dict.fromkeys((10, 2, "b"), (ROWS[:4], LABELS[:4])), unseen=["2"])
    assert (made.names.clients, made.names.unseen) == ((10, "b"), (2,))


def test_owners_with_test_rows_alone_are_a_global_test_set_or_unseen_clients():
    made = assemble(pieces())
    usual = federate(made, "natural")
    assert usual.held["test"].size == 3
    assert usual.unseen is None
    all_of_them = federate(made, "natural", unseen="test")
    assert (all_of_them.names.clients, all_of_them.names.unseen) == (("elm", "fir"), ("oak", "yew"))
    assert everything(all_of_them, unseen=True) == [[11], [10, 12]]
    assert [len(each) for each in rows(all_of_them, "train", unseen=True)] == [1, 1]
    assert [len(each) for each in rows(all_of_them, "test", unseen=True)] == [0, 1]
    assert rows(all_of_them, "test") == [[8.0], [9.0]]
    assert "test" not in all_of_them.held
    one = federate(made, "natural", unseen=["yew"])
    assert everything(one, unseen=True) == [[10, 12]]
    assert np.asarray(one.held["test"].index).tolist() == [11]


def test_seen_clients_keep_their_split_when_test_owners_are_unseen():
    made = assemble(pieces(own_tests=False), standardise=False)
    found, usual = (federate(made, "natural", unseen=unseen, seed=4) for unseen in ("test", 0))
    assert rows(found, "train") == rows(usual, "train")
    assert rows(found, "test") == rows(usual, "test")
    assert everything(found, unseen=True) == [[9], [8, 10]]
    assert found.moments is None
    mixed = federate(made, "natural", unseen=["elm", "oak"])
    assert everything(mixed, unseen=True) == [[0, 1, 2, 3], [9]]
    assert [len(each) for each in rows(mixed, "train", unseen=True)] == [2, 1]


def test_owners_are_counted():
    owners = owners_of(assemble(pieces()))
    assert owners.names == ("elm", "fir", "oak", "yew")
    assert (owners.training.tolist(), owners.tested.tolist()) == ([0, 1], [2, 3])
    counts = [count_seen(owners, each, chosen_owners(owners, each)) for each in (0, 1, "test", ["elm", "oak"])]
    assert counts == [2, 1, 2, 1]


def test_unseen_owners_with_tests_have_no_global_test_rows():
    with pytest.raises(ValueError, match='expected test="own" for data whose clients have rows of their own'):
        federate(assemble(pieces(own_tests=False)), "natural", unseen="test", test="global")


def test_validation_rows_without_an_owner_are_the_servers():
    x, y = np.arange(8.0)[:, None], np.arange(8) % 2
    made = assemble([Piece(x[:5], y[:5]), Piece(x[5:7], y[5:7], valid=True), Piece(x[7:], y[7:], test=True)])
    assert made.train_size == 7
    for test, kept in (("own", 5), ("global", 5)):
        found = federate(made, "iid", clients=2, test=test)
        assert np.asarray(found.held["validation"].index).tolist() == [5, 6]
        assert np.asarray(found.held["test"].index).tolist() == [7]
        own = rows(found, "train") + (rows(found, "test") if test == "own" else [])
        assert sorted(np.concatenate(own).tolist()) == list(range(kept))
    assert made.part is not None
    alone = federate(made._replace(x=made.x[:7], y=made.y[:7], part=made.part[:7]), "iid", clients=2, test="global")
    assert np.asarray(alone.held["validation"].index).tolist() == [5, 6]
    assert not set(np.asarray(alone.held["test"].index).tolist()) & {5, 6}
    with pytest.raises(ValueError, match=r"expected held_fraction of 0 for data with validation rows of the server"):
        federate(made, "iid", clients=2, held_fraction=0.1)


def test_validation_rows_of_an_owner_are_the_clients():
    x, y, who = np.arange(8.0)[:, None], np.arange(8) % 2, ["a", "b"]
    made = assemble(
        [Piece(x[:4], y[:4], who * 2), Piece(x[4:6], y[4:6], who, valid=True), Piece(x[6:], y[6:], who, True)]
    )
    found = federate(made, "natural")
    assert [sorted(each) for each in rows(found, "train")] == [[0, 2], [1, 3]]
    assert (rows(found, "valid"), rows(found, "test")) == ([[4], [5]], [[6], [7]])


def with_parts(content, *, column):
    """A data set whose owners have rows in parts, e.g. ``{"a": "ttv"}``, by a column or as upstream's parts."""
    owner = [name for name, parts in content.items() for _ in parts]
    which = ["tvs".index(part) for parts in content.values() for part in parts]
    x = np.arange(float(len(owner)))[:, None]
    y = np.arange(len(owner)) % 2
    if column:
        table = {"x": x[:, 0], "kind": y, "who": owner, "part": np.array(["train", "valid", "test"])[which]}
        return dataset_from_frame(table, label="kind", client="who", part="part")
    chosen = [[place for place, part in enumerate(which) if part == each] for each in range(3)]
    return assemble(
        [
            Piece(x[rows], y[rows], [owner[row] for row in rows], test=each == 2, valid=each == 1)
            for each, rows in enumerate(chosen)
        ]
    )


def held(federation):
    """The features of the server's rows."""
    x = np.asarray(federation.examples.x)[:, 0]
    return {name: sorted(x[np.asarray(rows.index)].tolist()) for name, rows in federation.held.items()}


@pytest.mark.parametrize("column", [False, True])
def test_rows_of_owners_who_do_not_train_are_the_servers(column):
    made = with_parts({"a": "tttts", "b": "ss", "c": "tts", "z": "vv", "w": "vs"}, column=column)
    usual = federate(made, "natural")
    assert usual.names.clients == ("a", "c")
    assert held(usual) == {"test": [5, 6, 13], "validation": [10, 11, 12]}
    assert (everything(usual), rows(usual, "test")) == ([[0, 1, 2, 3, 4], [7, 8, 9]], [[4], [9]])
    found = federate(made, "natural", unseen="test")
    assert (found.names.clients, found.names.unseen) == (("a", "c"), ("b", "w"))
    assert held(found) == {"validation": [10, 11]}
    assert everything(found, unseen=True) == [[5, 6], [12, 13]]
    assert [len(each) for each in rows(found, "train", unseen=True)] == [1, 1]
    assert [rows(found, part) for part in ("train", "test")] == [rows(usual, part) for part in ("train", "test")]
    named = federate(made, "natural", unseen=["z"])
    assert (named.names.unseen, held(named)) == (("z",), {"test": [5, 6, 13], "validation": [12]})
    with pytest.raises(ValueError, match="expected held_fraction of 0 for data with validation rows of the server"):
        federate(made, "natural", held_fraction=0.5)


@pytest.mark.parametrize("column", [False, True])
def test_seen_clients_keep_their_split_when_only_others_have_tests(column):
    made = with_parts({"a": "tttt", "b": "ss", "c": "tttt"}, column=column)
    usual, found = (federate(made, "natural", unseen=unseen, seed=4) for unseen in (0, "test"))
    assert held(usual) == {"test": [4, 5]}
    assert rows(usual, "test") == rows(found, "test")
    assert all(len(each) for each in rows(found, "test"))
    everybody = federate(made, "natural", test="global")
    assert everything(everybody)[0] == [0, 1, 2, 3, 4, 5]


def test_validation_rows_alone_make_no_unseen_client():
    made = with_parts({"a": "tts", "z": "vv"}, column=True)
    with pytest.raises(ValueError, match="expected owners whose rows are all test rows for unseen='test', got none"):
        federate(made, "natural", unseen="test")


@pytest.mark.parametrize(("valid", "parts"), [("", [2, 1, 2]), ("v", [3, 0, 2])])
def test_named_unseen_clients_without_test_rows_are_split(valid, parts):
    made = with_parts({"east": f"tttt{valid}s", "west": "ttttt"}, column=True)
    found = federate(made, "natural", unseen=["west"], train_fraction=0.6, valid_fraction=0.4)
    assert [len(rows(found, part, unseen=True)[0]) for part in ("train", "valid", "test")] == parts
    assert rows(found, "test") == [[5 if valid else 4]]


def test_drawn_unseen_clients_without_test_rows_are_split():
    made = with_parts({"east": "tttt", "mid": "ttttv", "west": "tttts"}, column=True)
    found = [federate(made, "natural", unseen=1, seed=seed) for seed in range(8)]
    assert {each.names.unseen for each in found} == {("east",), ("mid",), ("west",)}
    for each in found:
        assert rows(each, "train", unseen=True)[0]
        assert rows(each, "test", unseen=True)[0]
        assert rows(each, "valid", unseen=True) == ([[8]] if each.names.unseen == ("mid",) else [[]])
