"""What an experiment hands to builders: every name that a config may not set is given to who asks for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from fljax import algorithms, contributions, data, models, scenarios
from fljax import config as configuration
from fljax.config.name_resolution import OFFERS, Offer, checked_options
from fljax.experiments import run
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.setup import resolve_setup
from fljax.results import Reference
from tests.toys.configs import BASE, build_federation


def asking(names: Any, seen: dict[str, Any], build: Callable[..., Any], positional: int = 0) -> Callable[..., Any]:
    """A builder with so many positional parameters that cannot do without the keywords ``names``."""

    def builder(*given: Any, **named: Any) -> Any:
        inspect.signature(builder).bind(*given, **named)
        seen.update(named)
        return build(*given, **named)

    kinds = inspect.Parameter
    places = [kinds(f"place_{each}", kinds.POSITIONAL_OR_KEYWORD) for each in range(positional)]
    function: Any = builder
    function.__signature__ = inspect.Signature(places + [kinds(name, kinds.KEYWORD_ONLY) for name in sorted(names)])
    return builder


def build(**changes: Any) -> configuration.Config:
    return configuration.parse(BASE | changes, name="tiny")


def source(clients: int, rows: int = 3) -> None: ...


def longer_source(clients: int, rows: int = 3, noise: float = 0.1) -> None: ...


def test_a_function_that_autoreload_changes_has_its_new_options() -> None:
    """IPython puts another code into the same function."""
    assert checked_options("data", source, {"rows": 4}, OFFERS["dataset"]) == {"rows": 4}
    before = source.__code__, source.__defaults__
    try:
        source.__code__, source.__defaults__ = longer_source.__code__, longer_source.__defaults__
        options = {"rows": 4, "noise": 0.5}
        assert checked_options("data", source, options, OFFERS["dataset"]) == options
    finally:
        source.__code__, source.__defaults__ = before


class Tokens(NamedTuple):
    share: float = 1.0


class MoreTokens(NamedTuple):
    share: float = 1.0
    price: float = 2.0


def builder_of_a_notebook(tokens: Tokens = Tokens()) -> None: ...  # noqa: B008


def test_a_class_of_a_notebook_may_be_defined_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_of_a_notebook, "__module__", "__main__")
    checked_options("a", builder_of_a_notebook, {"tokens": {"share": 0.5}}, Offer())
    monkeypatch.setitem(globals(), "Tokens", MoreTokens)
    options = {"tokens": {"share": 0.5, "price": 3.0}}
    assert checked_options("a", builder_of_a_notebook, options, Offer()) == options


def checked(config: configuration.Config) -> dict[str, Any]:
    return run.check_setup(resolve_setup(config), rehearsed=False)


@pytest.mark.thorough
def test_an_algorithm_is_handed_every_reserved_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    builder = asking(OFFERS["algorithm"].named, seen, lambda task, local, **_: algorithms.fedavg(task, local))
    monkeypatch.setitem(algorithms.REGISTRY, "asking", builder)
    checked(build(algorithms=[{"name": "asking"}]))
    assert seen.keys() == OFFERS["algorithm"].named
    assert seen["clustering"] is None
    assert [np.shape(leaf) for leaf in jax.tree.leaves(seen["reference"])] == [(6,)] * 3 + [(2,)] * 3 + [(6,), (2,)]
    np.testing.assert_array_equal(seen["reference"].required, seen["threshold"])
    np.testing.assert_array_equal(seen["reference"].threshold, seen["threshold"])


@pytest.mark.thorough
def test_the_reference_has_what_unseen_clients_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def builder(task: Any, local: Any, *, reference: Any) -> Any:
        seen.append([None if leaf is None else np.shape(leaf) for leaf in reference])
        return algorithms.incfl(task, local, threshold=reference.threshold)

    monkeypatch.setitem(algorithms.REGISTRY, "informed", builder)
    config = build(algorithms=[{"name": "informed"}])
    setup = resolve_setup(config)
    (plan,) = run.check_setup(setup, rehearsed=True).values()
    assert len(seen) > 1
    without_models = [(6,)] * 3 + [(2,)] * 3 + [None, (6,), (2,), None, None]
    assert all(shapes == without_models for shapes in seen), seen
    alone = Reference(*[np.ones((2, 6))] * 3, *[np.ones((2, 2))] * 3)
    plan = preparation.build_plan(setup, setup.algorithms[0], alone)
    assert plan.by_seed == {"reference": alone}


def test_a_scenario_is_handed_every_reserved_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    wrapper = asking(OFFERS["scenario"].named, seen, lambda algorithm, **_: algorithm, positional=1)
    monkeypatch.setitem(scenarios.REGISTRY, "asking", wrapper)
    checked(build(algorithms=[{"name": "fedavg"}, {"name": "incfl", "scenarios": [{"name": "asking"}]}]))
    assert seen.keys() == OFFERS["scenario"].named


def test_a_contribution_is_handed_every_reserved_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    measure = asking(OFFERS["contribution"].named, seen, lambda *, size, **_: size)
    monkeypatch.setitem(contributions.CONTRIBUTIONS, "asking", measure)
    checked(build(algorithms=[{"name": "iafl", "contribution": "asking"}]))
    assert seen.keys() == OFFERS["contribution"].named


def test_a_dataset_and_a_partition_are_handed_every_reserved_name(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, Any] = {}
    dealt: dict[str, Any] = {}
    source = asking(OFFERS["dataset"].named, read, lambda **_: data.load("blobs"))
    names = OFFERS["partition"].named

    def deal(labels: Any, *, clients: int, unseen: int, **_: Any) -> Any:
        return np.array_split(np.arange(len(labels)), clients + unseen)

    monkeypatch.setitem(data.SOURCES, "asking", source)
    monkeypatch.setitem(data.PARTITIONERS, "asking", asking(names, dealt, deal, positional=1))
    chosen = BASE["data"] | {"dataset": "asking", "partition": "asking", "partition_options": {}}
    build_federation(build(data=chosen))
    assert (read.keys(), dealt.keys()) == (OFFERS["dataset"].named, names)


def test_a_model_is_handed_every_reserved_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    names = OFFERS["model"].named - {"vocabulary"}
    builder = asking(names, seen, lambda shape, classes, **_: models.logistic_regression(shape, classes), positional=2)
    monkeypatch.setitem(models.MODELS, "asking", builder)
    build_federation(build(model={"name": "asking"}))
    assert seen.keys() == names
    plain = asking((), {}, models.logistic_regression, positional=2)
    monkeypatch.setitem(models.MODELS, "plain", plain)
    build_federation(build(model={"name": "plain"}))
    monkeypatch.setitem(models.MODELS, "texts", asking(OFFERS["model"].named, {}, models.logistic_regression, 2))
    with pytest.raises(ValueError, match="expected a data set of texts for the model texts, which asks for a voc"):
        build_federation(build(model={"name": "texts"}))


@pytest.mark.parametrize("name", ["learning_rate", "batch_size", "baseline"])
def test_what_algorithms_are_not_handed_must_be_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = asking((name,), {}, algorithms.fedavg)
    monkeypatch.setitem(algorithms.REGISTRY, "asking", builder)
    with pytest.raises(ValueError, match=name):
        build(algorithms=[{"name": "asking"}])
