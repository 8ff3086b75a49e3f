"""Heterogeneous training: learning rates, local steps and epochs by client.

Source: Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization" (FedNova),
section 1, on clients that differ in local steps and in learning rates. What a client trains with is part of the data
that all local training reads (``Subset``), so it holds for each algorithm that trains by ``fljax.training``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import jax.numpy as jnp
from jaxtyping import Array, Int, Integer, Key, PyTree

from fljax.core.values import Range, check_by_client, checked
from fljax.protocol import Algorithm, AnyArray, Census, LocalData, Seat
from fljax.scenarios.common import ByRound, Entry, applied_scenarios, of_client, with_clients

Factors = Annotated[ByRound, Range(0)]
Counts = Annotated[
    Integer[AnyArray, "*rounds N"] | Sequence[int] | Sequence[Sequence[int]] | int | Int[Array, ""], Range(1)
]


@checked
def heterogeneous_training(
    inner: Algorithm, *, rate_factor: Factors = 1.0, steps: Counts | None = None, epochs: Counts | None = None
) -> Algorithm:
    """Client k trains at ``rate_factor_k eta_t`` and takes at most ``steps_k`` steps and ``epochs_k`` epochs.

    ``eta_t`` is the learning rate of the round, with decay and schedule; Ditto's personal rate has the factor, too.
    This holds wherever a client trains on its rows: in each training of a round (``ditto`` and ``fedrep`` have two),
    and before it uses a model. SCAFFOLD's variates, FedNova's ``A_k`` and the steps of pFedMe and APFL follow. Rates of
    other problems stay: ``alpha`` of Per-FedAvg (unless "local"), those of mixing weights in FedALA and of theta in
    pFedMe, and q-FFL's L. Unseen clients and standalone models train as without the scenario.

    Args:
      inner: any algorithm that trains by ``fljax.training``.
      rate_factor: one number of at least 0, one per client id ``[N]``, or one per round and client id ``[rounds, N]``,
        where row ``t % rounds`` is for round t. FedNova leaves out a client with 0.
      steps: the most steps, the first ones of ``Local``, in the same forms, also for MW-Fed. None: all.
      epochs: the most passes over the client's rows, of ``ceil(n_k / b)`` steps each, also where ``Local`` has steps.

    Returns:
      The algorithm. Inside itself, factors multiply, and the smaller numbers of steps and epochs hold.

    Raises:
      ValueError: if a factor is negative, a number of steps or epochs is not positive, or an array is for another
        number of clients.
    """
    given = {"rate_factor": (rate_factor, jnp.result_type(float)), "steps": (steps, int), "epochs": (epochs, int)}
    numbers = {name: jnp.asarray(value, dtype) for name, (value, dtype) in given.items() if value is not None}

    def init_server(key: Key[Array, ""], census: Census) -> PyTree:
        for name, values in numbers.items():
            check_by_client(name, values, census.train.shape[0])
        return inner.init_server(key, census)

    def own(seat: Seat, client: PyTree, data: LocalData) -> tuple[Algorithm, PyTree, LocalData]:
        found: dict[str, Any] = {}
        for name, values in numbers.items() if seat.known else ():
            value, outer = of_client(values, seat), getattr(data.train, name)
            both = jnp.multiply if name == "rate_factor" else jnp.minimum
            found[name] = value if outer is None else both(value, outer)
        return inner, client, data._replace(train=data.train._replace(**found))

    scenarios = applied_scenarios(inner, "heterogeneous_training")
    return with_clients(inner, own)._replace(init_server=init_server, scenarios=scenarios)


ENTRY = Entry(
    heterogeneous_training,
    "learning rates, local steps and epochs differ by client",
    {"rate_factor": ((1.0, 0.5, 1.5, 0.3, 0.6), (0.4, 1.0, 1.0, 0.0, 0.6)), "steps": (3, 1, 2, 2, 5)},
    ("wang2020tackling",),
    ("rate_factor",),
)
