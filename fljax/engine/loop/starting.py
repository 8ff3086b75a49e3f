"""The common model of a run, and plans that start from given parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fljax.core import trees
from fljax.engine.devices.layout import Layout
from fljax.engine.loop.trained import DeployedModels
from fljax.engine.programs import jit
from fljax.engine.programs.program import Inputs, Plan, Spec
from fljax.engine.rounds.states import State
from fljax.protocol import Algorithm, Seat, Task


@jit.program(static_argnames=("spec", "layout"))
def _common(spec: Spec, layout: Layout, inputs: Inputs, state: State, seed: Array) -> PyTree:
    algorithm = spec.algorithm(inputs.traced, trees.take(inputs.by_seed, seed))
    if algorithm.common is None:
        return None
    own, zero = trees.take(state, seed), jnp.zeros((), jnp.int32)
    seat = Seat(own.round, zero, zero, True)
    return algorithm.common(algorithm.down(own.server, seat))


def common_models(deployed: DeployedModels) -> PyTree | None:
    """The common (global) model of each seed, ``[seeds, ...]``; None if the algorithm has none.

    Args:
      deployed: ``Result.deployed``.
    """
    (spec, inputs), state, seeds, precision = deployed.parts()
    layout = Layout(1, 1, 1, precision=precision)
    found = [_common(spec, layout, inputs, state, jnp.int32(seed)) for seed in range(seeds)]
    return None if found[0] is None else jax.tree.map(lambda *rows: jnp.stack(rows), *found)


def starting_from(plan: Algorithm | Plan, params: PyTree | None) -> Algorithm | Plan:
    """The plan whose argument ``task`` starts from ``params``; for None the plan itself.

    Raises:
      ValueError: if it is an Algorithm or a Plan without such an argument, or the parameters do not fit the task.
    """
    if params is None:
        return plan
    task: Any = plan.arguments.get("task") if isinstance(plan, Plan) else None
    if not isinstance(plan, Plan) or not isinstance(task, Task):
        got = "a Plan without the argument task" if isinstance(plan, Plan) else "an Algorithm, whose task is built in"
        raise ValueError(
            f"expected a Plan with the argument task for initial_model, got {got}; build it of "
            "fljax.models.start_from(task, params)"
        )
    from fljax.models import start_from  # imported here, since it needs flax

    return plan._replace(arguments={**plan.arguments, "task": start_from(task, params)})
