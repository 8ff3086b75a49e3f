"""Errors in a user's algorithm name the algorithm, the function of the protocol, the file and the line."""

from __future__ import annotations

import functools
import pathlib
import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fljax import AlgorithmError, engine
from fljax.algorithms import fedavg
from fljax.core.errors import at_step, during, in_words, place_of
from fljax.engine.rounds import errors
from fljax.protocol import Algorithm, Cohort, Poll, Round
from fljax.protocol.sums import Streamed, as_streamed
from fljax.scenarios import median_clipped
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=2)
HERE = pathlib.Path(__file__)


def nope(*arguments: Any) -> Any:
    return {}["nope"]  # in a function


def _usual() -> Algorithm:
    return fedavg(TASK, LOCAL)


def _broken(name: str) -> Algorithm:
    """FedAvg whose function ``name`` raises a KeyError."""
    usual = _usual()
    if name == "ask":
        return usual._replace(poll=Poll(nope))
    if name in ("contribute", "finish"):
        return usual._replace(aggregate=as_streamed(usual.aggregate)._replace(**{name: nope}))
    return usual._replace(**{name: nope})


def _line(mark: str) -> str:
    """The place of the line of this file with this mark."""
    lines = HERE.read_text(encoding="utf-8").splitlines()
    number = next(place for place, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
    return f"{HERE.name}:{number}"


def _message(error: BaseException) -> str:
    """The sentence with the file's name alone."""
    return str(error).replace(f"{HERE.parent}/", "").replace("tests/engine/", "")


NAMES = (
    "init_server",
    "init_client",
    "send",
    "ask",
    "select",
    "train",
    "contribute",
    "finish",
    "aggregate",
    "common",
    "personal",
    "models",
    "counts",
    "peers",
)


@pytest.mark.in_turn
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_each_function_is_named(name: str) -> None:
    with pytest.raises(AlgorithmError) as caught:
        engine.simulate(_broken(name), tiny_federation(), rounds=1)
    assert _message(caught.value) == f"{name} raised KeyError: 'nope' ({_line('in a function')})"
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.function == name


def test_the_builder_of_a_plan_is_named() -> None:
    def moon(task: Any, missing: Any) -> Algorithm:
        raise TypeError("no moon")  # in a builder

    plan = engine.Plan(moon, {"task": TASK, "missing": 1.0})
    for run in (
        lambda: engine.simulate(plan, tiny_federation(), rounds=1),
        lambda: engine.estimate(plan, tiny_federation(), engine.Schedule(1)),
    ):
        with pytest.raises(AlgorithmError) as caught:
            run()
        words = f"moon: the builder raised TypeError: no moon ({_line('in a builder')})"
        assert _message(caught.value) == words


def _old_finish(key: Any, round: Any, server: Any, total: Any, rows: Any, cohort: Any, held: Any) -> Any:
    return server, {}


def test_an_aggregation_with_the_signature_of_before_is_one_sentence() -> None:
    stream = as_streamed(_usual().aggregate)
    old = _usual()._replace(aggregate=stream._replace(finish=_old_finish))
    sentence = (
        "expected finish to take (server, total, rows, round), got (key, round, server, total, rows, cohort, held); "
        "round has the fields key, number, cohort, held"
    )
    for call in (
        lambda: engine.simulate(old, tiny_federation(), rounds=1),
        lambda: engine.rehearse(engine.Plan(lambda: old), tiny_federation()),
        lambda: median_clipped(old),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            call()


@pytest.mark.parametrize("name", ["finish", "aggregate"])
def test_the_round_of_an_aggregation_is_known_where_numbers_are(name: str) -> None:
    aggregate: Any = errors.wrapped(_broken(name)).aggregate
    cohort = Cohort(jnp.arange(2), jnp.zeros(2, jnp.int32), jnp.ones(2, bool))
    given = ((), (), ()) if name == "finish" else ((), ())
    with jax.disable_jit(), pytest.raises(AlgorithmError) as caught:
        getattr(aggregate, name, aggregate)(*given, Round(jax.random.key(0), jnp.int32(3), cohort, {}))
    assert caught.value.round == 3


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["train", "finish"])
def test_before_a_run_and_inside_other_code(name: str) -> None:
    algorithm, federation = _broken(name), tiny_federation()
    for call in (
        lambda: engine.rehearse(algorithm, federation),
        lambda: engine.estimate(algorithm, federation, engine.Schedule(1)),
        lambda: jax.jit(lambda: engine.rollout(algorithm, federation, rounds=1))(),
        lambda: engine.sweep([algorithm], federation, rounds=1),
    ):
        with pytest.raises(AlgorithmError) as caught:
            call()
        assert _message(caught.value) == f"{name} raised KeyError: 'nope' ({_line('in a function')})"


def test_errors_of_tracing_are_named() -> None:
    usual = _usual()

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        if data.train.rows.size > 3:  # in tracing
            down = jax.tree.map(jnp.zeros_like, down)
        return usual.train(key, seat, down, client, data)

    with pytest.raises(AlgorithmError) as caught:
        engine.simulate(usual._replace(train=train), tiny_federation(), rounds=1)
    assert isinstance(caught.value.__cause__, jax.errors.TracerBoolConversionError)
    found = _message(caught.value)
    words = "train raised TracerBoolConversionError: Attempted boolean conversion of traced array with shape bool[]."
    assert found == f"{words} ({_line('in tracing')})"


def test_an_error_in_a_loss_names_its_line() -> None:
    def loss(logits: Any, y: Any) -> Any:
        return logits.losses  # in a loss

    for run in (
        lambda task: engine.simulate(fedavg(task, LOCAL), tiny_federation(), rounds=1),
        lambda task: engine.standalone(task, tiny_federation(), LOCAL),
    ):
        with pytest.raises(AlgorithmError) as caught:
            run(TASK._replace(loss=loss))
        assert caught.value.function == "the loss loss"
        assert _message(caught.value).endswith(f"({_line('in a loss')})")


def test_a_value_error_of_the_user_is_no_bad_input() -> None:
    def select(*arguments: Any) -> Any:
        raise ValueError("expected a moon")

    with pytest.raises(AlgorithmError, match="select raised ValueError: expected a moon"):
        engine.simulate(_usual()._replace(select=select), tiny_federation(), rounds=1)


def test_equal_algorithms_share_their_programs() -> None:
    algorithm, federation = _usual(), tiny_federation()
    before = [engine.groups([algorithm, algorithm]), engine.groups([algorithm, _usual()])]
    assert before == [[[0, 1]], [[0], [1]]]
    engine.rehearse(algorithm, federation)
    wrapped = errors.wrapped(algorithm)
    assert isinstance(wrapped.aggregate, Streamed)
    assert wrapped.train.__name__ == algorithm.train.__name__  # type: ignore[attr-defined]
    assert wrapped.models is None


def test_the_sentence() -> None:
    whole, inner = during("train", algorithm="moon", seed=2), during("send", client=jnp.int32(0), round=jnp.asarray(3))
    with pytest.raises(AlgorithmError) as caught, whole, inner, at_step(jnp.int32(4)):
        raise KeyError("nope")
    error = caught.value
    assert str(error).startswith("moon: send of client 0 (round 3, seed 2, local step 4) raised KeyError: 'nope' (")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    error.complete(client=5, round=None, algorithm="other")
    assert str(copy) == str(error)
    error.unseen = True
    assert " of unseen client 0 " in str(error)
    error.client = None
    assert " of an unseen client " in str(error)


def test_long_words_are_shortened_and_advice_is_left_out() -> None:
    assert in_words(RuntimeError("first\n line\n\nadvice")) == "RuntimeError: first line"
    assert in_words(KeyError()) == "KeyError"
    assert len(in_words(RuntimeError("x" * 5000))) == 600


@pytest.mark.unchecked
def test_without_code_of_the_user_the_place_is_in_fljax() -> None:
    local = LOCAL._replace(optimizer=functools.partial(isinstance, 1))  # type: ignore[arg-type,return-value]
    with pytest.raises(AlgorithmError) as caught:
        engine.simulate(fedavg(TASK, local), tiny_federation(), rounds=1)
    assert (caught.value.place or "").startswith("fljax/")
    assert place_of(KeyError()) is None
