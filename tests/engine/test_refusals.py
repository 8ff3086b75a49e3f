"""What the engine refuses before it computes: calls, and words of the sentence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import data
from fljax.algorithms import fedavg, fedem, fedproto, incfl, ipfl, rank, scaffold
from fljax.engine import (
    Execution,
    Over,
    Plan,
    Schedule,
    estimate,
    estimate_standalone,
    runs,
    simulate,
    standalone,
    stop_early,
)
from fljax.engine.callbacks import track
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.programs.shapes import Sizes, resolve
from fljax.engine.rounds.states import CLIENTS, ROUNDS, SLOTS, Purpose, client_key, round_key, seeds_of
from fljax.engine.whole_runs.program import RunEnd
from fljax.engine.whole_runs.saved import measure_kinds
from fljax.protocol import Rows
from fljax.scenarios import opting_out
from fljax.training import Local, StopAlone
from tests.engine.callbacks.blocks import block
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = [pytest.mark.unchecked, pytest.mark.devices]

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=2)
SILENT, UNCOUNTED = TASK._replace(score=None), TASK._replace(classes=None)
DATA, SIZES = tiny_federation(), Sizes(rows=12, population=30, seeds=4, model=1000, evaluated=1000)
PLAN = Plan(fedavg, {"task": TASK, "local": LOCAL, "clients_per_round": 3})
STOP = StopAlone(every=4, patience=2)
NO_SEEDS: list[Any] = [
    *(0, -1, True, 1.7, "3", None, [], [1.7], [1.0], [True], [np.bool(True)], [-1], [2**32], [1, 1], ["1"]),
    *([[1, 2]], np.array([1.5]), np.array([True]), jnp.array([1.0])),
]
REPEATED = "for which random keys differ"
Row = tuple[Callable[[], Any], str]


def run(plan: Any = PLAN, federation: Any = DATA, **how: Any) -> Any:
    """A call of ``simulate``."""
    given: dict[str, Any] = {"rounds": 1} | how
    return lambda: simulate(plan, federation, **given)


def of(function: Any, *given: Any, **named: Any) -> Any:
    """A call that a row makes later."""
    return functools.partial(function, *given, **named)


def without(part: str) -> Any:
    """The federation with no rows of a part."""
    rows = getattr(DATA.clients, part)
    return DATA._replace(clients=DATA.clients._replace(**{part: Rows(rows.index, jnp.zeros_like(rows.size))}))


def by_seed(threshold: Any) -> Plan:
    """INCFL with thresholds by seed."""
    return Plan(incfl, {"task": TASK, "local": LOCAL}, {"threshold": threshold})


def labelled(change: Callable[[Any], Any]) -> Any:
    """The federation with other labels."""
    return DATA._replace(examples=DATA.examples._replace(y=change(np.asarray(DATA.examples.y))))


def ahead(plan: Any, rounds: int) -> None:
    """Programs are asked for in another thread; what is wrong is said in this one."""
    with ThreadPoolExecutor(1) as pool:
        fljax.engine.compile_ahead(pool, plan, DATA, Schedule(rounds, 2))


def precise(word: Any) -> Execution:
    """An execution of this precision."""
    return Execution(precision=word)


BY_SIMULATE: list[Row] = [
    *(
        (run(rounds=rounds), "expected rounds to be a whole number from 0 to 134217727")
        for rounds in (-1, 1.5, None, "2", True, 2**31)
    ),
    *((run(evaluate_every=each), "expected evaluate_every to be a whole number") for each in (0, 1.5, "2", True)),
    (run(clients_per_evaluation=0), "expected clients_per_evaluation to be a whole number from 1"),
    *((run(seeds=seeds), "expected seeds to be distinct") for seeds in ((1, 1), (), (-1, 0))),
    (run(seeds=[1.7]), r"got \[1.7\]"),
    (run("fedavg"), "expected an Algorithm or a Plan, got str"),
    (run(execution=Execution(clients=0)), "expected execution.clients to be auto, trial"),
    (run(non_finite="drip"), "expected a known non_finite, got 'drip'; valid names are freeze, drop, stop"),
    (run(federation=without("valid"), keep_best=True), r"expected clients with validation rows, .*set valid_fraction"),
    (run(checkpoint=Checkpoint("x", -1)), "expected seconds between checkpoints of at least 0, got -1"),
    (run(checkpoint=3), "expected checkpoint to be a folder or a Checkpoint, got 3"),
    (lambda: run(fedavg(TASK, LOCAL, clients_per_round=-1))(), "^expected clients_per_round to be a whole number"),
    (lambda: run(fedavg(TASK, LOCAL._replace(epochs=2)))(), "^expected one of steps and epochs"),
    (run(by_seed(np.ones((1, 5), np.float32)), seeds=2), "expected threshold in by_seed to have 2 rows"),
    (run(by_seed(np.ones((2, 3), np.float32)), seeds=2), "one for each of 5 clients"),
    (
        run(Plan(incfl, {"task": TASK, "local": LOCAL, "threshold": np.ones((1, 5), np.float32)}), seeds=2),
        r"expected threshold to be .* with 1 axis, got",
    ),
    (run(extra_metrics=("objektive",)), "one of the extra metrics .*'objektive' .did you mean 'objective'"),
    (run(extra_metrics=("average_loss",)), "got 'average_loss'.* .average_loss is computed in every run.$"),
    (run(extra_metrics="objective"), "expected a list of metrics, got 'objective'"),
    (run(scores=["auroc"], score_every=0), "expected score_every to be a positive number of evaluations, got 0"),
    (run(scores=["nothing"]), "expected one of the scores auroc"),
    (run(fedavg(UNCOUNTED, LOCAL), scores=["f1"]), "a task of classes for the score f1, got one with classes = None"),
    (run(federation=labelled(lambda y: y.astype(np.float32))), r"whole-number labels \[n\] .*3 classes, got float32"),
    (run(federation=labelled(lambda y: y[:, None])), r"whole-number labels \[n\] .*3 classes, got int32 of shape"),
    (
        run(federation=labelled(lambda y: np.where(y == 2, 2**32 + 1, y.astype(np.int64)))),
        "expected labels that fit 32 bits",
    ),
    (of(ahead, [], 1), "expected at least one plan, got none"),
    (of(ahead, PLAN, -1), "expected rounds to be a whole number from 0 to 134217727, got -1"),
    (of(estimate, scaffold(TASK, LOCAL), DATA, Schedule(1, (1, 1))), "distinct"),
    (of(estimate, PLAN, DATA, Schedule(-1)), "expected rounds to be a whole number from 0 to 134217727, got -1"),
    (of(estimate, PLAN, DATA, Schedule(1, [1.7])), r"got \[1.7\]"),  # type: ignore[arg-type]
    (of(estimate, PLAN, DATA, Schedule(1, non_finite="drip")), "expected a known non_finite, got 'drip'"),  # type: ignore[arg-type]
]
BY_OTHERS: list[Row] = [
    *((of(seeds_of, each), "^expected (seeds to be distinct integers|a positive number)") for each in NO_SEEDS),
    (of(standalone, TASK, DATA, LOCAL, seeds=True), "got True"),
    (of(standalone, TASK, DATA, LOCAL, seeds=(-1,)), "expected seeds to be distinct integers"),
    (of(standalone, TASK, DATA, LOCAL, stop=STOP._replace(patience=0)), r"expected stop\.patience .*at least 1, got 0"),
    *(
        (
            of(call, TASK, data.federate(data.load("blobs"), "iid", clients=2), LOCAL, stop=STOP),
            "^expected clients with validation rows for early stopping",
        )
        for call in (standalone, estimate_standalone)
    ),
    *(
        (of(client_key, jax.random.key(0), *numbers), REPEATED)
        for numbers in ((jnp.int32(CLIENTS),), (jnp.uint32(CLIENTS),), (jnp.int32(0), SLOTS))
    ),
    (of(round_key, jnp.uint32(0), Purpose.TRAIN, ROUNDS), REPEATED),
    (of(ipfl, SILENT, LOCAL), r"expected a task with a score for ipfl, .*score=...\) gives it one"),
    (of(rank, SILENT, LOCAL), r"expected a task with a score for rank, .*score=...\) gives it one"),
    (
        lambda: opting_out(fedavg(SILENT, LOCAL), baseline=0.5),
        r"expected a task with a score for opting_out, .*score=...\) gives it one",
    ),
    (of(fedem, UNCOUNTED, LOCAL), "expected a task of classes for fedem, got one with classes = None"),
    (of(fedproto, UNCOUNTED, LOCAL), "got one without classes"),
    (of(track, 3), r"expected a run of a tracker, with log\(values, step=\) or .*, got int"),
    (of(stop_early, "averge_accuracy"), "expected one of the metrics .*did you mean 'average_accuracy'"),
    (of(stop_early, "average_gain"), "expected one of the metrics .*got 'average_gain'"),
    (of(stop_early, "average_accuracy", patience=0), "expected patience to be a positive number of evaluations, got 0"),
    (
        of(stop_early, "average_accuracy", minimum_change=-1),
        "expected minimum_change to be a finite number of at least 0",
    ),
    (
        lambda: stop_early("ipr_loss")(block({"average_loss": [1.0]}, seeds=(0,))),
        "expected evaluations with ipr_loss, .*valid names are average_loss",
    ),
    (of(fljax.rollout, PLAN, DATA, rounds=-1), "expected a number of rounds of at least 0, got -1"),
    (of(fljax.rollout, fedavg(TASK, LOCAL), DATA, rounds=1, clients=0), "expected a positive number of clients, got 0"),
    (
        lambda: fljax.rollout(fedavg(TASK, LOCAL), data.stack([DATA, DATA]), rounds=1),
        "expected the federation of one seed, got one of 2 seeds",
    ),
    (
        of(runs, fedavg(TASK, LOCAL), DATA, Over({"server_lr": [1.0, 2.0]}), rounds=1),
        "expected a Plan for arguments that differ between runs, got Algorithm",
    ),
    (
        of(runs, PLAN._replace(by_seed={"server_lr": np.ones(1)}), DATA, Over({"server_lr": [1.0, 2.0]}), rounds=1),
        "expected arguments by run or by seed, got both for server_lr",
    ),
    *(
        (of(measure_kinds, RunEnd({name: np.zeros(2)}, np.zeros(2, bool))), f"names of measures .* got '{name}'")  # type: ignore[arg-type]
        for name in ("member", "diverged", "a/b")
    ),
    *(
        (
            of(resolve, Execution()._replace(**{field: value}), SIZES),
            rf"expected execution\.{field} to be auto, .*vmap, scan(, debug)? or a pos",
        )
        for field in ("clients", "seeds", "evaluation")
        for value in ("fast", 0, -1, True, 1.5, None)
    ),
    *((of(resolve, Execution(devices=value), SIZES), "positive") for value in (0, "both", True)),  # type: ignore[arg-type]
    (of(resolve, Execution(devices=3), SIZES), "at most the 2 that JAX sees, got 3"),
    (
        of(resolve, precise("double"), SIZES),
        "execution.precision, got 'double'; valid names are default, high, highest",
    ),
]


@pytest.mark.parametrize(("call", "words"), [*BY_SIMULATE, *BY_OTHERS])
def test_it_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
