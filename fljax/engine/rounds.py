"""Rounds as a pure function, for other people's JAX code."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fljax.engine.execution import Lanes
from fljax.engine.round import State, by_id, initial_state, one_round
from fljax.types import Algorithm, Federation, unlabelled


def rollout(
    algorithm: Algorithm,
    federation: Federation,
    *,
    rounds: int,
    seed: int | Int[Array, ""] = 0,
    initial: State | None = None,
    clients: int | None = None,
    rematerialise: bool = False,
) -> tuple[State, dict[str, Array]]:
    """The state after some rounds, and what was recorded: a scan of rounds.

    It may be called under ``jit``, ``vmap`` and ``grad``. Every number of turns is static in reverse mode, so gradients
    by the floats that the algorithm closes over (a learning rate, INCFL's thresholds) go through all rounds. They are
    those of the computation itself: what is rounded, ranked or chosen has derivative zero.

    Args:
      algorithm: built with concrete or traced hyper-parameters.
      federation: its clients.
      rounds: how many; 0 gives the state before round 0.
      seed: of the run. The same seed gives the same run as ``simulate``, up to rounding.
      initial: a state from which the rounds go on; None: the state before round 0. ``seed`` is then that of the state.
      clients: how many clients train side by side; None: all of the cohort.
      rematerialise: whether reverse mode trains each client again in place of keeping what its training computed. With
        ``clients=1`` the memory of a gradient is then that of one client's training.

    Returns:
      The state, and the records ``[rounds, ...]`` by name, as in ``Result.records``.

    Raises:
      ValueError: if a count is out of range.
    """
    if rounds < 0:
        raise ValueError(f"expected a number of rounds of at least 0, got {rounds}")
    if clients is not None and clients < 1:
        raise ValueError(f"expected a positive number of clients, got {clients}")
    federation = by_id(federation)
    population = federation.clients.id.shape[0]
    state = initial_state(algorithm, federation, jnp.asarray(seed, jnp.uint32)) if initial is None else initial
    lanes = Lanes(clients or population, 1, population)

    def step(state: State, _: None) -> tuple[State, dict[str, Array]]:
        state, info = one_round(algorithm, federation, lanes, state, skip=False, rematerialise=rematerialise)
        return state, unlabelled(info)

    return jax.lax.scan(step, state, None, length=rounds)
