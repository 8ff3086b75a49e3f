"""Sweeps: several plans in one program give what each would give alone."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data as federations
from fljax import engine
from fljax.algorithms import fedavg, incfl
from fljax.engine.loop import standalone_models
from fljax.protocol import Algorithm, Federation
from fljax.training import Local
from tests.laws.compare import assert_close, assert_same
from tests.toys.federation import tiny_federation
from tests.toys.not_finite import breaks
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)
RATES, SEEDS = (0.2, 0.05, 0.4), (5, 9)


@pytest.fixture(scope="module")
def stacked() -> Federation:
    """Ragged clients; a federation for each of two seeds."""
    return federations.stack([tiny_federation(), tiny_federation(1)])


def _local(rate: Any) -> Local:
    return LOCAL._replace(learning_rate=rate)


def _plans(build: Any, **by_cell: Any) -> list[engine.Plan]:
    """A plan for each learning rate, with rows of ``by_cell`` in ``by_seed``."""
    fixed = {"task": TASK, "clients_per_round": 3}
    return [
        engine.Plan(build, fixed | {"local": _local(rate)}, {name: rows[i] for name, rows in by_cell.items()})
        for i, rate in enumerate(RATES)
    ]


def _scores(metrics: Any) -> dict[str, np.ndarray]:
    return {name: values.values for name, values in metrics.items() if "seconds" not in name and "exec" not in name}


def _assert_like_alone(
    plans: list[engine.Plan], federation: Federation, references: Any, execution: Any, bits: bool = False
) -> Any:
    arguments: dict[str, Any] = {"rounds": 4, "seeds": SEEDS, "evaluate_every": 2, "execution": execution}
    together = engine.sweep(plans, federation, references=references, **arguments)
    for plan, reference, found in zip(plans, references, together, strict=True):
        alone = engine.simulate(plan, federation, reference=reference, **arguments)
        (assert_same if bits else assert_close)(alone.state, found.state)
        for name, values in _scores(alone.metrics).items():
            np.testing.assert_allclose(_scores(found.metrics)[name], values, rtol=1e-5, atol=1e-5, err_msg=name)
        for name, values in alone.records.items():
            np.testing.assert_allclose(found.records[name], values, rtol=1e-5, atol=1e-5, err_msg=str(name))
        assert_close(alone.deployed(2, seed=1), found.deployed(2, seed=1))
    return together[0]


@pytest.mark.thorough
@pytest.mark.parametrize("runs", ["scan", 4])
def test_a_cell_equals_its_own_run(stacked: Federation, runs: Any) -> None:
    """Thresholds differ by cell and seed, federations by seed; clients are spread over two devices."""
    references = engine.standalone_sweep(TASK, stacked, [_local(rate) for rate in RATES], seeds=SEEDS)
    plans = _plans(incfl, threshold=[reference.threshold for reference in references])
    _assert_like_alone(plans, stacked, references, engine.Execution("scan", seeds=runs), bits=runs == "scan")


@pytest.mark.thorough
def test_one_federation_for_all_and_devices_that_take_whole_runs() -> None:
    local = LOCAL._replace(steps=None, epochs=2)  # ragged clients take different numbers of steps
    plans = [
        engine.Plan(fedavg, {"task": TASK, "local": local, "clients_per_round": 3, "server_lr": rate})
        for rate in (0.2, 0.5, 1.0, 1.5)
    ]
    found = _assert_like_alone(plans, tiny_federation(), [None] * 4, engine.Execution())
    assert bool(found.metrics["execution_runs_apart"])


@pytest.mark.thorough
def test_one_seed_with_a_stacked_federation(stacked: Federation) -> None:
    single = federations.stack([tiny_federation()])
    found = engine.sweep(_plans(fedavg), single, rounds=2, evaluate_every=2, seeds=(5,))
    for plan, mine in zip(_plans(fedavg), found, strict=True):
        assert_close(engine.simulate(plan, tiny_federation(), rounds=2, evaluate_every=2, seeds=(5,)).state, mine.state)


@pytest.mark.thorough
@pytest.mark.unchecked
def test_arrays_may_vary_and_state_can_be_taken_up() -> None:
    thresholds = np.linspace(0.2, 1.0, 10, dtype=np.float32).reshape(2, 5)
    plans = [engine.Plan(incfl, {"task": TASK, "local": LOCAL, "threshold": rho}) for rho in thresholds]
    number: Any = np.int64(2)  # of NumPy, as a loop over an array gives it
    found = engine.sweep(plans, tiny_federation(), rounds=number)
    for plan, mine in zip(plans, found, strict=True):
        whole = engine.simulate(plan, tiny_federation(), rounds=4, evaluate_every=4)
        rest = engine.simulate(plan, tiny_federation(), rounds=2, evaluate_every=2, initial=mine.state)
        assert_close(whole.state, rest.state)
        gap = mine.records["loss"].values - mine.records["gap"].values
        ids = mine.records["cohort_id"].values.astype(int)
        np.testing.assert_allclose(gap, plan.arguments["threshold"][ids], rtol=1e-5)


def _build(task: Any, local: Local, broken: Any, traces: Any) -> Algorithm:
    """FedAvg whose server turns to NaN in round ``broken``."""
    traces()
    return breaks(fedavg(task, local, clients_per_round=3), broken)


@pytest.mark.thorough
def test_one_compilation_and_only_the_broken_run_is_frozen() -> None:
    traces: list[int] = []
    arguments = {"task": TASK, "traces": lambda: traces.append(1)}

    def sweep(cells: int, first: float, **others: Any) -> list[Any]:
        plans = [
            engine.Plan(
                _build,
                arguments | {"local": _local(first + 0.1 * cell)},
                {"broken": jnp.asarray([-1, 3 - 4 * (cell != 1)])},
            )
            for cell in range(cells)
        ]
        return engine.sweep(plans, tiny_federation(), rounds=5, evaluate_every=5, seeds=SEEDS, **others)

    blocks: list[engine.Block] = []
    found = sweep(3, 0.1, callbacks=[blocks.append])
    several = len(traces)
    assert [result.diverged for result in found] == [(), ((9, 3),), ()]
    assert (blocks[-1].diverged, blocks[-1].metrics["test_loss"].shape) == (((9, 3),), (6, 5))
    for result in found:
        assert np.isfinite(result.metrics["test_loss"].values).all()
        assert np.asarray(result.state.round).tolist() == [5, 5]
    traces.clear()
    sweep(3, 0.2)
    assert len(traces) == 1  # labels are checked; shapes are known, and nothing is compiled
    traces.clear()
    engine.simulate(
        engine.Plan(_build, arguments | {"local": _local(0.1)}, {"broken": jnp.asarray([-1])}),
        tiny_federation(),
        rounds=5,
    )
    # Three cells take no more traces than one; the round of the broken run is traced once more, to name who broke it.
    assert several == len(traces) + 1


@pytest.mark.thorough
def test_equal_standalone_models_are_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    run = standalone_models._run
    monkeypatch.setattr(standalone_models, "_run", lambda *a: calls.append(len(a[-1])) or run(*a))
    locals = [_local(0.1), _local(0.2), _local(0.1), _local(0.1)._replace(steps=5), _local(jnp.asarray(0.2))]
    found = engine.standalone_sweep(TASK, tiny_federation(), locals, seeds=SEEDS, keep_models=True)
    assert calls == [4, 2]
    for local, reference in zip(locals, found, strict=True):
        alone = engine.standalone(TASK, tiny_federation(), local, seeds=SEEDS, keep_models=True)
        assert_close(alone, reference)
    assert_same(found[0], found[2])


def test_what_is_wrong_with_plans() -> None:
    def sweep(*plans: Any, **others: Any) -> Any:
        return engine.sweep(plans, tiny_federation(), rounds=1, **others)

    plan = engine.Plan(fedavg, {"task": TASK, "local": LOCAL})
    wide = plan._replace(arguments={"task": TASK, "local": LOCAL._replace(batch_size=3)})
    more = plan._replace(arguments={**plan.arguments, "server_lr": 0.5})
    rho = lambda *shape: engine.Plan(incfl, {**plan.arguments, "threshold": np.zeros(shape, np.float32)})  # noqa: E731
    for plans, sentence in (
        ((), "at least one plan"),
        ((plan, wide), "got plans 0 and 1 with values that shape the program, 2 beside 3"),
        ((plan, plan, more), "got plans 0 and 2 with arguments"),
        ((rho(), plan), "with builders"),
        ((rho(), rho(5)), "with arrays of other shapes"),
    ):
        with pytest.raises(ValueError, match=sentence):
            sweep(*plans)
    with pytest.raises(ValueError, match="expected one reference for each of 2 plans, got 1"):
        sweep(plan, plan, references=[None])
