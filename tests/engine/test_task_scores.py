"""Scores of the task in results: from the evaluation's own models, at chosen evaluations, and only where asked for."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import f1_score, roc_auc_score

from fljax import engine
from fljax.algorithms import fedavg, standalone
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.devices.layout import Layout
from fljax.engine.loop import trained
from fljax.engine.offload import run as offload
from fljax.engine.offload.host_data import SplitsRead
from fljax.engine.programs.program import partition_plan, predictions
from fljax.engine.programs.shapes import measure
from fljax.engine.rounds.states import by_id
from fljax.metrics import Score
from fljax.training import Local
from tests.refusals import refuses
from tests.toys.federation import TEST, tiny_federation
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.in_turn

TASK, LOCAL = logistic_regression(), Local(0.5, batch_size=2, steps=2)
FEDERATION, SEEDS = by_id(tiny_federation()), (5, 9)
SCORES = ("auroc", "f1", "confusion")


def _simulate(build: Any = fedavg, **arguments: Any) -> Any:
    own = {"clients_per_round": 3} if build is fedavg else {}
    plan = engine.Plan(build, {"task": TASK, "local": LOCAL, **own})
    return engine.simulate(plan, FEDERATION, **{"rounds": 4, "seeds": SEEDS, "evaluate_every": 1} | arguments)


@pytest.fixture(scope="module")
def result() -> Any:
    return _simulate(scores=SCORES)


def _rows(client: int, unseen: bool = False) -> tuple[np.ndarray, np.ndarray]:
    test = (FEDERATION.unseen if unseen else FEDERATION.clients).test  # type: ignore[union-attr]
    index = np.asarray(test.index)[client, : int(test.size[client])]
    return np.asarray(FEDERATION.examples.x)[index], np.asarray(FEDERATION.examples.y)[index]


def _auroc(labels: np.ndarray, logits: Any) -> float:
    p = softmax(np.asarray(logits, np.float64), axis=1)
    present = np.unique(labels)
    if len(present) < 2:
        return float("nan")
    return float(np.mean([roc_auc_score(labels == which, p[:, which]) for which in present]))


@pytest.mark.parametrize("unseen", [False, True])
def test_scores_are_of_the_models_that_clients_would_use(result: Any, unseen: bool) -> None:
    prefix, clients = ("unseen_", 2) if unseen else ("", 5)
    last = result.metrics.isel(evaluated_round=-1)
    for place in range(len(SEEDS)):
        rows = [_rows(client, unseen) for client in range(clients)]
        logits = [result.predict(client, x, seed=place, unseen=unseen) for client, (x, _) in enumerate(rows)]
        expected = [_auroc(y, of_client) for (_, y), of_client in zip(rows, logits, strict=True)]
        found = last[f"{prefix}score_auroc"].isel(seed=place)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        np.testing.assert_allclose(last[f"{prefix}average_score_auroc"][place], np.nanmean(expected), rtol=1e-6)
        y, z = np.concatenate([y for _, y in rows]), np.concatenate(logits)
        np.testing.assert_allclose(last[f"{prefix}pooled_score_auroc"][place], _auroc(y, z), rtol=1e-6)
        f1 = f1_score(y, z.argmax(axis=1), average="macro", zero_division=0.0)  # pyright: ignore[reportArgumentType]
        np.testing.assert_allclose(last[f"{prefix}pooled_score_f1"][place], f1, rtol=1e-6)


def test_the_diagonal_of_a_confusion_matrix_is_the_accuracy(result: Any) -> None:
    for prefix, axis in (("", "client"), ("unseen_", "unseen")):
        found = result.metrics[f"{prefix}score_confusion"]
        assert found.dims == ("seed", "evaluated_round", axis, "label", "predicted")
        assert found[:, :-1].isnull().all()
        right = np.trace(found[:, -1], axis1=2, axis2=3) / found[:, -1].sum(("label", "predicted"))
        np.testing.assert_allclose(right, result.metrics[f"{prefix}test_accuracy"][:, -1], rtol=1e-6)
    wide = TASK._replace(classes=2**10)
    with pytest.raises(
        ValueError, match=r"at most 1,048,576 numbers .clients x classes.2. of confusion, got 5,242,880"
    ):
        engine.simulate(fedavg(wide, LOCAL), FEDERATION, rounds=1, scores=["confusion"])


def test_only_the_last_evaluation_has_scores_unless_more_are_asked_for(result: Any) -> None:
    def scored(result: Any) -> list[int]:
        there = np.isfinite(result.metrics.pooled_score_auroc.values).all(axis=0)
        return result.metrics.evaluated_round.values[there].tolist()

    assert result.metrics.score_auroc.dims == ("seed", "evaluated_round", "client")
    assert scored(result) == [4]
    assert scored(_simulate(scores=SCORES, score_every=2)) == [0, 2, 4]
    # A run that is stopped has those of its last evaluation.
    stopped = _simulate(scores=SCORES, callbacks=[lambda block: block.round == 2])
    assert scored(stopped) == [2]
    assert scored(_simulate(scores=SCORES, rounds=0)) == [0]


@pytest.mark.parametrize(("before", "rounds", "every", "score_every"), [(3, 20, None, 1), (3, 9, 2, 2), (4, 9, 2, 2)])
def test_a_run_that_goes_on_has_scores_as_often(before: int, rounds: int, every: Any, score_every: int) -> None:
    begun = _simulate(rounds=before, evaluate_every=before).state
    more = {"rounds": rounds, "evaluate_every": every, "initial": begun}
    found = _simulate(**more, scores=["f1"], score_every=score_every).metrics
    has = ~np.isnan(found["pooled_score_f1"].values).all(axis=0)
    places = np.flatnonzero(has[1:-1])  # between the first and the last
    assert len(places)
    assert set(np.diff(places)) <= {score_every}


def test_what_variables_say_of_themselves(result: Any) -> None:
    assert result.metrics.score_auroc.attrs["lower"] == 0
    assert "higher is better" in result.metrics.score_auroc.attrs["long_name"]


@pytest.mark.quick
def test_nothing_is_computed_where_no_score_is_asked_for(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(trained, "predictions", never)
    plain = _simulate()
    assert not [name for name in plain.metrics if "score" in str(name)]
    np.testing.assert_array_equal(plain.metrics.test_loss, result.metrics.test_loss)


def test_blocks_on_the_host_predict_what_all_clients_together_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up states with a model per client, two clients at a time; evaluations read no rows here."""
    monkeypatch.setattr(offload, "splits_read_by", lambda *_: SplitsRead((), (), ("train",), (), ()))
    plan = engine.Plan(standalone, {"task": TASK, "local": LOCAL})
    spec, inputs = partition_plan(plan, FEDERATION)
    shapes, draw, seeds = measure(spec, inputs, 2), np.random.default_rng(0), jnp.asarray(SEEDS, jnp.uint32)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape), leaf.dtype), shapes.state)
    models = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), leaf.dtype), zeros.clients)
    state = zeros._replace(seed=seeds, clients=models)
    layout = Layout(2, 1, 2)
    host = offload.OffloadRun.of(spec, layout._replace(examples="host", client_states="host"), 1, inputs, seeds, shapes)
    assert host.sizes.predict_seen.clients == 2
    found = host.predictions(host.placed(state))
    expected = predictions(spec, layout, inputs, state, jnp.int32(0))
    assert set(found) == set(expected) == {"client", "unseen"}
    for population, predicted in found.items():
        whole = expected[population]
        np.testing.assert_array_equal(predicted.size, whole.size)
        np.testing.assert_array_equal(predicted.counts, whole.counts)
        real = np.arange(predicted.labels.shape[-1]) < predicted.size[..., None]
        np.testing.assert_array_equal(predicted.labels[real], np.asarray(whole.labels)[real])
        np.testing.assert_allclose(predicted.outputs[real], np.asarray(whole.outputs)[real], rtol=1e-5, atol=1e-6)


def test_a_personal_model_is_judged_where_there_is_one() -> None:
    result = _simulate(standalone, rounds=1, scores=["auroc"])
    for client in range(5):
        x, y = _rows(client)
        expected = _auroc(y, result.predict(client, x, seed=1))
        np.testing.assert_allclose(result.metrics.score_auroc[1, -1, client], expected, rtol=1e-6)


def _count(labels: np.ndarray, probabilities: np.ndarray) -> float:
    return float(len(labels))


def test_plans_that_run_together_and_functions_of_ones_own() -> None:
    plans = [
        engine.Plan(fedavg, {"task": TASK, "local": LOCAL._replace(learning_rate=rate), "clients_per_round": 3})
        for rate in (0.5, 0.1)
    ]
    chosen = ["auroc", Score("rows", _count, lower=True)]
    first, second = engine.sweep(plans, FEDERATION, rounds=4, seeds=SEEDS, evaluate_every=1, scores=chosen)
    alone = _simulate(scores=["auroc"])
    np.testing.assert_allclose(first.metrics.score_auroc, alone.metrics.score_auroc, rtol=1e-5)
    assert not np.array_equal(first.metrics.score_auroc, second.metrics.score_auroc, equal_nan=True)
    assert first.metrics.score_rows[0, -1].values.tolist() == list(TEST)
    assert first.metrics.pooled_score_rows.attrs["lower"] == 1


def test_a_run_goes_on_after_a_checkpoint_with_the_same_scores(tmp_path: pathlib.Path, result: Any) -> None:
    settings = Checkpoint(tmp_path, every=0)
    arguments: dict[str, Any] = {"scores": SCORES, "score_every": 2, "checkpoint": settings}
    _simulate(**arguments, callbacks=[lambda block: block.round == 3])
    found = _simulate(**arguments)
    assert np.isfinite(found.metrics.pooled_score_auroc.values[:, [0, 2]]).all()
    refuses(lambda: _simulate(checkpoint=settings), "scores")
    same_names = [Score("auroc", lambda labels, predictions: 0.0), *SCORES[1:]]
    refuses(lambda: _simulate(**arguments | {"scores": same_names}), "scores is")
