"""Law 25: with ``Local.keep`` an optimizer's state is its client's: it counts in the next round, and absence keeps it.

Every algorithm obeys, or refuses in one sentence.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest

from fljax import training
from fljax.algorithms import REGISTRY
from fljax.engine.loop.simulation import simulate
from fljax.engine.rounds.states import by_id
from fljax.protocol import Subset
from fljax.training import Local
from tests.algorithms.rounds_tools import history
from tests.laws.cases import ALGORITHMS, POPULATION, TASK, chosen, federation

pytestmark = pytest.mark.by_case
FRESH = Local(0.05, 2, steps=3, optimizer="adam")
KEPT = FRESH._replace(keep=True)
# These need plain SGD, which has no state, or cannot keep one.
REFUSED = {
    "scaffold": "optimizer 'sgd'",
    "pfedme": "optimizer 'sgd'",
    "afl": "optimizer 'sgd'",
    "perfedavg": "without keep for perfedavg, whose steps are its own",
    "fednova": "optimizer 'sgd', alone or with momentum, for fednova",
    "apfl": "without keep for apfl, whose steps are its own",
    "ipfl": "without keep for ipfl, whose clients may train several models",
}


def rounds(name: str, local: Local) -> tuple[dict[str, Any], Any]:
    """Server and clients by path, ``[4, ...]``, before and after each of three rounds, and who trained."""
    algorithm = ALGORITHMS[name].build(TASK, local, **ALGORITHMS[name].example)
    states, records = history(lambda _: algorithm, federation(), 3)
    found = jax.tree.leaves_with_path((states.server, states.clients))
    return {jax.tree_util.keystr(path): leaf for path, leaf in found}, records


@pytest.mark.parametrize("name", chosen([name for name in REGISTRY if name not in REFUSED], ("fedavg", "ditto")))
def test_law_25_kept_states_count_and_wait(name: str) -> None:
    fresh, _ = rounds(name, FRESH)
    kept, records = rounds(name, KEPT)
    assert kept.keys() > fresh.keys()
    both = [(fresh[path], kept[path]) for path in fresh if fresh[path].dtype.kind == "f"]
    for before, after in both:
        np.testing.assert_allclose(after[:2], before[:2], rtol=1e-4, atol=1e-5)  # nothing was kept yet
    assert any(np.nanmax(np.abs(after[3] - before[3]), initial=0) > 1e-3 for before, after in both)
    counts = [leaf for path, leaf in kept.items() if path.startswith("[1]") and path.endswith(".count")]
    assert counts  # Adam's number of steps
    for t in range(3):
        trained = np.zeros(POPULATION, bool)
        trained[records["cohort_id"][t][records["cohort_present"][t]]] = True
        for path in kept.keys() - fresh.keys():
            np.testing.assert_array_equal(kept[path][t][~trained], kept[path][t + 1][~trained])
        for count in counts:
            assert np.all((count[t + 1] > count[t]).reshape(POPULATION, -1).all(1) == trained)


@pytest.mark.parametrize("name", chosen([name for name in REGISTRY if name not in REFUSED], ("fedrep",)))
def test_law_25_kept_runs_are_judged(name: str) -> None:
    """Also models of unseen clients, whose training keeps nothing."""
    case = ALGORITHMS[name]
    simulate(case.build(TASK, KEPT, **case.example), federation(), rounds=1)


@pytest.mark.parametrize("name", REFUSED)
def test_law_25_what_cannot_keep_says_so(name: str) -> None:
    case = ALGORITHMS[name]
    with pytest.raises(ValueError, match=REFUSED[name]):
        case.build(TASK, KEPT, **case.example)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_kept_rounds_of_one_client_are_one_optax_run(optimizer: str) -> None:
    """Three rounds of three steps are nine steps of optax, on the same batches and from one state."""
    local = KEPT._replace(optimizer=optimizer, options=(("weight_decay", 0.1),) if optimizer == "adamw" else ())
    data = by_id(federation())
    subset = Subset(data.examples, jax.tree.map(lambda leaf: leaf[0], data.clients.train))
    start = TASK.init(jax.random.key(0))
    found, state, batches = start, training.first_state(TASK, local, start), []
    for t in range(3):
        key = jax.random.key(t)
        trained = training.train(key, found, subset, task=TASK, local=local, round=t, state=state)
        found, state = trained.params, trained.state
        drawn = training.draw(training.stream(key, training.Stream.BATCHES), subset, local)
        batches += list(zip(drawn.position, drawn.mask, strict=True))
    whole = getattr(optax, optimizer)(0.05, **dict(local.options))
    params, own = start, whole.init(start)
    for position, mask in batches:
        slope = training.gradient(TASK, params, subset, position, mask, jax.random.key(0))
        move, own = whole.update(slope, own, params)
        params = optax.apply_updates(params, move)
    for one, other in zip(jax.tree.leaves((found, state)), jax.tree.leaves((params, own)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
