"""Values with labels where no builder checks them: metrics, found by their annotations, and arguments of runs."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from fljax import algorithms, contributions, engine, games, metrics, results, theory
from fljax.contributions.estimators.directions import first_order
from fljax.contributions.estimators.rounds import estimate_run
from fljax.core.values import allowed_by, annotations_of
from fljax.engine.loop.compilation import check_rows
from fljax.engine.programs.program import partition_plan
from fljax.engine.whole_runs.running import Over, varied_plan
from fljax.games import Utility
from fljax.games.strategic.playing import checked_outside
from fljax.games.strategic.utilities import check_utility
from fljax.metrics.registry import of_gains
from fljax.training import Local
from tests.laws.cases import TASK, federation
from tests.refusals import refuses

NUMBERS = [0.5, 0.25, 1.0, 0.0, 0.75]
LABELLED = [
    pd.Series(NUMBERS, [2, 0, 1, 4, 3]),
    pd.Series(NUMBERS, list("cabed")),
    xr.DataArray(NUMBERS, {"client": list("cabed")}, "client"),
]


def _of_clients(function: Any) -> list[str]:
    """Its parameters that are arrays by client."""
    found = annotations_of(function, extras=True)
    return [name for name, each in found.items() if " client" in str(each) or allowed_by(each).axes is not None]


OF_SEVERAL = [
    name
    for name in dir(metrics)
    if inspect.isfunction(each := getattr(metrics, name)) and len(_of_clients(each)) > 1 and name != "rounds_to_target"
]


@pytest.mark.unchecked
@pytest.mark.parametrize("name", OF_SEVERAL)
def test_a_metric_of_several_values_by_client_takes_none_by_name(name: str) -> None:
    function = getattr(metrics, name)
    plain: dict[str, Any] = {each: np.array(NUMBERS) for each in _of_clients(function)}
    for each in plain:
        for value in LABELLED:
            with pytest.raises(ValueError, match="expected values by client to be without labels, which would be"):
                function(**plain | {each: value})


@pytest.mark.unchecked
@pytest.mark.parametrize("value", LABELLED, ids=["ids", "names", "dims"])
def test_arguments_of_runs_are_by_place(value: Any) -> None:
    local = Local(0.1, 4, steps=2)
    plan = engine.Plan(algorithms.incfl, {"task": TASK, "local": local, "threshold": np.ones(5)})
    frame: Any = pd.DataFrame(np.ones((2, 5)), columns=list("cabed"))
    clients = federation()
    for over in (Over(member=frame), Over({"threshold": frame}), Over({"server_lr": value}), Over(cost=value)):
        with pytest.raises(ValueError, match=r"expected [a-z_]+ to be without labels"):
            varied_plan(plan, clients, over)
    with pytest.raises(ValueError, match="expected threshold to be without labels"):
        partition_plan(plan._replace(arguments={**plan.arguments, "threshold": value}), clients)
    by_seed = plan._replace(arguments={"task": TASK, "local": local}, by_seed={"threshold": frame})
    refuses(lambda: partition_plan(by_seed, clients), "expected arguments by seed to be without labels")
    with pytest.raises(ValueError, match="expected cost to be without labels"):
        check_utility(Utility(cost=value), algorithms.fedavg(TASK, local), clients)
    refuses(lambda: of_gains(np.ones((1, 5)), value, unseen=False), "expected opt_out_threshold to be without labels")
    measures: list[Any] = [
        lambda: contributions.free_riders(value, [1]),
        lambda: contributions.contribution_at(0.5, value, [1]),
        lambda: contributions.coalition_value(np.ones((5, 2)), np.ones(2), jnp.sum, value),
    ]
    for call in measures:
        refuses(call, r"expected (values|weights) to be without labels")
    alone = results.Reference(np.ones((2, 5)), np.ones((2, 5)), None)
    refuses(lambda: results.with_threshold(alone, value), "expected threshold to be without labels")
    with pytest.raises(ValueError, match="expected reference to be without labels"):
        check_rows([0, 1], partition_plan(plan, clients)[1], alone._replace(threshold=frame))


FOUR = [0.5, 0.25, 0.75, 0.5]
# What is no vector of four numbers, by the name of its parameter.
OTHERS: dict[str, Any] = {
    "game": theory.Game(jnp.ones_like, 0.5),
    "setting": theory.Setting(),
    "key": jax.random.key(0),
    "gap": 0.5,
    "rounds": 3,
    "clients": 3,
    "client": 0,
    "clusters": 2,
    "ids": [0],
    "membership": [0, 1, 0, 1],
    "surrogate": "sigmoid",
} | dict.fromkeys(("centres", "limits", "margins", "distances", "induced", "members"), np.ones((4, 4)))
# Arguments that are no arrays of a user: of programs, ids, or chosen by name; a shape must be an array of NumPy.
NO_ARRAYS = ("return", "key", "ids", "seeds", "deviators", "utility", "outside", "among", "shape")
SKIPPED = ("coalition_value", "value_of", "coalitions_of", "appeal_objective", "estimate", "mixed_regret", "prices_of")


def _arrays(function: Any) -> list[str]:
    found = {name: str(each) for name, each in annotations_of(function, extras=True).items() if name not in NO_ARRAYS}
    kinds = ("Array", "ndarray", "Sequence[typing.Any]")
    return [name for name, each in found.items() if any(kind in each for kind in kinds) and "Callable" not in each]


FUNCTIONS = {
    name: function
    for package in (contributions, theory, games)
    for name in sorted(package.__all__)
    if inspect.isroutine(function := getattr(package, name)) and name not in SKIPPED and _arrays(function)
}


@pytest.mark.unchecked
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_arrays_takes_none_by_name(name: str) -> None:
    function, given = FUNCTIONS[name], {}
    for each, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty and parameter.kind != parameter.VAR_KEYWORD:
            given[each] = OTHERS.get(each, 0.5 if parameter.annotation == "float" else np.array(FOUR))
    if name.startswith("appeal") and "setting" in given:
        given["setting"] = theory.AppealSetting(4)
    labelled: Any = pd.Series(FOUR, list("cabd"))
    for each in _arrays(function):
        for value in (labelled, dict(labelled), [labelled, labelled[::-1]]):
            with pytest.raises(ValueError, match=r"expected values (to be without labels|by place)"):
                function(**given | {each: value})


@pytest.mark.unchecked
def test_records_of_arrays_take_none_by_name() -> None:
    labelled: Any = pd.Series(FOUR, list("cabd"))
    calls: list[Any] = [
        lambda: theory.utilities(theory.Game(jnp.ones_like, labelled), np.array(FOUR)),
        lambda: contributions.CachedGame.of_table(labelled),
        lambda: estimate_run(first_order(), contributions.RunRecord(np.ones(2), np.ones((1, 4)), labelled)),
        lambda: games.ex_post(None, labelled),  # pyright: ignore[reportArgumentType]
        lambda: checked_outside(labelled, 4, 1, games.Utility()),
    ]
    for call in calls:
        refuses(call, r"expected values to be without labels")
