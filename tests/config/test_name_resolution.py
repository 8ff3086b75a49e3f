"""The builders that a config remembers: they are looked up once, and belong to its names and options."""

from __future__ import annotations

from typing import Any

import pytest

from fljax import algorithms, config, data, models, scenarios
from fljax.config.name_resolution import resolved_of
from fljax.contributions import Measure
from fljax.experiments.inputs.setup import resolve_setup

RAW: dict[str, Any] = {
    "rounds": 2,
    "data": {"dataset": "digits", "partition": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"learning_rate": 0.1, "batch_size": 8, "steps": 1},
    "scenarios": [{"name": "finetuned", "steps": 2}],
    "algorithms": [
        {"name": "fedavg", "scenarios": [{"name": "dropout", "rate": 0.5}]},
        {"name": "iafl", "contribution": "size"},
    ],
}


def test_every_name_is_a_builder_with_arguments() -> None:
    resolved: Any = config.parse(RAW).resolved
    assert (resolved.dataset, resolved.partition) == ((data.SOURCES["digits"], {}), (data.PARTITIONERS["iid"], {}))
    assert resolved.model == (models.MODELS["mlp"], {"hidden": [8]})
    contribution = Measure("size")
    assert resolved.algorithms == (
        (algorithms.REGISTRY["fedavg"].build, {}),
        (algorithms.REGISTRY["iafl"].build, {"contribution": contribution}),
    )
    inner = (scenarios.REGISTRY["dropout"].build, {"rate": 0.5})
    outer = (scenarios.REGISTRY["finetuned"].build, {"steps": 2})
    assert resolved.scenarios == ((inner, outer), (outer,))


def test_a_setup_calls_the_remembered_builders(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = config.parse(RAW)
    monkeypatch.setitem(algorithms.REGISTRY, "fedavg", None)
    assert [entry.label for entry in resolve_setup(parsed).algorithms] == ["fedavg", "iafl"]


def test_a_changed_copy_is_resolved_anew() -> None:
    parsed = config.parse(RAW)
    assert parsed.model_copy().resolved is parsed.resolved
    copy = parsed.model_copy(update={"algorithms": parsed.algorithms[1:]})
    assert copy.resolved is None
    assert resolved_of(copy).algorithms == resolved_of(parsed).algorithms[1:]
    assert [entry.label for entry in resolve_setup(copy).algorithms] == ["iafl"]


def test_a_changed_copy_is_resolved_once() -> None:
    copy = config.parse(RAW).model_copy(update={"seeds": (4,)})
    first = resolved_of(copy)
    assert resolved_of(copy) is first
    with_data = resolved_of(copy, needs_data=True)
    assert resolved_of(copy, needs_data=True) is resolved_of(copy) is with_data


def test_builders_count_in_no_comparison() -> None:
    parsed = config.parse(RAW)
    assert parsed == parsed.model_copy(update={"rounds": 2})
    assert parsed != parsed.model_copy(update={"rounds": 3})


def test_data_that_are_not_needed_are_looked_up_when_they_are() -> None:
    parsed = config.parse(RAW, needs_data=False)
    assert resolved_of(parsed).dataset is None
    assert resolved_of(parsed, needs_data=True).dataset == (data.SOURCES["digits"], {})
