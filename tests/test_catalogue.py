"""What ``fljax show`` says: complete for everything that has a name, and true of the signatures."""

from __future__ import annotations

import inspect

import pytest

from fljax import algorithms, catalogue, data, models, scenarios
from fljax.catalogue import KINDS, Description, describe, entries, type_in_words, written
from fljax.cli.describe import LISTS


def described(name: str, kind: str) -> Description:
    return next(each for each in describe(name) if each.kind == kind)


def test_kinds_are_those_of_the_command_line() -> None:
    assert tuple(KINDS) == LISTS


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_every_algorithm_is_described(name: str) -> None:
    found = described(name, "algorithm")
    assert found.summary == algorithms.REGISTRY[name].summary
    assert found.source
    assert found.bibtex.startswith("@") or name == "standalone"
    assert found.equation or found.about
    assert all(each.text for each in found.parameters), [each.name for each in found.parameters if not each.text]
    own = set(inspect.signature(algorithms.REGISTRY[name].build).parameters) - {"task", "local", "reference"}
    assert {each.name for each in found.parameters if "." not in each.name} == own
    assert "``" not in "".join([*found.equation, *found.about, *(each.text for each in found.parameters)])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "registry"),
    [
        ("scenario", scenarios.REGISTRY),
        ("dataset", data.SOURCES),
        ("partition", data.PARTITIONERS),
        ("model", models.MODELS),
    ],
)
def test_options_of_builders_have_words(kind: str, registry: dict[str, object]) -> None:
    for name in registry:
        found = described(name, kind)
        assert found.equation or found.about, name
        for each in found.parameters:
            assert each.text, (name, each.name)
            assert each.type not in ("", "any value") or kind == "model", (name, each)


def test_parameters_have_types_and_defaults_as_configs_write_them() -> None:
    found = {each.name: each for each in described("incfl", "algorithm").parameters}
    assert found["surrogate"].type == '"sigmoid" or "softplus" or "relu" or "exp"'
    assert found["surrogate"].default == '"sigmoid"'
    assert (found["eps"].type, found["eps"].default) == ("float", "1e-08")
    assert found["threshold"].by_experiment
    assert "array [N]" in found["threshold"].type
    assert found["tune_steps"].default == "0"
    assert (found["server_optimizer"].type, found["server_optimizer"].default) == ("str or table or function", '"sgd"')
    assert {each.name: each.type for each in described("iafl", "algorithm").parameters}["contribution"] == (
        "name or table or list of float"
    )


def test_tables_of_parameters_are_shown_field_by_field() -> None:
    found = {each.name: each for each in described("ipfl", "algorithm").parameters}
    assert (found["tokens"].type, found["tokens.initial"].default) == ("table", "500.0")
    assert found["tokens.price"].type == "int or float"
    assert found["clustering"].type == "name or table"
    assert found["bidding.rule"].text.startswith("the clusters that a client bids for")


def test_equations_stand_apart() -> None:
    found = described("fedprox", "algorithm")
    assert found.equation == (
        "FedAvg with the local objective F_k(y) + mu/2 ||y - w||^2: mu (y - w) is added to every gradient.",
    )
    (rule,) = described("synthetic", "dataset").equation
    assert "\n    u_k ~ N(0, alpha^2)" in rule


def test_aggregation_is_read_off_the_algorithm() -> None:
    kept = {name: described(name, "algorithm").facts.get("aggregation", "") for name in ("fedavg", "iafl", "qffl")}
    assert kept["fedavg"].startswith("streamed")
    assert kept["iafl"].startswith("stacked")
    assert kept["qffl"].startswith("stacked")


def test_one_name_of_two_kinds() -> None:
    several = [name for name in entries("scenarios") if name in entries("algorithms")]
    assert several == []
    assert [each.kind for each in describe("incentivised_participation_rate")] == ["metric"]


def test_configs_that_use_a_name() -> None:
    assert "quickstart" in described("incfl", "algorithm").configs
    assert "incfl/table2_fmnist" in described("finetuned", "scenario").configs
    assert "incfl/table2_fmnist" in described("fedavg", "algorithm").configs, "of the base, too"
    found = described("incfl/table2_fmnist", "config")
    assert "tunes the final model by five local steps" in found.summary
    assert found.facts["scenarios"] == "finetuned"


def test_unknown_names() -> None:
    with pytest.raises(
        ValueError, match=r"expected a name that fljax list prints .*, got 'fedprx' \(did you mean 'fed"
    ):
        describe("fedprx")
    with pytest.raises(ValueError, match="expected one of the lists "):
        entries("algorithm")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "none"), (True, "true"), ("a", '"a"'), (0.5, "0.5"), ((64, 30), "[64, 30]"), (float("inf"), "inf")],
)
def test_defaults_as_toml(value: object, text: str) -> None:
    assert written(value) == text


def test_types_in_words() -> None:
    assert type_in_words(int | None) == "int or none"
    assert type_in_words(bool) == "bool"
    assert catalogue.line("a metric. Another sentence") == "a metric. Another sentence"
