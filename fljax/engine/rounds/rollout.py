"""Rounds as a pure function, for use inside other JAX code."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Integer

from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.errors import wrapped
from fljax.engine.rounds.evaluate import evaluate
from fljax.engine.rounds.federations import as_vectors, by_id
from fljax.engine.rounds.round import RoundOptions, one_round
from fljax.engine.rounds.states import State, initial_state
from fljax.protocol import Algorithm, Federation, unlabelled


def rollout(
    algorithm: Algorithm,
    federation: Federation,
    *,
    rounds: int,
    seed: int | Integer[Array, ""] = 0,
    initial: State | None = None,
    clients: int | None = None,
    rematerialise: bool = False,
) -> tuple[State, dict[str, Array]]:
    """The state after some rounds, and the records: a scan of rounds.

    It may be called under ``jit``, ``vmap`` and ``grad``. Reverse-mode gradients with respect to floats of the
    algorithm (a learning rate, INCFL's thresholds) go through all rounds. They are gradients of the computation itself:
    rounding, ranks and discrete choices have derivative zero. An algorithm's ``Entry.differentiable`` and
    ``Entry.flat`` list its parameters of each kind. Two loops have no static bound, so JAX refuses their gradients:
    ``mwfed`` in its mode "pooled", and the models that unseen clients of ``standalone`` deploy.

    The precision of matrix products and convolutions is the one that ``jax.default_matmul_precision`` sets.

    Args:
      algorithm: built with concrete or traced hyper-parameters.
      federation: a federation of one seed.
      rounds: number of rounds; 0 gives the state before round 0.
      seed: of the run. The same seed gives the same run as ``simulate``, up to rounding.
      initial: a state of one run, to continue that run with its seed. None: the state before round 0.
      clients: how many clients train side by side; None: all of the cohort.
      rematerialise: whether reverse mode recomputes each chunk of clients instead of storing its intermediate results.
        With ``clients=1`` a gradient then holds one client's training, and the state of every round.

    Returns:
      The state, and the records ``[rounds, ...]`` by name, as in ``Result.records``.

    Raises:
      ValueError: if a count is out of range, if the federation or the state is of several seeds, or if the table of a
        scenario has fewer rows than there are rounds.
    """
    if rounds < 0:
        raise ValueError(f"expected a number of rounds of at least 0, got {rounds}")
    _check_single(federation, initial, clients)
    for name, length, _ in algorithm.scenarios:
        if length is not None and rounds > length:
            raise ValueError(f"expected at most {length} rounds, for which the table of {name} has rows, got {rounds}")
    algorithm = wrapped(algorithm, seed=seed)
    federation = as_vectors(by_id(federation))
    population = federation.clients.id.shape[0]
    state = initial_state(algorithm, federation, jnp.asarray(seed, jnp.uint32)) if initial is None else initial
    layout = Layout(clients or population, 1, population)
    options = RoundOptions(skip=False, rematerialise=rematerialise)

    def step(state: State, _: None) -> tuple[State, dict[str, Array]]:
        state, info = one_round(algorithm, federation, layout, state, options=options)
        return state, unlabelled(info)

    return jax.lax.scan(step, state, None, length=rounds)


def evaluate_clients(
    algorithm: Algorithm, federation: Federation, state: State, *, clients: int | None = None
) -> dict[str, Array]:
    """Losses and accuracies of the models that clients would use, on their test rows and validation rows.

    It may be called under ``jit``, ``vmap`` and ``grad``, like ``rollout``, which gives the state.

    Args:
      algorithm: the algorithm that made the state.
      federation: a federation of one seed.
      state: of one run.
      clients: how many clients are evaluated side by side; None: all of them.

    Returns:
      ``test_loss`` and, if the task has a score, ``test_accuracy`` ``[N]`` by client id; ``valid_loss`` and
      ``valid_accuracy`` if some client has validation rows or the federation is traced; and what else
      ``evaluate`` in ``fljax.engine.rounds.evaluate`` lists. NaN for clients without training rows, without rows of
      the split, or not counted by the algorithm. A NaN loss becomes infinite.

    Raises:
      ValueError: if ``clients`` is not positive, or if the federation or the state is of several seeds.
    """
    _check_single(federation, state, clients)
    algorithm = wrapped(algorithm, seed=state.seed)
    federation = as_vectors(by_id(federation))
    population = federation.clients.id.shape[0]
    layout = Layout(population, 1, clients or population)
    sizes = federation.clients.valid.size
    try:
        valid = bool(np.any(np.asarray(sizes) > 0))
    except jax.errors.TracerArrayConversionError:
        valid = True
    return unlabelled(evaluate(algorithm, federation, layout, state, state.round, valid))


def _check_single(federation: Federation, state: State | None, clients: int | None) -> None:
    """Raises a ValueError unless federation and state are of one run, and ``clients`` is a positive number or None."""
    if clients is not None and clients < 1:
        raise ValueError(f"expected a positive number of clients, got {clients}")
    if np.ndim(federation.clients.id) != 1:
        raise ValueError(f"expected the federation of one seed, got one of {np.shape(federation.clients.id)[0]} seeds")
    if state is not None and np.ndim(state.round):
        raise ValueError(f"expected the state of one run, got one of {np.shape(state.round)[0]} runs")
