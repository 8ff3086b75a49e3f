"""What IP-FL must equal, whatever the spec's oracles 6.14 say of whole runs."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import Bidding, Exploration, Tokens, fedavg, ipfl
from fljax.algorithms.market import Clustering
from fljax.core import trees
from fljax.engine.rounds.evaluate import Judge
from fljax.engine.rounds.states import by_id, initial_state
from fljax.protocol import Rows
from fljax.training import Local
from tests.algorithms.rounds_tools import TASK, federation, history, missing
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")

HOW, WHOLE = Local(0.4, 3, steps=3, decay=0.8), Local(0.4, 7, steps=2)  # WHOLE reads all rows in every step
POPULATION, ROUNDS = 5, 6


def data():
    rows = Rows(jnp.asarray((0, 5, 8, 11), jnp.int32), jnp.int32(4))
    return federation()._replace(held={"validation": rows})


@pytest.mark.thorough
def test_one_cluster_of_everybody_is_fedavg_by_size(exact):
    one, records = history(
        lambda _: ipfl(TASK, HOW, clusters=1, clients_per_cluster=POPULATION, tokens=Tokens(50)), data(), ROUNDS
    )
    plain, _ = history(lambda _: fedavg(TASK, HOW, clients_per_round=None), data(), ROUNDS)
    for name in plain.server.model:
        found, expected = one.server.models[name][:, 0], plain.server.model[name]
        np.testing.assert_allclose(found, expected, rtol=10 * exact, atol=10 * exact)
    assert records["membership"][:, [1, 2, 3, 4], 0].all()  # client 0 has no data
    last = jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), one)
    algorithm = ipfl(TASK, HOW, clusters=1)
    for id in range(1, POPULATION):
        client = trees.take(by_id(data()).clients, id)
        deployed, _ = Judge(algorithm, by_id(data()), last, jnp.int32(ROUNDS)).deploy(client, ())
        for name in deployed:
            np.testing.assert_allclose(deployed[name], last.server.models[name][0], rtol=exact, atol=exact)


@pytest.mark.sampled(2)
def test_equal_models_are_everybodys_model(exact):
    algorithm = ipfl(TASK, HOW, clusters=3)
    state = initial_state(algorithm, by_id(data()), jnp.uint32(0))
    client = trees.take(by_id(data()).clients, 3)
    deployed, _ = Judge(algorithm, by_id(data()), state, jnp.int32(0)).deploy(client, ())
    for name, leaf in deployed.items():
        np.testing.assert_allclose(leaf, state.server.models[name][2], rtol=10 * exact, atol=exact)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "bidding": Bidding("argmax", fill_empty="always"),
            "exploration": Exploration(random_slots=1),
            "tokens": Tokens(4, ranked="all"),
            "importance_split": "test",
        },
        {"bidding": Bidding("random"), "tokens": Tokens(4, price=3)},
        {"importance": "accuracy"},
        {"tokens": Tokens(4, ranked="all", most_reimbursed=0.5)},
    ],
    ids=["default", "code", "random", "accuracy", "all"],
)
def test_tokens_are_conserved_to_the_last_one(options):
    algorithm = ipfl(TASK, HOW, clients_per_cluster=2, **{"tokens": Tokens(4)} | options)
    lossy = missing(algorithm, ((1,), (), (3, 4), (2,), (), ()) * 5)
    states, records = history(lambda _: lossy, data(), 30)
    books = states.server.books
    assert (books.tokens.sum(axis=1) + books.pools.sum(axis=1) == 4 * POPULATION).all()
    assert (records["tokens"].sum(axis=1) + records["pool"].sum(axis=1) == 4 * POPULATION).all()
    assert books.tokens.min() >= 0
    assert books.pools.min() >= 0
    moved = np.diff(records["tokens"], axis=0)
    flows = records["reimbursed"] + records["rewarded"] - records["paid"]
    np.testing.assert_array_equal(moved, flows[1:])
    assert records["paid"].sum() > 0
    assert records["reimbursed"].sum() + records["rewarded"].sum() > 0


@pytest.mark.thorough
def test_contributions_of_a_round_sum_to_zero(exact):
    _, records = history(lambda _: ipfl(TASK, HOW, clients_per_cluster=3), data(), ROUNDS)
    members = np.where(records["membership"], records["cluster_contribution"], 0)
    np.testing.assert_allclose(members.sum(axis=1), 0, atol=10 * exact)
    assert np.abs(members).max() > 1e-4


@pytest.mark.thorough
def test_without_bidders_a_cluster_keeps_its_model():
    """Nobody bids for the second cluster once its model is the worse one for everybody."""
    start = Clustering(
        jnp.asarray([0, 1, 0, 1, 0]),
        {"w": jnp.zeros((2, 3, 4)), "b": jnp.asarray([np.zeros(4), [0.0, 90, 0, 0]])},  # the second one knows class 1
    )
    # ... which nobody has.
    world = federation(y=np.zeros(17, int))._replace(held=data().held)
    cases: tuple[tuple[int | Literal["always"], bool], ...] = ((0, False), ("always", True))
    for fill, moves in cases:
        algorithm = ipfl(TASK, Local(0.05, 7, steps=1), clustering=start, bidding=Bidding("argmax", fill_empty=fill))
        states, records = history(lambda _, a=algorithm: a, world, 3)
        nobody = ~records["bid"][1:].any(axis=1)  # [round, cluster]
        assert nobody.any()
        moved = (np.diff(states.server.models["b"], axis=0) != 0).any(axis=2)[1:]
        assert (moved[nobody].all(), moved[nobody].any()) == (moves, moves)


@pytest.mark.thorough
def test_names_of_clusters_do_not_matter(exact):
    """All bidders are selected and read all of their rows, so that chance decides nothing."""
    rng = np.random.default_rng(4)
    models = {"w": rng.normal(size=(3, 3, 4)), "b": rng.normal(size=(3, 4))}
    member, order = np.array([0, 1, 2, 0, 1]), np.array([2, 0, 1])

    def build(numbers):
        return ipfl(
            TASK,
            WHOLE,
            clusters=3,
            clients_per_cluster=POPULATION,
            bidding=Bidding(fill_empty=0),
            clustering=Clustering(jnp.asarray(numbers["member"], jnp.int32), numbers["models"]),
        )

    kind = jnp.result_type(float)
    given = lambda member, models: {  # noqa: E731
        "member": jnp.asarray(member),
        "models": jax.tree.map(lambda leaf: jnp.asarray(leaf, kind), models),
    }
    straight, records = history(build, data(), ROUNDS, given(member, models))
    place = np.argsort(order)  # cluster c is called place[c] now
    turned, other = history(build, data(), ROUNDS, given(place[member], {n: leaf[order] for n, leaf in models.items()}))
    for name in models:
        np.testing.assert_allclose(
            turned.server.models[name], straight.server.models[name][:, order], rtol=100 * exact, atol=100 * exact
        )
    np.testing.assert_array_equal(other["membership"], records["membership"][:, :, order])
    np.testing.assert_array_equal(other["tokens"], records["tokens"])
    first = records["membership"][0]
    assert first[[1, 2, 3, 4], member[1:]].all()  # only its own members train a cluster's model in round 0
    assert first.sum() == 4


@pytest.mark.thorough
def test_strangers_are_given_a_mixture_without_training():
    task, seen = logistic_regression(), by_id(tiny_federation())
    algorithm = ipfl(task, Local(0.3, 4, steps=2), clients_per_cluster=2, importance="accuracy")
    state = initial_state(algorithm, seen, jnp.uint32(0))
    rng = np.random.default_rng(0)
    models = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), state.server.models)
    state = state._replace(server=state.server._replace(models=models))
    stranger = trees.take(seen.unseen, 1)
    deployed, _ = Judge(algorithm, seen, state, jnp.int32(3), known=False).deploy(stranger)
    rows = np.asarray(stranger.valid.index)[: int(stranger.valid.size)]
    x, y = np.asarray(seen.examples.x)[rows], np.asarray(seen.examples.y)[rows]
    weight, bias = (np.asarray(leaf) for leaf in models)
    right = np.array([np.mean((x @ weight[c] + bias[c]).argmax(axis=1) == y) for c in range(2)])
    u = right / right.sum()
    np.testing.assert_allclose(deployed.weight, np.tensordot(u, weight, 1), rtol=1e-5)
