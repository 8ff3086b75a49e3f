"""number_labels: labels of any dtype as numbers of classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.data.labels import join_labels, number_labels, plain_labels
from tests.drawn import at_most


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
    assert made.y.tolist() == numbers
    assert made.y.dtype == np.int32
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


@pytest.mark.parametrize(
    ("labels", "options", "words"),
    [
        ([1, None], {}, "expected a label in each row, got none in 1 of 2 rows"),
        (np.array(["a", float("nan")], object), {}, "expected a label in each row"),
        (np.array([1, "a"], object), {}, "expected labels of one kind, got a whole number and text"),
        (np.array([True, 2], object), {}, "expected labels of one kind, got a bool and a whole number"),
        (np.array([1j]), {}, "expected labels to be numbers, bools or text, got complex128"),
        (np.array([np.nan, 1.0]), {}, "expected finite labels"),
        (["a"], {"regression": True}, "expected numbers as labels for a regression, got text"),
        ([0, 1], {"regression": True, "classes": 2}, "expected classes or regression=True, got both"),
        (["a", "b", "c"], {"classes": 2}, "expected at most 2 different labels"),
        ([0.5], {"classes": 2}, "expected whole numbers or text as labels of 2 classes"),
        (np.arange(1000) * 3, {}, r"expected regression=True .* 1000 different whole numbers in 1000 rows"),
        (np.array([["a"]]), {}, "expected numbers where each row has several labels, got text"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(labels, options, words):
    with pytest.raises(ValueError, match=words):
        number_labels(labels, **options)


def test_parts_of_several_kinds_are_not_joined():
    assert join_labels([np.array([1], np.uint64), np.array([-1])], ["a", "b"]).tolist() == [1, -1]
    with pytest.raises(ValueError, match="expected labels alike in all clients"):
        join_labels([np.array([1]), np.array([0.5])], ["a", "b"])
    with pytest.raises(ValueError, match=r"expected labels alike in all clients, got text .* of 'a' and int64"):
        join_labels([np.array(["x"]), np.array([1])], ["a", "b"])


KINDS = st.sampled_from([st.text(max_size=3), st.booleans(), st.integers(-5, 5), st.integers(0, 2**63)])


@at_most(100)
@given(labels=KINDS.flatmap(lambda kind: st.lists(kind, min_size=1, max_size=8)))
def test_names_give_the_labels_back(labels):
    labels = [each.rstrip("\0") if isinstance(each, str) else each for each in labels]  # NumPy drops these at the end
    made = number_labels(labels)
    names = range(made.classes or 0) if made.names is None else made.names
    assert [names[number] for number in made.y.tolist()] == labels
    assert plain_labels(labels).tolist() == labels
