"""A state of another structure, shape or kind than the first one is refused, in one sentence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fljax import algorithms, data, engine, models
from fljax.protocol import Algorithm, Federation
from fljax.training import Local


@pytest.fixture(scope="module")
def federation() -> Federation:
    return data.federate(data.load("blobs"), "iid", clients=3)


def fedavg(federation: Federation) -> Algorithm:
    task = models.logistic_regression(federation.examples.x.shape[1:], 3)
    return algorithms.fedavg(task, Local(0.1, 4, steps=1))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("first", "kept", "words"),
    [
        (jnp.zeros(2, int), jnp.ones(2), r"expected int32\[2\], got float32\[2\]"),
        (jnp.zeros(2), jnp.ones((2, 1)), r"expected float32\[2\], got float32\[2, 1\]"),
        ({"h": jnp.zeros(2)}, (), r"expected PyTreeDef\(\{'h': \*\}\), got PyTreeDef\(\(\)\)"),
    ],
)
@pytest.mark.parametrize("clients", ["auto", "debug"])
def test_a_clients_state(federation: Federation, first: Any, kept: Any, words: str, clients: Any) -> None:
    plain = fedavg(federation)
    strange = plain._replace(
        init_client=lambda key, seat, down, data: first, train=lambda *given: (plain.train(*given)[0], kept)
    )
    with pytest.raises(ValueError, match=f"train must return a client's state like that of init_client: {words}"):
        engine.simulate(strange, federation, rounds=1, execution=engine.Execution(clients=clients))


def test_a_message_without_a_state(federation: Federation) -> None:
    """``Sent`` is a pair, too: its parts are then taken for a message and a state."""
    plain = fedavg(federation)
    with pytest.raises(ValueError, match="train must return a client's state like that of init_client"):
        engine.simulate(plain._replace(train=lambda *given: plain.train(*given)[0]), federation, rounds=1)
    with pytest.raises(ValueError, match="expected train to return a message and the client's state, got dict"):
        engine.simulate(plain._replace(train=lambda *given: {}), federation, rounds=1)


def test_a_server_of_whole_numbers(federation: Federation) -> None:
    plain = fedavg(federation)

    def init_server(key: Any, census: Any) -> Any:
        server = plain.init_server(key, census)
        return server._replace(model=jax.tree.map(lambda leaf: leaf.astype(int), server.model))

    strange = plain._replace(
        init_server=init_server,
        send=lambda server, seat: jax.tree.map(lambda leaf: leaf.astype(float), server.model),
        aggregate=lambda server, up, round: (
            server._replace(model=jax.tree.map(lambda leaf: leaf + 0.5, server.model)),
            {},
        ),
    )
    with pytest.raises(ValueError, match=r"a round must leave a server like that of init_server: expected int32\[3\]"):
        engine.simulate(strange, federation, rounds=1)


@pytest.mark.in_turn
@pytest.mark.parametrize("examples", ["device", pytest.param("host", marks=pytest.mark.thorough)])
def test_a_run_goes_on_where_clients_keep_random_keys(federation: Federation, examples: Any) -> None:
    plain = fedavg(federation)

    def train(*given: Any) -> Any:
        return plain.train(*given)[0], jax.random.fold_in(given[3], 1)

    keyed = plain._replace(init_client=lambda key, seat, down, data: key, train=train)
    how: dict[str, Any] = {"execution": engine.Execution(examples=examples)}
    whole = engine.simulate(keyed, federation, rounds=2, evaluate_every=2, **how)
    first = engine.simulate(keyed, federation, rounds=1, **how)
    then = engine.simulate(keyed, federation, rounds=1, initial=first.state, **how)
    found, expected = (jax.random.key_data(each.state.clients) for each in (then, whole))
    assert jnp.array_equal(found, expected)
