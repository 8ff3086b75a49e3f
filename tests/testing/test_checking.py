"""``fljax.testing.check_algorithm`` accepts sound algorithms and finds seeded faults."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import algorithms, training
from fljax.algorithms.single_model import SingleModel, single_model
from fljax.core import trees
from fljax.protocol import Algorithm, Cohort
from fljax.protocol.messages import Report, Sent
from fljax.testing import LAWS, Checked, check_algorithm
from tests.examples.own_algorithm import fednova

pytestmark = pytest.mark.in_turn


def averaging(task: Any, local: Any, clients_per_round: int | None, mean: Callable[[Any, Cohort], Any]) -> Algorithm:
    """FedAvg with a server that adds ``mean(updates, cohort)`` to the model."""

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        trained = training.train(key, down, data.train, task=task, local=local, round=seat.round)
        return Sent(trees.subtract(trained.params, down), Report(size=data.train.rows.size)), client

    def aggregate(server: Any, up: Any, round: Any) -> Any:
        return SingleModel(trees.add(server.model, mean(up.update, round.cohort))), {}

    def init_server(key: Any, census: Any) -> SingleModel:
        return SingleModel(task.init(key))

    parts: Any = {"train": train, "aggregate": aggregate, "init_server": init_server}
    return single_model(task, clients_per_round=clients_per_round, **parts)


def weighted(updates: Any, weights: Any, total: Any) -> Any:
    return jax.tree.map(lambda leaf: trees.ratio(jnp.tensordot(weights, leaf, 1), total), updates)


def sound(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
    """The mean over the clients that are present."""

    def mean(updates: Any, cohort: Cohort) -> Any:
        weights = cohort.present.astype(jnp.float32)
        return weighted(updates, weights, weights.sum())

    return averaging(task, local, clients_per_round, mean)


def draws_from_numpy(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
    """Noise from NumPy's global generator: a constant of each compiled program."""
    plain = sound(task, local, clients_per_round=clients_per_round)

    def train(*given: Any) -> Any:
        up, client = plain.train(*given)
        draw = lambda leaf: leaf + np.random.normal(size=leaf.shape).astype(np.float32)  # noqa: E731, NPY002
        noise = jax.tree.map(draw, up.update)
        return up._replace(update=noise), client

    return plain._replace(train=train)


def keeps_a_key(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
    """A server with a random key of its own, which it splits in every round."""
    plain = sound(task, local, clients_per_round=clients_per_round)

    def init_server(key: Any, census: Any) -> Any:
        return SingleModel(task.init(key), jax.random.fold_in(key, 1))

    def aggregate(server: Any, *rest: Any) -> Any:
        after, info = plain.aggregate(server, *rest)
        return after._replace(optimizer=jax.random.split(server.optimizer)[0]), info

    return plain._replace(init_server=init_server, aggregate=aggregate)


def weighs_by_place(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
    """The first row of a cohort weighs most."""

    def mean(updates: Any, cohort: Cohort) -> Any:
        weights = cohort.present / (1.0 + jnp.arange(cohort.present.shape[0]))
        return weighted(updates, weights, weights.sum())

    return averaging(task, local, clients_per_round, mean)


def keeps_nan(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
    """A mean of nobody is 0 / 0."""

    def mean(updates: Any, cohort: Cohort) -> Any:
        weights = cohort.present.astype(jnp.float32)
        return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1) / weights.sum(), updates)

    return averaging(task, local, clients_per_round, mean)


def grows(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
    """The server's state gets longer with every round."""
    plain = sound(task, local, clients_per_round=clients_per_round)

    def init_server(key: Any, census: Any) -> Any:
        return SingleModel(task.init(key), jnp.zeros(1))

    def aggregate(server: Any, *rest: Any) -> Any:
        after, info = plain.aggregate(server, *rest)
        return after._replace(optimizer=jnp.append(server.optimizer, 1.0)), info

    return plain._replace(init_server=init_server, aggregate=aggregate)


def counts_absent_clients(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
    """The mean over all rows of the cohort, whether a client came or not."""

    def mean(updates: Any, cohort: Cohort) -> Any:
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), updates)

    return averaging(task, local, clients_per_round, mean)


def branches_on_a_number(task: Any, local: Any, *, rate: float = 1.0) -> Algorithm:
    """A branch of Python on a float, which may be traced."""
    return sound(task, local if rate > 0 else local._replace(steps=1))


def shares_clients_models(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
    """The model sent depends on the number of padding entries, as a list of a client's rows does."""
    plain = sound(task, local, clients_per_round=clients_per_round)

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        up, client = plain.train(key, seat, down, client, data)
        return (up, data.train.rows.index), client

    def aggregate(server: Any, up: Any, *rest: Any) -> Any:
        return plain.aggregate(server, up[0], *rest)

    return plain._replace(train=train, aggregate=aggregate)


def has_nobody_as_peer(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
    """The client before and the one after; the first has none before it."""
    plain = sound(task, local, clients_per_round=clients_per_round)
    return plain._replace(peers=lambda server, seat: jnp.stack([seat.id - 1, jnp.minimum(seat.id + 1, 4)]))


FAULTS: dict[str, tuple[Callable[..., Algorithm], str]] = {
    "repeatable": (draws_from_numpy, "differs by up to"),
    "order": (weighs_by_place, r"\.server\.model\.weight differs by up to"),
    "empty rounds": (keeps_nan, "is not finite after a round of nobody"),
    "shapes": (grows, r"unlike that of init_server: expected float32\[1\], got float32\[2\] at \.optimizer"),
    "empty rows": (counts_absent_clients, r"\.server\.model\.weight differs by up to"),
    "traced numbers": (branches_on_a_number, "TracerBoolConversionError"),
    "messages": (shares_clients_models, "a message has another shape"),
    "peers": (has_nobody_as_peer, r"client 0 has peers with the ids \[-1, 1\]"),
}


@pytest.mark.parametrize("law", FAULTS)
def test_the_law_that_is_meant_finds_a_fault(law: str) -> None:
    build, words = FAULTS[law]
    with pytest.raises(AssertionError, match=rf"{build.__name__} breaks a law of algorithms\n{law}: .*{words}"):
        check_algorithm(build, only=law)


def keeping(task: Any, local: Any, clients_per_round: int | None, first: Any, kept: Callable[[Any], Any]) -> Algorithm:
    """FedAvg whose clients start with the state ``first`` and keep ``kept(first)``."""
    plain = sound(task, local, clients_per_round=clients_per_round)

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        return plain.train(key, seat, down, client, data)[0], kept(client)

    return plain._replace(train=train, init_client=lambda key, seat, down, data: first)


@pytest.mark.parametrize(
    ("first", "kept", "words"),
    [
        (jnp.zeros(2, int), lambda state: state + 0.5, r"expected int32\[2\], got float32\[2\]"),
        (jnp.zeros(2), lambda state: state.astype(jnp.float16), r"expected float32\[2\], got float16\[2\]"),
        ({"h": jnp.zeros(2)}, lambda state: {"h": jnp.zeros(3)}, r"expected float32\[2\], got float32\[3\] at \['h'\]"),
        ({"h": jnp.zeros(2)}, lambda state: (), r"expected PyTreeDef\(\{'h': \*\}\), got PyTreeDef\(\(\)\)"),
    ],
)
def test_a_clients_state_of_another_kind_is_found(first: Any, kept: Callable[[Any], Any], words: str) -> None:
    """The engine would store it in the dtype of the first state: whole numbers, or half of the digits, in silence."""

    def build(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
        return keeping(task, local, clients_per_round, first, kept)

    with pytest.raises(AssertionError, match=f"train returns a client's state unlike that of init_client: {words}"):
        check_algorithm(build, only="shapes")


@pytest.mark.quick
def test_a_model_of_another_dtype_is_found() -> None:
    def halves(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
        plain = sound(task, local, clients_per_round=clients_per_round)

        def aggregate(*given: Any) -> Any:
            after, info = plain.aggregate(*given)  # type: ignore[operator] - not a Streamed
            return after._replace(model=trees.cast(after.model, jnp.float16)), info

        return plain._replace(aggregate=aggregate)

    with pytest.raises(AssertionError, match=r"unlike that of init_server: expected float32\[.*\], got float16"):
        check_algorithm(halves, only="shapes")


def test_reading_the_state_of_an_empty_rows_client_is_found() -> None:
    """The table of the server is zero before the first round, so one round alone shows nothing."""

    def reads(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
        plain = sound(task, local, clients_per_round=clients_per_round)

        def init_server(key: Any, census: Any) -> Any:
            return SingleModel(task.init(key), jnp.zeros(census.train.shape[0]))

        def aggregate(server: Any, up: Any, round: Any) -> Any:
            cohort = round.cohort
            after, info = plain.aggregate(server, up, round)  # type: ignore[operator]
            read = jnp.where(cohort.present.any(), server.optimizer[cohort.id].sum(), 0.0)
            seen = trees.set_rows(server.optimizer, cohort.id, cohort.present, jnp.ones(cohort.id.shape))
            return SingleModel(trees.scale(after.model, 1 + 0.1 * read), seen), info

        return plain._replace(init_server=init_server, aggregate=aggregate)

    with pytest.raises(AssertionError, match=r"empty rows: .*\.server\.model\.weight differs by up to"):
        check_algorithm(reads, only="empty rows")


def test_a_mean_over_all_models_is_found_where_somebody_left() -> None:
    def mean_of_all(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
        plain = algorithms.fedfomo(task, local, clients_per_round=clients_per_round)
        return plain._replace(select=sound(task, local, clients_per_round=clients_per_round).select)

    with pytest.raises(AssertionError, match=r"members: a client that left .* must not count .* differs by up to"):
        check_algorithm(mean_of_all, only="members")


def test_the_same_laws_find_nothing_in_a_sound_algorithm() -> None:
    found = check_algorithm(sound, only=tuple(FAULTS))
    assert set(found.laws) == set(FAULTS)
    assert repr(found).startswith("sound obeys 8 laws: shapes, traced numbers, ")


def test_the_laws_after_one_that_they_need_are_left_out() -> None:
    """A run whose numbers change by themselves would break all others, too."""
    with pytest.raises(AssertionError) as raised:
        check_algorithm(draws_from_numpy)
    assert len(str(raised.value).splitlines()) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("build", [sound, keeps_a_key, fednova, algorithms.incfl])
def test_sound_algorithms_obey_all_laws(build: Callable[..., Algorithm]) -> None:
    assert check_algorithm(build) == Checked(build.__name__, tuple(LAWS))


@pytest.mark.thorough
def test_every_broken_law_has_a_sentence() -> None:
    def both(task: Any, local: Any, *, clients_per_round: int | None = None) -> Algorithm:
        def mean(updates: Any, cohort: Cohort) -> Any:
            weights = 1 / (1.0 + jnp.arange(cohort.present.shape[0]))
            return weighted(updates, weights, weights.sum())

        return averaging(task, local, clients_per_round, mean)

    with pytest.raises(AssertionError) as raised:
        check_algorithm(both, only=("empty rows", "order", "messages"))
    lines = str(raised.value).splitlines()
    assert lines[0] == "both breaks 2 laws of algorithms"
    assert [line.partition(":")[0] for line in lines[1:]] == ["order", "empty rows"]


@pytest.mark.quick
def test_names_of_laws_and_errors_of_builders() -> None:
    with pytest.raises(ValueError, match=r"expected one of the laws .*got 'ordre' \(did you mean 'order'\?\)"):
        check_algorithm(sound, only="ordre")
    with pytest.raises(ValueError, match="expected a positive clients_per_round, got 0"):
        check_algorithm(sound, clients_per_round=0)
    assert fljax.testing.check_algorithm is check_algorithm


def test_it_needs_neither_pytest_nor_the_tests() -> None:
    code = "import fljax.testing, sys; assert not {'pytest', '_pytest', 'tests'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
