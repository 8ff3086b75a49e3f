"""Scores of a task: the values of scikit-learn's own functions, and rows of which a score says nothing."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn import metrics as sklearn

from fljax.metrics import SCORES, Score
from fljax.metrics.scores import (
    NoValue,
    Predicted,
    log_odds,
    probabilities,
    rare_class,
    score_name,
    scores_of,
    scores_of_clients,
    sentences_of,
    value_of,
)

RNG = np.random.default_rng(0)
BINARY = np.array([0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]), RNG.normal(size=(12, 2))
SEVERAL = RNG.integers(0, 4, 40), RNG.normal(size=(40, 4))
WITH_GAP = np.array([0, 2, 0, 2, 2, 0]), RNG.normal(size=(6, 4))  # classes 1 and 3 have no rows


def _expected(name: str, labels: np.ndarray, logits: np.ndarray, rare: int) -> Any:
    """What scikit-learn says of the probabilities."""
    p, predicted = softmax(logits, axis=1), logits.argmax(axis=1)
    if name == "auroc":
        return sklearn.roc_auc_score(labels, p[:, 1] if p.shape[1] == 2 else p, multi_class="ovr")
    if name == "average_precision":
        one_hot = labels if p.shape[1] == 2 else np.eye(p.shape[1])[labels]
        return sklearn.average_precision_score(one_hot, p[:, 1] if p.shape[1] == 2 else p)
    if name == "f1":
        return sklearn.f1_score(labels, predicted, average="macro")
    if name == "f1_rare":
        return sklearn.f1_score(labels, predicted, labels=[rare], average="macro")
    return sklearn.balanced_accuracy_score(labels, predicted)


@pytest.mark.parametrize("name", [name for name, score in SCORES.items() if score.wants != "matrix"])
@pytest.mark.parametrize("rows", [BINARY, SEVERAL])
def test_values_are_those_of_scikit_learn(name: str, rows: Any) -> None:
    labels, logits = rows
    rare = 1
    found = value_of(SCORES[name], labels, logits, rare)
    assert found == pytest.approx(_expected(name, labels, logits, rare), rel=1e-12)


def test_classes_that_the_rows_lack_count_in_no_rank_and_no_recall() -> None:
    labels, logits = WITH_GAP
    p = softmax(logits, axis=1)
    of_present = [sklearn.roc_auc_score(labels == which, p[:, which]) for which in (0, 2)]
    assert value_of(SCORES["auroc"], labels, logits) == pytest.approx(np.mean(of_present))
    recalls = [np.mean(logits.argmax(1)[labels == which] == which) for which in (0, 2)]
    assert value_of(SCORES["balanced_accuracy"], labels, logits) == pytest.approx(np.mean(recalls))


def test_ranks_of_rows_of_which_the_model_is_sure() -> None:
    """All probabilities round to 1, and the ranks of log-odds still differ."""
    logits = np.stack([np.zeros(4), np.array([40.0, 50.0, 60.0, 70.0])], axis=1)
    labels = np.array([0, 0, 1, 1])
    assert len(np.unique(probabilities(logits)[:, 1])) < 4
    assert value_of(SCORES["auroc"], labels, logits) == 1.0


def test_log_odds_and_probabilities_by_their_definition() -> None:
    logits = RNG.normal(size=(5, 3)).astype(np.float32)
    p = softmax(logits.astype(np.float64), axis=1)
    np.testing.assert_allclose(probabilities(logits), p, rtol=1e-12)
    np.testing.assert_allclose(log_odds(logits), np.log(p / (1 - p)), rtol=1e-6)


@pytest.mark.parametrize("name", SCORES)
def test_rows_of_one_class_no_rows_and_infinite_outputs_have_no_score(name: str) -> None:
    _, logits = BINARY
    assert np.isnan(value_of(SCORES[name], np.zeros(12, int), logits, 1))
    assert np.isnan(value_of(SCORES[name], np.zeros(0, int), logits[:0], 1))
    broken = logits.copy()
    broken[3, 0] = np.inf
    assert np.isnan(value_of(SCORES[name], BINARY[0], broken, 1))


def test_the_rare_class_has_the_fewest_real_rows() -> None:
    def rare(labels: Any, *size: int) -> int | None:
        none = np.zeros(0)
        return rare_class([Predicted(none, np.array(labels), np.array(size), none)])

    assert rare([[0, 0, 1, 3], [0, 1, 2, 3]], 3, 3) == 2  # the last columns are padding
    assert rare([[0, 0, 1, 3]], 3) == 1
    assert rare([[0, 0, 1, 1]], 4) == 1  # of equal ones the last
    assert rare([[0, 0, 1, 3]], 0) is None


def _mae(labels: np.ndarray, values: np.ndarray) -> Any:
    return np.mean(np.abs(labels - values[..., -1]))


def _predicted() -> Predicted:
    """Three clients with room for 12 rows: one has one class only, one does not count."""
    labels = np.stack([BINARY[0], np.zeros(12, int), BINARY[0]])
    outputs = np.stack([BINARY[1], RNG.normal(size=(12, 2)), BINARY[1]]).astype(np.float32)
    return Predicted(outputs, labels, np.array([10, 4, 12]), np.array([True, True, False]))


def test_by_client_on_average_and_pooled() -> None:
    predicted = _predicted()
    chosen = scores_of(["auroc", Score("mae", _mae, lower=True)])
    found = scores_of_clients(chosen, predicted, 1)
    p = softmax(predicted.outputs.astype(np.float64), axis=-1)
    first, second = (predicted.labels[0, :10], p[0, :10]), (predicted.labels[1, :4], p[1, :4])
    auroc = sklearn.roc_auc_score(first[0], first[1][:, 1])
    np.testing.assert_allclose(found["score_auroc"], [auroc, np.nan, np.nan])
    assert found["average_score_auroc"] == pytest.approx(auroc)
    pooled = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
    assert found["pooled_score_auroc"] == pytest.approx(sklearn.roc_auc_score(pooled[0], pooled[1][:, 1]))
    errors = [_mae(*first), _mae(*second)]
    np.testing.assert_allclose(found["score_mae"], [*errors, np.nan])
    assert found["pooled_score_mae"] == pytest.approx(_mae(*pooled))
    assert "lower is better" in sentences_of(chosen)["score_mae"]


@given(st.integers(2, 5), st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(0, 10**6), st.booleans())
def test_confusion_counts_the_rows_of_each_client(classes: int, sizes: list[int], number: int, broken: bool) -> None:
    draw, size = np.random.default_rng(number), np.array(sizes)
    labels, logits = draw.integers(0, classes, (len(size), 12)), draw.normal(size=(len(size), 12, classes))
    logits[0, 0] = np.nan if broken else 0
    (found,) = scores_of_clients(scores_of(["confusion"]), Predicted(logits, labels, size, size > 0)).values()
    for client, rows in enumerate(size):
        y, p = labels[client, :rows], logits[client, :rows].argmax(axis=-1)
        counts = sklearn.confusion_matrix(y, p, labels=range(classes)) if rows else np.zeros((classes, classes))
        expected = np.full_like(counts, np.nan, float) if broken and client == 0 and rows else counts
        np.testing.assert_array_equal(found[client], expected)


def test_outputs_of_a_task_without_classes_reach_a_function_as_they_are() -> None:
    outputs, labels = np.array([[[1.0], [2.5], [9.0]]]), np.array([[1.0, 2.0, 0.0]])
    predicted = Predicted(outputs, labels, np.array([2]), np.array([True]))
    found = scores_of_clients(scores_of([_mae]), predicted, classes=False)
    assert (found["score__mae"].tolist(), found["pooled_score__mae"]) == ([0.25], 0.25)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["aurok"], "expected one of the scores auroc, .*, got 'aurok' .did you mean 'auroc'"),
        ("auroc", "expected a list of scores, got 'auroc'"),
        (["auroc", "auroc"], "expected scores of different names, got 'auroc' twice"),
        (["math:pi"], "expected a score to be a function .labels, probabilities. -> float, or a name, got 'math:pi'"),
        ([lambda labels, values: 0.0], "a name of letters, digits and underscores, got '<lambda>'"),
    ],
)
def test_what_is_no_score_is_refused(asked: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        scores_of(asked)


def test_a_function_that_fails_for_a_client_has_no_value_there() -> None:
    """What it returns or raises elsewhere counts; ``failed`` hears of each client, and of all rows."""
    wrong = {"none": None, "text": "0.5", "pair": (1.0, 2.0), "array": np.ones(1), "bool": True, "complex": 1j}
    failed: list[tuple[str, int | None, str]] = []

    def fails(labels: np.ndarray, values: np.ndarray) -> Any:
        return 1.0 if labels.any() else {}["rows"]

    chosen = scores_of([Score(name, lambda *_, value=value: value) for name, value in wrong.items()] + [fails])
    found = scores_of_clients(chosen, _predicted(), failed=lambda *what: failed.append(what))
    for name in wrong:
        assert np.isnan(found[f"score_{name}"]).all(), name
        assert np.isnan(found[f"pooled_score_{name}"]), name
        assert [client for score, client, _ in failed if score == name] == [0, 1, None], name
    np.testing.assert_array_equal(found["score_fails"], [1, np.nan, np.nan])
    assert (found["average_score_fails"], found["pooled_score_fails"]) == (1, 1)
    assert [what[:2] for what in failed if what[0] == "fails"] == [("fails", 1)]
    assert "KeyError: 'rows' (tests/metrics/test_scores.py:" in failed[-1][2]
    assert {got for name, _, got in failed if name == "array"} == {"an array of float64 of shape [1]"}


def test_no_score_changes_what_the_next_one_gets() -> None:
    def sorts(labels: np.ndarray, values: np.ndarray) -> float:
        labels.sort()
        values[:] = 0
        return float(labels[0])

    frozen = Predicted(*(np.asarray(jax.numpy.asarray(leaf)) for leaf in _predicted()))  # arrays that are read-only
    for classes in (True, False):
        found, alone = (
            scores_of_clients(scores_of(list(s)), frozen, classes=classes) for s in ((sorts, _mean), (_mean,))
        )
        np.testing.assert_array_equal(found["score_sorts"], [0, 0, np.nan])
        np.testing.assert_array_equal(found["score__mean"], alone["score__mean"])
        assert found["pooled_score__mean"] == alone["pooled_score__mean"]


def _mean(labels: np.ndarray, values: np.ndarray) -> float:
    return float(np.mean(labels[:, None] * values))


@pytest.mark.parametrize("function", [lambda labels, values: values.shapes, lambda labels, values: "much"])
def test_a_function_that_fails_is_named(function: Any) -> None:
    with pytest.raises(NoValue, match="expected the score 'mine' to return a number for 12 rows, got"):
        value_of(Score("mine", function), *BINARY)


def test_names_of_scalars() -> None:
    assert score_name("unseen_pooled_score_f1_rare") == "f1_rare"
    assert score_name("average_score_auroc") == "auroc"
    assert score_name("average_accuracy") is None
