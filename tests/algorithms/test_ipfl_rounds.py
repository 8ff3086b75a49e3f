"""IP-FL against NumPy: five rounds, ragged clients, one without data, losses, and tokens that run out."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import training
from fljax.aggregators.tokens import lots
from fljax.algorithms import Bidding, Tokens, ipfl
from fljax.config import builder_arguments, load
from fljax.core.trees import take
from fljax.engine.rounds.states import Purpose, client_key, round_key
from fljax.protocol import Rows, Subset
from fljax.training import Local
from tests.algorithms.oracle_tools import NOTHING, POPULATION, deployed, rate_of, run
from tests.algorithms.rounds_tools import SEED, TASK, batches_of, close, federation, own_rows, stored
from tests.oracles import numpy_ipfl as oracle
from tests.oracles import numpy_round
from tests.toys.quick import QUICK

pytestmark = pytest.mark.usefixtures("quick_compilation")

HOW = Local(0.4, 3, steps=3, decay=0.8)
LOST = ((1,), (3,), (), (2, 4), ())
CLUSTERS = 2
HELD = {"validation": (0, 5, 8, 11), "distribution_0": (1, 6, 9), "distribution_1": (2, 3, 12, 14)}
MORE = {"distribution_2": (4, 7)}
# Validation rows by id; client 3 has none and judges on its training rows.
VALID = ((0,), (10, 11, 4), (1, 2, 3, 16), (), (5, 6, 12))
# The options of the config that follows the authors' code.
CODE = next(
    builder_arguments(ipfl, entry.options)
    for entry in load(pathlib.Path(__file__).parents[2] / "configs/ipfl/authors_fmnist.toml").algorithms
    if entry.label == "ipfl_code"
)
FEW = Tokens(initial=9.0)
# What is not default, for fljax and for the oracle.
CASES = {
    "three slots": ({"clients_per_cluster": 3}, {"slots": 3}),
    "two slots": ({}, {}),
    "few tokens": ({"tokens": Tokens(initial=2.0)}, {}),
    "code": (
        {**CODE, "tokens": CODE["tokens"]._replace(initial=9.0)},
        {"bid": "argmax", "random_slots": 1, "fill": None, "ranked": "all", "importance": "accuracy"},
    ),
    "no incentive": ({"bidding": Bidding("random", fill_empty=0)}, {"bid": "random", "fill": 0}),
    "past rewards": ({"bidding": Bidding(least_gain=-0.2), "tokens": FEW}, {"least_gain": -0.2}),
    "divisible": ({"tokens": Tokens(9.0, price=2, whole=False)}, {"integer": False, "price": 2}),
    "prices by cluster, budgets": ({"tokens": Tokens((9.0, 2.0, 3.0, 7.0, 1.0), price=(1, 3))}, {"price": (1, 3)}),
    "accuracy": ({"importance": "accuracy"}, {"importance": "accuracy"}),
    "best": ({"importance": "argmax"}, {"importance": "argmax"}),
    "distributions": (
        {"profile_on": "distributions", "normalised": False},
        {"normalised": False, "profile_on": "distributions"},
    ),
    "more distributions": ({"profile_on": "distributions"}, {"profile_on": "distributions"}),
    "iid": ({"profile_on": "iid"}, {"profile_on": "validation"}),
    "named rows": ({"profile_on": "distribution_1"}, {"profile_on": "distribution_1"}),
    "members": ({"profile_on": "members"}, {"profile_on": "members"}),
}


def data(held=HELD):
    """Clients judge on other rows than they train on: client k on those of client k + 1, and what nobody has."""
    rows = {name: Rows(jnp.asarray(index, jnp.int32), jnp.int32(len(index))) for name, index in held.items()}
    found = federation()
    index, size = np.zeros((POPULATION, 4), int), np.zeros(POPULATION, int)
    for place, id in enumerate(np.asarray(found.clients.id)):
        index[place, : len(VALID[id])], size[place] = VALID[id], len(VALID[id])
    valid = Rows(jnp.asarray(index, jnp.int32), jnp.asarray(size, jnp.int32))
    return found._replace(held=rows, clients=found.clients._replace(valid=valid))


@functools.partial(jax.jit, compiler_options=QUICK)
def draws(clients, id, round, slot):
    key = client_key(round_key(jnp.uint32(SEED), Purpose.TRAIN, round), id, slot)
    return training.draw(jax.random.fold_in(key, 0), Subset(NOTHING, take(clients.train, id)), HOW)


def numbers(t, purpose):
    key = jax.random.fold_in(round_key(jnp.uint32(SEED), Purpose.SELECT, t), purpose)
    return np.asarray(jax.random.uniform(key, (POPULATION, CLUSTERS), jnp.float32))


def lottery(t, purpose, *ties) -> Any:
    """Lots of the round for ties, by the same folds as the algorithm's."""
    key = jax.random.fold_in(round_key(jnp.uint32(SEED), Purpose.SELECT, t), purpose)
    columns = 1 if purpose == 2 else CLUSTERS  # between members a client has one lot for all clusters
    drawn = [np.asarray(lots(jax.random.fold_in(key, tie), (POPULATION, columns))) for tie in ties]
    return [np.broadcast_to(each, (POPULATION, CLUSTERS)) for each in drawn]


def model(tree, c):
    return {name: np.asarray(leaf[c], np.float64) for name, leaf in tree.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_rounds(name, tolerance):
    tolerance *= 5
    options, own = CASES[name]
    algorithm = ipfl(TASK, HOW, **({"tokens": FEW, "clients_per_cluster": 2} | options))
    server = HELD | (MORE if name == "more distributions" else {})
    ran = run(algorithm, data(server), LOST)
    states, records = ran.states, ran.records
    rules = oracle.Rules(**({"slots": 2} | own))
    clients = {k: own_rows(data(), k) for k in range(POPULATION) if len(own_rows(data(), k)[1])}
    clients = {k: (x.astype(float), y) for k, (x, y) in clients.items()}
    examples = np.asarray(data().examples.x, float), np.asarray(data().examples.y)
    judged = {
        k: (examples[0][list(VALID[k])], examples[1][list(VALID[k])]) if VALID[k] else clients[k] for k in clients
    }
    held = {of: (examples[0][list(rows)], examples[1][list(rows)]) for of, rows in server.items()}
    models = [model(states.server.models, np.s_[0, c]) for c in range(CLUSTERS)]
    zeros = np.zeros((POPULATION, CLUSTERS))
    tokens = np.full(POPULATION, options.get("tokens", FEW).initial)
    books = oracle.Books(tokens, np.zeros(CLUSTERS), np.zeros(CLUSTERS), zeros, zeros.astype(int), [[], []])
    seen = []
    for t in range(len(LOST)):
        accuracy = {k: oracle.accuracies(models, *rows) for k, rows in judged.items()}
        books = oracle.settle(books, accuracy, *lottery(t, 2, 2, 3), rules=rules)
        worth = {k: oracle.worth(models, *rows, rules.importance) for k, rows in judged.items()}
        found, at_random = oracle.candidates(books, worth, numbers(t, 0), *lottery(t, 0, 0), t=t, rules=rules)
        chosen = oracle.schedule(
            books, found, at_random, numbers(t, 1), *lottery(t, 1, 1), eligible=len(clients), rules=rules
        )
        np.testing.assert_allclose(records["tokens"][t], books.tokens, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(records["pool"][t], books.pools, rtol=1e-5, atol=1e-5)
        bid = [np.flatnonzero(records["bid"][t][:, c]).tolist() for c in range(CLUSTERS)]
        assert bid == [[] if random else sorted(who) for who, random in zip(found, at_random, strict=True)]
        rate, trained = rate_of(HOW, t), []
        for c in range(CLUSTERS):
            there = [k for k in chosen[c] if k not in LOST[t]]
            assert np.flatnonzero(records["membership"][t][:, c]).tolist() == sorted(there)
            batches = {k: batches_of(draws(stored(data()).clients, k, t, c)) for k in there}
            ends = {
                k: numpy_round.local_sgd(models[c], numpy_round.Client(*clients[k], b), rate)
                for k, b in batches.items()
            }
            trained.append({k: (end, len(clients[k][1])) for k, end in ends.items()})
        models, books = oracle.aggregate(models, books, trained, held, judged, rules)
        for c in range(CLUSTERS):
            close(model(states.server.models, np.s_[t + 1, c]), models[c], tolerance)
        np.testing.assert_allclose(records["cluster_contribution"][t], books.phi, rtol=20 * tolerance, atol=tolerance)
        seen.append((bid, chosen))
    # Else this shows little: a client in both clusters at once, bidders who are not chosen.
    if name == "three slots":
        assert any(set(a) & set(b) for _, (a, b) in seen[1:])
    if name == "two slots":
        assert any(set(who) - set(took) for bid, chosen in seen for who, took in zip(bid, chosen, strict=True))
    # The authors' code takes the weights on test rows, which are the training rows here.
    for k, rows in (clients if name == "code" else judged).items():
        found, _ = deployed(ran, k)
        close(found, oracle.personalised(models, oracle.worth(models, *rows, rules.importance)), tolerance)
