"""Values with labels where no builder checks them: metrics, found by their annotations, and arguments of runs."""

from __future__ import annotations

import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from fljax import algorithms, contributions, engine, metrics, results
from fljax.core.signatures import allowed_by, annotations_of
from fljax.engine.loop.running import check_rows
from fljax.engine.programs.program import partition_plan
from fljax.engine.whole_runs.over import Over, varied_plan
from fljax.games import Utility
from fljax.games.strategic.utilities import check_utility
from fljax.metrics.registry import of_gains
from fljax.training import Local
from tests.laws.cases import TASK, federation

NUMBERS = [0.5, 0.25, 1.0, 0.0, 0.75]
LABELLED = [
    pd.Series(NUMBERS, [2, 0, 1, 4, 3]),
    pd.Series(NUMBERS, list("cabed")),
    xr.DataArray(NUMBERS, dims="client"),
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
    with pytest.raises(ValueError, match="expected arguments by seed to be without labels"):
        partition_plan(by_seed, clients)
    with pytest.raises(ValueError, match="expected cost to be without labels"):
        check_utility(Utility(cost=value), algorithms.fedavg(TASK, local), clients)
    with pytest.raises(ValueError, match="expected opt_out_threshold to be without labels"):
        of_gains(np.ones((1, 5)), value, unseen=False)
    measures: list[Any] = [
        lambda: contributions.free_riders(value, [1]),
        lambda: contributions.contribution_at(0.5, value, [1]),
        lambda: contributions.coalition_value(np.ones((5, 2)), np.ones(2), jnp.sum, value),
    ]
    for call in measures:
        with pytest.raises(ValueError, match=r"expected (contribution|weights) to be without labels"):
            call()
    alone = results.Reference(np.ones((2, 5)), np.ones((2, 5)), None)
    with pytest.raises(ValueError, match="expected threshold to be without labels"):
        results.with_threshold(alone, value)
    with pytest.raises(ValueError, match="expected reference to be without labels"):
        check_rows([0, 1], partition_plan(plan, clients)[1], alone._replace(threshold=frame))
