"""Looking up names, and short texts: ``repr`` and the HTML of Federation, Plan and Result, also without numbers."""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax
from fljax import algorithms, data
from fljax.core import names
from fljax.core.names import describe, name_of
from fljax.results import Result
from tests.refusals import refuses
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

WORDS = "5 clients, 2 unseen, 102 examples float32[4], at most 9 training rows each; held: test, validation"


def test_unknown_lists_valid_names_and_the_nearest():
    sentence = names.unknown("algorithm", "fedavgg", ["fedavg", "incfl"])
    assert sentence == "expected one of the algorithms fedavg, incfl, got 'fedavgg' (did you mean 'fedavg'?)"


def test_unknown_asks_nothing_where_nothing_is_near():
    assert names.unknown("model", "zzz", ["mlp"]) == "expected one of the models mlp, got 'zzz'"


def test_unknown_with_nothing_to_choose_from():
    sentence = names.unknown("option", "size", [])
    assert sentence == "expected no option (there are none to choose from), got 'size'"


@pytest.mark.parametrize("got", ["Fashion-MNIST", "fashion_mnits", "fashion mnist"])
def test_nearest_is_blind_to_case_and_hyphens(got):
    assert names.nearest(got, ["digits", "fashion_mnist"]) == "fashion_mnist"


def test_resolve_registry_entry():
    assert names.resolve("one", {"one": 1}, "number") == 1


def test_resolve_unknown_name():
    refuses(lambda: names.resolve("onee", {"one": 1}, "number"), r"did you mean 'one'\?\); one's own number is written")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_resolve_import_path_in_current_directory(here):
    (here / "mine_a.py").write_text("class Box:\n    build = len\n")
    path = list(sys.path)
    assert names.resolve("mine_a:Box.build", {}, "algorithm") is len
    assert sys.path == path


def test_resolve_missing_attribute(here):
    (here / "mine_b.py").write_text("def builder(): ...\n")
    with pytest.raises(ValueError, match=r"called 'bilder' in 'mine_b'.*did you mean 'builder'") as caught:
        names.resolve("mine_b:bilder", {}, "algorithm")
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["no_such_module:x", "no_such_package.inner:x"])
def test_resolve_missing_module(here, name):
    with pytest.raises(ValueError, match="there is no module 'no_such_") as caught:
        names.resolve(name, {}, "model")
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", [":x", "module:", ".relative:x"])
def test_resolve_malformed_path(name):
    refuses(lambda: names.resolve(name, {}, "model"), "expected an import path 'module:name' of a model")


def test_resolve_module_that_fails_keeps_the_cause(here):
    (here / "mine_c.py").write_text("import no_such_dependency\n")
    refuses(lambda: names.resolve("mine_c:x", {}, "model"), "expected 'mine_c' to import, got No module named")
    (here / "mine_d.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match="got ZeroDivisionError") as caught:
        names.resolve("mine_d:x", {}, "model")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_labels_as_names_of_files():
    assert names.file_name("q-ffl (q=1)") == "q-ffl %28q%3D1%29"
    assert [names.file_name(each) for each in (".", "..", "../a")] == ["%2E", "%2E%2E", "..%2Fa"]
    assert names.file_name("FedAvg").startswith("FedAvg-")
    assert len(names.file_name("x" * 500)) == 197


@pytest.mark.in_turn
def test_a_federation_in_one_line_and_as_a_table() -> None:
    federation = tiny_federation()
    assert repr(federation) == f"Federation({WORDS})"
    assert repr(data.stack([federation] * 3)) == f"Federation(3 seeds, {WORDS})"
    page = federation._repr_html_()
    assert "<td>seen</td><td>train</td><td>3</td><td>5.6</td><td>9</td>" in page
    assert page.count("<tr>") == 9  # and rows after a drift


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


def test_names_of_functions() -> None:
    assert name_of(functools.partial(functools.partial(len))) == "len"


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
