"""Short texts: ``repr`` and the HTML of Federation, Plan and Result, also where arrays have no numbers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax
from fljax import algorithms, data
from fljax.core.describing import describe, html_table, name_of
from fljax.results import Result
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

WORDS = "5 clients, 2 unseen, 102 examples float32[4], at most 9 training rows each; held: test, validation"


def test_a_federation_in_one_line_and_as_a_table() -> None:
    federation = tiny_federation()
    assert repr(federation) == f"Federation({WORDS})"
    assert repr(data.stack([federation] * 3)) == f"Federation(3 seeds, {WORDS})"
    page = federation._repr_html_()
    assert "<td>seen</td><td>train</td><td>3</td><td>5.6</td><td>9</td>" in page
    assert page.count("<tr>") == 7


def test_a_federation_without_numbers_has_a_text() -> None:
    federation = tiny_federation()
    seen: list[str] = []

    def look(given: Any) -> Any:
        seen.append(repr(given) + given._repr_html_())
        return given.clients.train.size

    jax.jit(look)(federation)
    stacked = data.stack([federation] * 2)
    axes: Any = jax.tree.map(lambda _: 0, stacked)._replace(examples=None)
    jax.vmap(look, in_axes=(axes,))(stacked)
    jax.eval_shape(lambda given: look(given), federation)
    assert all("Federation(5 clients, 2 unseen" in each and "<table>" not in each for each in seen)
    assert len(seen) == 3
    nothing: Any = jax.tree.map(lambda leaf: None, federation)
    shapes: Any = jax.eval_shape(lambda: federation)
    for each in (nothing, axes, federation._replace(examples=None), federation._replace(clients=None)):
        assert each.__repr__().startswith("Federation(")
        assert each._repr_html_().startswith("<p>Federation(")
    assert repr(shapes) == f"Federation({WORDS})"


def test_a_plan_names_its_builder_and_arguments() -> None:
    task, local = logistic_regression(), fljax.Local(0.1, 2, steps=3)
    plan = fljax.Plan(algorithms.incfl, {"task": task, "local": local, "eps": 0.25}, {"threshold": jnp.ones((2, 5))})
    text = (
        "Plan(incfl: task=Task(classes=3, width=3), local=Local(learning_rate=0.1, batch_size=2, steps=3), eps=0.25; "
        "by seed threshold=float32[2,5])"
    )
    assert repr(plan) == text
    page = plan._repr_html_()
    assert "<td>eps</td><td>0.25</td>" in page
    assert "<td>threshold</td><td>float32[2,5]</td><td>by seed</td>" in page
    assert repr(fljax.Plan(functools.partial(algorithms.fedavg, clients_per_round=3))) == "Plan(fedavg)"
    assert jax.jit(lambda rate: len(repr(plan._replace(arguments={"rate": rate}))))(0.5) > 10


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (None, "None"),
        ("a", "'a'"),
        (np.zeros((2, 3), np.float32), "float32[2,3]"),
        (list(range(9)), "(0, 1, 2, 3, 4, ...)"),
        ({"a": 1.5}, "{a: 1.5}"),
        (fljax.Local(0.5, 4, epochs=1), "Local(learning_rate=0.5, batch_size=4, epochs=1)"),
        (len, "len"),
        (object(), "object"),
    ],
)
def test_values_in_a_few_words(value: Any, text: str) -> None:
    assert describe(value) == text


def test_names_and_escapes() -> None:
    assert name_of(functools.partial(functools.partial(len))) == "len"
    assert "<td>&lt;b&gt;</td>" in html_table(("a",), [("<b>",)])


def result(metrics: xr.Dataset, diverged: Any = ()) -> Result:
    return Result(metrics, xr.Dataset(), (), lambda *_: None, lambda *_: jnp.zeros(()), diverged)


def test_a_result_shows_its_main_metrics() -> None:
    dims, coordinates = ("seed", "evaluated_round"), {"seed": [0, 1], "evaluated_round": [0, 4]}
    metrics = xr.Dataset(
        {
            "average_accuracy": (dims, [[0.1, 0.7], [0.1, 0.8]]),
            "average_loss": (dims, [[0.1, np.nan], [0.1, np.nan]]),
            "test_loss": ((*dims, "client"), np.zeros((2, 2, 5))),
        },
        coordinates,
    )
    found = result(metrics)
    assert repr(found) == "Result(2 seeds, 4 rounds, 5 clients: average_accuracy 0.750 ± 0.071, average_loss none)"
    assert "<td>average_accuracy</td><td>0.750 ± 0.071</td>" in found._repr_html_()
    one = result(metrics.isel(seed=[0]), ((0, 3),))
    assert repr(one).endswith("average_accuracy 0.700, average_loss none, diverged: seed 0 in round 3)")
    assert repr(result(xr.Dataset())).startswith("Result(0 seeds, 0 rounds, 0 clients")
