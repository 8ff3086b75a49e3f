"""Early stopping of one client's training, against a loop in NumPy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import training
from fljax.training import Local, StopAlone
from tests.local_tools import (
    KEY,
    LINEAR,
    START,
    drawn_by_train,
    examples,
    numpy_rows,
    numpy_sgd,
    same,
    start,
    subset,
    trained,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


@functools.partial(jax.jit, static_argnames=("how", "stop"))
def run_until(own, judges, how, stop):
    return training.train_until(KEY, start(), own, judges, task=LINEAR, local=how, stop=stop)


def numpy_until(own, judges, how, stop):
    """Parameters and steps of the least loss on ``judges``, and the number of steps taken."""
    x, y = numpy_rows(judges)
    loss = lambda w: 0.5 * np.mean((x @ w - y) ** 2)  # noqa: E731
    drawn = drawn_by_train(own, how)
    unit = stop.every if how.epochs is None else stop.every * (len(drawn) // how.epochs)
    w, kept, at, least, waited, done = START, START, 0, loss(START), 0, 0
    while done < len(drawn) and waited < stop.patience:
        end = min(done + unit, len(drawn))
        w, done = numpy_sgd(w, own, drawn[done:end], how.learning_rate), end
        if loss(w) < least - stop.minimum_change:
            kept, at, least, waited = w, done, loss(w), 0
        else:
            waited += 1
    return kept, at, done


OWN = range(6)


def judging(index=(7, 9, 10)):
    """Rows whose least loss is about halfway between the start and where training ends, so that training passes it."""
    found = examples()
    x, y = numpy_rows(subset(OWN))
    halfway = 0.5 * START + 0.5 * np.linalg.lstsq(x, y, rcond=None)[0]
    y = np.round(np.asarray(found.x) @ halfway).astype(np.int32)
    return subset(index, data=found._replace(y=jnp.asarray(y)))


CASES = {
    "steps": (Local(0.3, 2, steps=17), StopAlone(every=3, patience=2)),
    "epochs": (Local(0.3, 4, epochs=7), StopAlone(patience=1)),
    "several epochs": (Local(0.1, 4, epochs=7), StopAlone(every=2, patience=3)),
    "large change": (Local(0.05, 3, steps=12), StopAlone(every=2, patience=2, minimum_change=0.05)),
    "to the end": (Local(0.01, 3, steps=7), StopAlone(every=5, patience=50)),
    "nothing is better": (Local(5.0, 3, steps=6), StopAlone(every=2, patience=1)),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", CASES)
def test_the_parameters_of_the_least_loss_are_kept(name):
    how, stop = CASES[name]
    own, judges = subset(OWN), judging()
    found = run_until(own, judges, how, stop)
    kept, at, _ = numpy_until(own, judges, how, stop)
    assert int(found.steps) == at
    np.testing.assert_allclose(found.params["w"], kept, rtol=2e-5)


def test_the_cases_differ():
    ends = {}
    for name, (how, stop) in CASES.items():
        own, judges = subset(OWN), judging()
        _, at, done = numpy_until(own, judges, how, stop)
        ends[name] = at, done, len(drawn_by_train(own, how))
    assert any(done < steps for _, done, steps in ends.values()), ends  # some stop early
    assert any(0 < at < done for at, done, _ in ends.values()), ends  # the best is neither the first nor the last
    assert ends["nothing is better"][0] == 0, ends
    assert ends["to the end"][1] == 7, ends


@pytest.mark.in_turn
def test_without_rows_to_judge_training_goes_on_to_its_end():
    how = CASES["steps"][0]
    found = run_until(subset(OWN), judging([]), how, StopAlone(every=3, patience=1))
    assert int(found.steps) == how.steps
    same(found.params, trained(subset(OWN), how).params)


@pytest.mark.in_turn
def test_clients_side_by_side_stop_each_for_itself():
    how, stop = CASES["steps"]
    owns = [subset(OWN), subset(range(3, 11)), subset([11])]
    judges = [judging(), judging([0, 1]), judging([])]
    rows = [jax.tree.map(lambda *leaf: jnp.stack(leaf), *(each.rows for each in group)) for group in (owns, judges)]

    def one(own, judge):
        own, judge = owns[0]._replace(rows=own), judges[0]._replace(rows=judge)
        return training.train_until(KEY, start(), own, judge, task=LINEAR, local=how, stop=stop)

    together = jax.jit(jax.vmap(one))(*rows)
    for place, (own, judge) in enumerate(zip(owns, judges, strict=True)):
        alone = run_until(own, judge, how, stop)
        assert int(together.steps[place]) == int(alone.steps)
        np.testing.assert_allclose(together.params["w"][place], alone.params["w"], rtol=1e-6)


@pytest.mark.in_turn
def test_a_loss_that_is_not_a_number_is_no_improvement():
    how, stop = Local(1e30, 3, steps=8), StopAlone(every=2, patience=2)
    found = run_until(subset(OWN), judging(), how, stop)
    assert int(found.steps) == 0
    np.testing.assert_allclose(found.params["w"], START)


@pytest.mark.parametrize(
    ("stop", "sentence"),
    [
        (StopAlone(every=0), r"expected stop\.every to be a whole number of at least 1, got 0"),
        (StopAlone()._replace(patience=1.5), r"expected stop\.patience to be a whole number of at least 1, got 1\.5"),
        (StopAlone(minimum_change=-1.0), r"expected stop\.minimum_change to be one finite number of at least 0"),
        (3, "expected stop to be"),
    ],
)
def test_values_are_checked(stop, sentence):
    with pytest.raises(ValueError, match=sentence):
        training.check_stop(stop)
