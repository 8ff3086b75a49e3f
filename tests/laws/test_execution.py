"""Law 24: how a run is executed does not matter.

An algorithm gives the same state, metrics and records, whether clients are computed at once or one by one, on two
devices, with data on the host, or in a run that is killed and resumed, and the same losses as one of many whole runs.
A run that is resumed in the same layout gives the same bits.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import REGISTRY
from fljax.engine import Execution, Over, runs
from fljax.engine.checkpoints import Checkpoint
from fljax.results import Result
from tests.laws.cases import ROUNDS, TOYS, VARIANTS, bench, chosen, federation
from tests.laws.compare import assert_close
from tests.toys.runs import Killed, assert_close_results, assert_same_results, kill_at

pytestmark = [pytest.mark.thorough, pytest.mark.by_case, pytest.mark.usefixtures("quick_compilation")]

PLAIN = Execution(2, devices=1, evaluation=2)
HOST = PLAIN._replace(examples="host", client_states="host")
HOW: dict[str, Any] = {"rounds": ROUNDS + 1, "seeds": (0, 3), "evaluate_every": ROUNDS, "scores": ("auroc",)}
HOW["clients_per_evaluation"] = 3  # but at the end


class Way(NamedTuple):
    """A way to execute a run; if ``after`` is given, the run is killed, and goes on as it says."""

    before: Execution
    after: Execution | None = None
    like: Execution | None = None  # whose bits it has


WAYS = {
    "one by one": Way(Execution("scan", devices=1, evaluation="scan")),
    "at once": Way(Execution("vmap", devices=1, evaluation="vmap")),
    "two devices": Way(Execution(2, devices=2, evaluation=2)),
    "examples on the host": Way(PLAIN._replace(examples="host")),
    "states on the host": Way(PLAIN._replace(client_states="host")),
    "on the host": Way(HOST),
    "killed": Way(PLAIN, PLAIN, PLAIN),
    "killed on the host": Way(HOST, HOST, HOST),
    "killed on one device": Way(PLAIN, Execution(2, devices=2, evaluation=2)),
    "killed on two devices": Way(Execution(2, devices=2, evaluation=2), PLAIN),
}
NAMES = (*REGISTRY, *TOYS, *VARIANTS)
# In thorough tests all algorithms of the registry have their data on the host, and these six take every way; two that
# permute or sort rows are on two devices.
BROAD = ("on the host",)
SPREAD = [(name, "two devices") for name in ("iafl", "rank")]
DEEP = ("incfl", "scaffold", "ipfl", "ditto", "ditto_keep", "fedfomo")
# Ten algorithms are whole runs in thorough tests, the others in slow ones.
WHOLE = ("fedavg", "incfl", "scaffold", "ipfl", "ditto", "iafl", "cgsv", "fedbn", "ifca", "fedem")


def _cases() -> list[Any]:
    every = [(name, way) for name in NAMES for way in WAYS]
    taken = {(name, way) for name, way in every if name in DEEP or (name in REGISTRY and way in BROAD)}
    taken |= set(SPREAD)
    marks = {case: () if case in taken else pytest.mark.slow for case in every}
    return [pytest.param(*case, marks=mark, id=f"{case[0]}-{case[1]}") for case, mark in marks.items()]


def run(name: str, execution: Execution, **options: Any) -> Result:
    """A case's run, with two seeds."""
    return engine.simulate(bench(name).plan, federation(), execution=execution, **(HOW | options))


# Ways of one algorithm come one after the other, and no test holds the programs of other algorithms.
plainly = functools.lru_cache(maxsize=2)(run)


def killed(name: str, way: Way) -> Result:
    """The run, which dies in its second evaluation, when two rounds are saved."""
    assert way.after is not None

    with tempfile.TemporaryDirectory() as folder:
        notes: list[str] = []
        settings = Checkpoint(pathlib.Path(folder), every=0, note=notes.append)
        with pytest.raises(Killed):
            run(name, way.before, checkpoint=settings, callbacks=[kill_at(ROUNDS + 1)])
        found = run(name, way.after, checkpoint=settings)
    assert f"goes on after round {ROUNDS} of {HOW['rounds']}, from a checkpoint" in notes
    return found


@pytest.mark.parametrize(("name", "way"), _cases())
def test_law_24_the_way_of_execution_does_not_matter(name: str, way: str) -> None:
    how = WAYS[way]
    expected = plainly(name, PLAIN if how.like is None else how.like)
    found = run(name, how.before) if how.after is None else killed(name, how)
    one_device = all(each is None or each.devices == 1 for each in (how.before, how.after))
    if how.like is None:
        assert_close_results(found, expected, 1e-5 if one_device else 1e-4)
    else:
        assert_same_results(found, expected)
    if (how.after or how.before).client_states == "host":
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(found.state.clients))


@pytest.mark.parametrize("name", chosen(NAMES, NAMES, set(NAMES) - set(WHOLE)))
def test_law_24_whole_runs_are_those_of_simulate(name: str) -> None:
    expected = plainly(name, PLAIN).metrics.isel(evaluated_round=-1)
    found = runs(bench(name).plan, federation(), Over(), rounds=HOW["rounds"], seeds=HOW["seeds"])
    for measure in ("test_loss", "test_accuracy", "unseen_test_loss"):
        assert_close(found[measure].isel(run=0).values, expected[measure].values)
