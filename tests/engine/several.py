"""What the tests of several processes compute, in one process and in two."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import numpy as np

import fljax
from fljax import algorithms, data, models
from fljax.engine import arrays_of, sweep
from fljax.engine.programs.program import Plan
from tests.toys import runs


def toy() -> tuple[Any, Any, Any]:
    blobs = data.load("blobs")
    federation = data.federate(blobs, "dirichlet", clients=7, beta=1.0, unseen=2, valid_fraction=0.2, held_fraction=0.1)
    return models.logistic_regression(blobs.x.shape[1:], blobs.classes or 0), federation, fljax.Local(0.1, 8, steps=3)


def work(devices: Any) -> dict[str, Any]:
    """Numbers by name: all public calls that compute something on devices."""
    task, federation, local = toy()
    execution = fljax.Execution(devices=devices)
    alone = fljax.standalone(task, federation, local, seeds=2, execution=execution, keep_models=True)
    found: dict[str, Any] = {"standalone/" + name: each for name, each in arrays_of(alone).items()}
    how: dict[str, Any] = {"rounds": 4, "seeds": 2, "evaluate_every": 2, "execution": execution}
    plan = Plan(algorithms.fedavg, {"task": task, "local": local, "clients_per_round": 4})
    result = fljax.simulate(plan, federation, reference=alone, **how)
    further = fljax.simulate(plan, federation, reference=alone, initial=result.state, **how)
    plans = [plan._replace(arguments={**plan.arguments, "local": local._replace(learning_rate=r)}) for r in (0.1, 0.2)]
    for name, each in {
        "run": result,
        "further": further,
        **{f"cell {place}": each for place, each in enumerate(sweep(plans, federation, **how))},
    }.items():
        found |= numbers_of(name, each)
    many: Any = fljax.simulate(
        plan, federation, rounds=2, evaluate_every=2, seeds=9, execution=execution, keep_best=True
    )  # runs apart
    found |= numbers_of("many", many) | {f"best/{name}": each for name, each in arrays_of(many.best.state).items()}
    found["best predicts"] = np.asarray(many.best.predict(2, federation.examples.x[:5], seed=8))
    how = {"clusters": 2, "rounds": 2, "execution": execution}
    clusters = fljax.clustering.by_f1(task, local, federation, **how)
    found |= {f"clusters/{name}": each for name, each in arrays_of(clusters).items()}
    arguments = {"task": task, "local": local, "clusters": 2, "clients_per_cluster": 2}
    bids = Plan(algorithms.ipfl, arguments, {"clustering": clusters})  # arrays of one call are arguments of the next
    found |= numbers_of("bids", fljax.simulate(bids, federation, rounds=2, evaluate_every=2, execution=execution))
    host = execution._replace(examples="host", client_states="host")
    kept = Plan(algorithms.ditto, {"task": task, "local": local, "clients_per_round": 4, "regularisation": 0.1})
    found |= numbers_of("on the host", fljax.simulate(kept, federation, rounds=2, evaluate_every=2, execution=host))
    rows = federation.examples.x[:5]
    found["predict"] = np.asarray(result.predict(3, rows, seed=1))
    found["predict unseen"] = np.asarray(result.predict(1, rows, unseen=True))
    found |= {"deployed/" + name: each for name, each in arrays_of(result.deployed(2)).items()}
    return jax.tree.map(np.asarray, found)


def registry(devices: Any) -> dict[str, Any]:
    """Two rounds of every algorithm of the registry, of the laws' examples: the state, the metrics and the records."""
    from tests.laws.cases import bench, federation

    found: dict[str, Any] = {}
    execution = fljax.Execution(devices=devices)
    for name in algorithms.REGISTRY:
        result = fljax.simulate(
            bench(name).plan, federation(), rounds=2, evaluate_every=2, seeds=(3,), execution=execution
        )
        found |= numbers_of(name, result)
    return found


def numbers_of(name: str, result: fljax.Result) -> dict[str, Any]:
    """All numbers of a result but seconds and how it was computed."""
    return {f"{name}/{key}": value for key, value in runs.numbers_of(result).items()}


def checkpointed(folder: pathlib.Path, devices: Any = "all", stop_after: int | None = None) -> fljax.Result:
    """Six rounds with a checkpoint after each one; a callback may ask it to stop."""
    task, federation, local = toy()
    stop = fljax.StopRequest()

    def ask(block: fljax.Block) -> None:
        if block.round == stop_after:
            stop.make()

    return fljax.simulate(
        algorithms.incfl(task, local, threshold=0.7, clients_per_round=None),
        federation,
        rounds=6,
        seeds=2,
        evaluate_every=2,
        execution=fljax.Execution(devices=devices),
        callbacks=[ask],
        checkpoint=fljax.Checkpoint(folder, every=0, stop=stop),
    )
