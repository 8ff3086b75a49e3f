"""Functions of users: wrong ones are refused by name before anything is trained, and failures later lose no results."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import pathlib
from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import numpy as np
import pytest
import scipy.sparse
from sklearn import metrics as sklearn

import fljax
from fljax import algorithms, contributions, data, games, models
from fljax.engine.callbacks import track
from tests.refusals import refuses

DRAW = np.random.default_rng(0)
X, OWNERS = DRAW.normal(size=(60, 4)).astype("float32"), np.repeat(["north", "south", "west"], 20)
Y = np.where(OWNERS == "west", 0, X[:, 0] > 0).astype("int32")  # west has one class
FEDERATION = data.from_arrays(X, Y, OWNERS, valid_fraction=0.2)
TASK, LOCAL = models.logistic_regression((4,), 2), fljax.Local(0.1, 8, steps=1)
FEDAVG = algorithms.fedavg(TASK, LOCAL, clients_per_round=None)


class Trained(Exception):
    """A round was done, although a function is wrong."""


def never(block: fljax.Block) -> None:
    raise Trained(block.round)


def simulate(algorithm: Any = FEDAVG, **options: Any) -> Any:
    return fljax.simulate(algorithm, FEDERATION, **{"rounds": 3, "evaluate_every": 1, "callbacks": [never]} | options)


WRONG: dict[str, Callable[..., Any]] = {
    "None": lambda *_, **__: None,
    "text": lambda *_, **__: "0.5",
    "a pair": lambda *_, **__: (1.0, 2.0),
    "objects": lambda *_, **__: {"a": [None]},
    "complex": lambda *_, **__: 1j,
    "another shape": lambda *_, **__: np.zeros((7, 3)),
    "an error": lambda *_, **__: {}["nope"],
    "no arguments": lambda: 1.0,
}
PLAN = fljax.Plan(algorithms.fedavg, {"task": TASK, "local": LOCAL, "clients_per_round": None})
EVERYBODY = fljax.Over(member=np.ones((1, 3), bool))
KEY = jax.random.key(0)


def compare(name: Any = "fedavg", **options: Any) -> Any:
    how = {"rounds": 1, "callbacks": [never], "progress": False}
    return fljax.compare([name], FEDERATION, TASK, LOCAL, **how | options)


def task(**options: Any) -> Any:
    return simulate(algorithms.fedavg(models.task_from_module(nn.Dense(2), X[:1], **options), LOCAL))


def module_of(mine: Callable[..., Any]) -> nn.Module:
    class mine_(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return mine(nn.Dense(2)(x))

    return mine_()


def game(mine: Callable[..., Any]) -> Any:
    return contributions.estimate("permutation_shapley", contributions.CachedGame(mine, 3), key=KEY)


# Where a function of a user is taken: what is done with it.
PLACES: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "score of simulate": lambda mine: simulate(scores=[mine]),
    "score of classes": lambda mine: simulate(scores=[fljax.metrics.Score("mine", mine, wants="classes")]),
    "score of compare": lambda mine: compare(scores=[mine]),
    "loss": lambda mine: task(loss=mine),
    "loss with labels": lambda mine: task(loss=mine, example_y=Y[:1]),
    "score of a task": lambda mine: task(score=mine),
    "score with labels": lambda mine: task(score=mine, example_y=Y[:1]),
    "prepare": lambda mine: task(prepare=mine),
    "augment": lambda mine: task(augment=mine),
    "module": lambda mine: models.task_from_module(module_of(mine), X[:1]),
    "nnx module": lambda mine: models.task_from_module(mine, X[:1]),
    "optimizer": lambda mine: simulate(algorithms.fedavg(TASK, LOCAL._replace(optimizer=mine))),
    "partition": lambda mine: data.federate(data.dataset(X, Y), mine, clients=3),
    "data": lambda mine: data.load(mine),
    "measure of rounds": lambda mine: simulate(algorithms.iafl(TASK, LOCAL, contribution=mine, clients_per_round=3)),
    "requirement": lambda mine: compare("incfl", requirement=mine),
    "value of coalitions": lambda mine: games.coalitions(PLAN, FEDERATION, rounds=1, value=mine),
    "utility": lambda mine: games.payoffs(PLAN, FEDERATION, rounds=1, utility=mine),
    "measure of runs": lambda mine: fljax.runs(PLAN, FEDERATION, EVERYBODY, rounds=1, measure=mine),
    "value of a game": lambda mine: contributions.exact_shapley(mine, 3),
    "value of orders": lambda mine: contributions.monte_carlo_shapley(KEY, mine, 3, 4),
    "value of a cached game": game,
}


@pytest.mark.unchecked
@pytest.mark.sampled(4)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("place", PLACES)
def test_a_wrong_function_is_refused_by_name_before_training(place: str, wrong: str) -> None:
    def mine(*arguments: Any, **keywords: Any) -> Any:
        return WRONG[wrong](*arguments, **keywords)

    mine.__qualname__ = "mine"  # as of a module's function
    mine.__signature__ = inspect.signature(WRONG[wrong])  # type: ignore[attr-defined]
    if (place, wrong) == ("requirement", "no arguments"):
        return  # it is asked for what it has parameters for
    assert "\n" not in refuses(lambda: PLACES[place](mine), "mine", (ValueError, fljax.AlgorithmError))


def strict(labels: np.ndarray, probabilities: np.ndarray) -> float:
    if len(np.unique(labels)) < 2:
        raise ValueError("one class")
    return float(np.mean(probabilities[:, 1]))


@pytest.mark.parametrize("error", [AssertionError("rows"), IndexError("200 is out of bounds for axis 0"), ValueError()])
def test_rows_that_are_made_refuse_no_score(error: Exception) -> None:
    def mine(labels: np.ndarray, outputs: np.ndarray) -> float:
        if len(labels) not in (8, 24):  # rows of a client, and of all
            raise error
        return float(np.mean(outputs))

    with pytest.warns(
        RuntimeWarning, match=f"'mine' .* made rows, got {type(error).__name__}.*the run goes on"
    ) as told:
        found = simulate(scores=[fljax.metrics.Score("mine", mine)], rounds=0, callbacks=[])
    assert len(told) == 1
    assert np.isfinite(found.metrics.score_mine).all()


@pytest.mark.parametrize("error", [NameError("x"), KeyError(1), IndexError("index 5 is out of bounds for axis 1")])
def test_a_mistake_that_no_rows_mend_is_refused(error: Exception) -> None:
    def mine(labels: np.ndarray, outputs: np.ndarray) -> float:
        raise error

    with pytest.raises(ValueError, match=f"'mine' .* made rows, got {type(error).__name__}"):
        simulate(scores=[fljax.metrics.Score("mine", mine)])


@pytest.mark.parametrize(
    "score", [sklearn.mean_poisson_deviance, sklearn.mean_squared_log_error, sklearn.brier_score_loss]
)
def test_a_score_without_classes_is_tried_on_what_the_model_gives(score: Any) -> None:
    class Positive(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.sigmoid(nn.Dense(1)(x))[:, 0]

    task = models.task_from_module(Positive(), X[:1], loss=models.squared_error)
    federation = data.from_arrays(X, (X[:, 0] > 0).astype("float32"), OWNERS)
    algorithm = algorithms.fedavg(task, LOCAL, clients_per_round=None)
    found = fljax.simulate(algorithm, federation, rounds=0, scores=[score])  # warnings are errors here
    assert np.isfinite(found.metrics[f"pooled_score_{score.__name__}"]).all()


@pytest.mark.parametrize("score_every", [None, 1])
def test_a_score_that_fails_for_one_client_loses_nothing(score_every: int | None) -> None:
    words = r"the score 'strict' .* for client west, got ValueError: one class \(.*py:\d+\); it is NaN there"
    with pytest.warns(RuntimeWarning, match=words) as told:
        found = simulate(scores=[strict], score_every=score_every, callbacks=[])
    assert len(told) == 1
    assert np.isnan(found.metrics.score_strict[0, -1]).values.tolist() == [False, False, True]
    assert np.isfinite([found.metrics[name][0, -1] for name in ("pooled_score_strict", "average_score_strict")]).all()
    assert "client west" in found.metrics.score_strict.attrs["failed"]
    assert (int(found.metrics.rounds_done), found.records.sizes["round"]) == (3, 3)
    np.testing.assert_array_equal(found.metrics.test_loss, simulate(callbacks=[]).metrics.test_loss)


@pytest.mark.in_turn
@pytest.mark.parametrize("options", [{}, {"scores": ["auroc"]}])
def test_an_error_of_a_callback_ends_the_run_and_has_the_results_until_then(options: Any) -> None:
    def at_two(block: fljax.Block) -> None:
        if block.round == 2:
            raise KeyError("nope")

    with pytest.raises(KeyError, match="nope") as caught:
        simulate(callbacks=[at_two], **options)
    (found,) = caught.value.results  # type: ignore[attr-defined]
    expected = simulate(callbacks=[], rounds=2, **options)
    assert (int(found.metrics.rounds_done), found.records.sizes["round"]) == (2, 2)
    for name in ("test_loss", "score_auroc") if options else ("test_loss",):
        np.testing.assert_array_equal(found.metrics[name], expected.metrics[name])
    np.testing.assert_array_equal(found.predict(2, X[:3]), expected.predict(2, X[:3]))


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    why: str


@pytest.mark.in_turn
@pytest.mark.parametrize("error", [Frozen("nope"), KeyboardInterrupt("nope")])
def test_any_error_of_a_callback_has_the_results(error: BaseException) -> None:
    def mine(block: Any) -> None:
        if 2 in (getattr(block, "round", 0), getattr(block, "done", 0)):
            raise error

    with pytest.raises(type(error), match="nope") as caught:
        simulate(callbacks=[mine])
    assert int(caught.value.results[0].metrics.rounds_done) == 2  # type: ignore[attr-defined]
    with pytest.raises(type(error), match="nope") as caught:
        fljax.runs(PLAN, FEDERATION, fljax.Over(member=np.ones((3, 3), bool)), rounds=1, block=1, on_block=mine)
    assert np.isfinite(caught.value.results.test_loss).all("client").values.tolist() == [[True], [True], [False]]  # type: ignore[attr-defined]


def deviating(message: Any, knowledge: Any) -> Any:
    raise KeyError("nope")


NONE: Callable[..., Any] = lambda *_, **__: None  # noqa: E731


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "words"),
    [
        *[
            (lambda run=run, bad=bad: run(callbacks=bad), words)
            for run in (simulate, compare)
            for bad, words in [
                (print, "expected callbacks to be a list of functions of a Block, got <built-in function print>"),
                (None, "expected callbacks to be a list of functions of a Block, got None"),
                ("tensorboard", "a list of functions of a Block, got 'tensorboard'"),
                ([None], "a list of functions of a Block, got \\[None\\]"),
                (["tensorboard"], "a list of functions of a Block, got \\['tensorboard'\\]"),
                ([lambda: None], r"expected the callback <lambda> to take \(block\), got \(\)"),
                ([lambda a, b: None], r"to take \(block\), got \(a, b\)"),
            ]
        ],
        *[
            (lambda bad=bad: simulate(evaluate_at=bad), "expected evaluate_at to be a list of whole numbers, got")
            for bad in (2, "1", [2.0], None, [True], [None])
        ],
        *[
            (lambda run=run, bad=bad: run(extra_metrics=bad), words)
            for run in (simulate, compare)
            for bad, words in [
                ([print], "expected one of the extra metrics .*, got <built-in function print>"),
                ([{}], "expected one of the extra metrics .*, got {}"),
                (print, "expected a list of metrics, got"),
                (None, "expected a list of metrics, got None"),
            ]
        ],
        (lambda: compare(lambda task, local: None), "expected the builder <lambda> to return an Algorithm, got None"),
        (lambda: compare(("fedavg", {}, [NONE])), "expected the scenario <lambda> to return an Algorithm, got None"),
        (lambda: simulate(fljax.Plan(NONE)), "expected the builder <lambda> to return an Algorithm, got None"),
        (lambda: track(logging.getLogger()), r"expected the tracker's log to take \(values, step=\), got \(level"),
        (
            lambda: games.payoffs(PLAN, FEDERATION, rounds=1, deviations={"mine": deviating}),
            "the deviation deviating raised KeyError",
        ),
        (
            lambda: games.payoffs(PLAN, FEDERATION, rounds=1, deviations={"mine": cast(Any, task)}),
            r"expected the deviation task to take \(message, knowledge\), got",
        ),
    ],
)
def test_what_is_asked_of_a_run_is_refused_in_one_sentence(call: Any, words: str) -> None:
    assert "\n" not in refuses(call, words, (ValueError, fljax.AlgorithmError))


@pytest.mark.in_turn
def test_an_error_in_a_comparison_keeps_the_algorithms_before() -> None:
    calls: list[int] = []

    def second(block: fljax.Block) -> None:
        calls.append(block.round)
        if len(calls) > 1:
            raise KeyError("nope")

    with pytest.raises(KeyError) as caught:
        fljax.compare(["fedavg", "scaffold"], FEDERATION, TASK, LOCAL, rounds=1, callbacks=[second], progress=False)
    found = caught.value.comparison  # type: ignore[attr-defined]
    assert list(found.results) == ["fedavg"]
    assert len(caught.value.results) == 1  # type: ignore[attr-defined]


def test_only_true_stops_a_run() -> None:
    """What writes may return something."""
    answers: list[Any] = [12, "x", (True,), np.ones(3, bool), None, False]
    assert int(simulate(callbacks=[lambda block, answer=each: answer for each in answers]).metrics.rounds_done) == 3
    for answer in (True, np.True_, jax.numpy.asarray(True)):
        assert int(simulate(callbacks=[lambda block, answer=answer: answer]).metrics.rounds_done) == 1


def test_a_tracker_that_fails_after_some_rounds_ends_nothing(tmp_path: pathlib.Path) -> None:
    class Server:
        def __init__(self, works: int) -> None:
            self.works, self.steps = works, list[int]()

        def log(self, values: Any, step: int) -> None:
            self.steps.append(step)
            if step >= self.works:
                raise ConnectionError("no answer")

    server = Server(works=2)
    callbacks = [track(server), fljax.engine.log_to(tmp_path / "none" / "log.jsonl")]
    with pytest.warns(RuntimeWarning) as told:
        found = simulate(callbacks=callbacks)
    assert (int(found.metrics.rounds_done), server.steps) == (3, [0, 1, 2, 3])
    words = sorted(str(each.message) for each in told)
    assert len(words) == 2
    assert "log.jsonl cannot be written (FileNotFoundError" in words[0]
    assert words[1] == "values for Server cannot be written (ConnectionError: no answer); the run goes on"
    with pytest.raises(ConnectionError):
        simulate(callbacks=[track(Server(works=0)), never])


FRAME = {"a": [39, 40, 50], "b": [1, 2, 3], "who": ["u", "v", "u"], "y": [0, 1, 0]}


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.from_arrays({"a": X}, Y, OWNERS), "features to be an array .*, got a dict; .*from_frame"),
        (lambda: data.from_arrays(scipy.sparse.csr_array(X), Y, OWNERS), r"a csr_array, .* its toarray\(\)"),
        (lambda: data.dataset(np.ma.masked_less(X, 0), Y), "got a MaskedArray with masked entries"),
        (lambda: data.dataset([[1.0, 2.0], [3.0]], [0, 1]), r"features to be an array .* a list \(.*inhomogeneous"),
        (lambda: data.dataset(iter(X), Y), "got an iterator"),
        (lambda: data.dataset(X, [[0], [1, 2]]), "expected labels to be an array"),
        (lambda: data.from_arrays(X, 500 * np.arange(60), OWNERS), r"\(a regression\) as floats, or classes=29501"),
        (
            lambda: data.dataset_from_frame({**FRAME, "a": [39, "?", 50]}, label="y"),
            r"the column 'a', got none .* in row 1, counted",
        ),
        (
            lambda: data.dataset_from_frame({**FRAME, "b": ["7", "2.5", "n/a"]}, label="y", client="who"),
            r"the column 'b', got none .* in row 2",
        ),
        (lambda: models.task_from_module(nn.Dense(2), (X[:1], X[:1])), "got a tuple of 2; a module of several inputs"),
        (lambda: models.task_from_module(nn.Dense(2), X[:1], example_y=[0]), "example_y to be an array .*, got a list"),
        (lambda: games_key("0"), "expected key to be one key of jax.random, such as .*, or a seed, got '0'"),
        (lambda: games_key(0.5), "or a seed, got 0.5"),
        (lambda: games_key(True), "or a seed, got True"),
        (lambda: games_key(jax.random.split(KEY, 2)), r"to be one key of jax.random.*, got Array\(\(2,\)"),
        (lambda: games_key(jax.random.split(jax.random.PRNGKey(0), 2)), r"one key of .*, got Array\(\[\["),
    ],
)
def test_what_is_no_array_is_refused_in_one_sentence(call: Any, words: str) -> None:
    assert "\n" not in refuses(call, words)


def games_key(key: Any) -> Any:
    return contributions.estimate("permutation_shapley", contributions.CachedGame(np.sum, 3), key=key).worth


@pytest.mark.unchecked
def test_a_whole_number_is_a_key() -> None:
    for number in (3, np.int64(3), jax.numpy.asarray(3)):
        np.testing.assert_array_equal(games_key(number), games_key(jax.random.key(3)))
    found = contributions.monte_carlo_shapley(3, lambda members: members.sum(), 3, 4)  # pyright: ignore[reportArgumentType]
    assert np.shape(found) == (2, 3)
    draw: Any = fljax.aggregators.iafl_subsets
    rates, ids = np.full(4, 0.5, "f4"), np.arange(4)
    one, other = (draw(key, rates, ids=ids, present=ids >= 0) for key in (3, jax.random.key(3)))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "text", ["a,b,who,y\n1,2,u,0\n2,v,1\n", "a,y,who,b\n1,0,u,2\n2,1,v\n", "y,a,b,who\n\n0,1,2,u\n1,2,v\n"]
)
def test_a_row_that_lacks_a_cell_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(
        ValueError, match="expected 4 cells in each row, as in the line of names, got 3 in row 1, counted"
    ):
        data.load(str(tmp_path / "rows.csv"), label="y", client="who")
