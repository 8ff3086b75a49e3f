"""What ``fljax show`` says: complete for everything that has a name, and true of the signatures."""

from __future__ import annotations

import inspect
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
from jaxtyping import Array, Float, Int, Shaped

from fljax import algorithms, data, models, scenarios
from fljax.cli import catalogue
from fljax.cli.catalogue import Description, describe, entries, of_algorithm, type_in_words, written
from tests.refusals import refuses


def described(name: str, kind: str) -> Description:
    return next(each for each in describe(name) if each.kind == kind)


@pytest.mark.in_turn
@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_every_algorithm_is_described(name: str) -> None:
    found = described(name, "algorithm")
    assert found.summary
    assert found.source
    assert found.returns.startswith("The algorithm")
    assert found.bibtex.startswith("@") or name == "standalone"
    assert found.equation or found.about
    assert all(each.text for each in found.parameters), [each.name for each in found.parameters if not each.text]
    own = set(inspect.signature(algorithms.REGISTRY[name].build).parameters) - {"task", "local", "reference"}
    assert {each.name for each in found.parameters if "." not in each.name} == own
    assert "``" not in "".join([*found.about, found.returns, *(each.text for each in found.parameters)])
    assert set(found.equation) <= set(found.about)
    entry = algorithms.REGISTRY[name]
    for mark, names in (("yes", entry.differentiable), ("zero", entry.flat)):
        assert {each.name for each in found.parameters if each.gradient == mark} == set(names)


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
    assert found["surrogate"].type == '"sigmoid" or "softplus" or "relu" or "hinge" or "exp"'
    assert found["surrogate"].default == '"sigmoid"'
    assert (found["eps"].type, found["eps"].default) == ("number", "1e-08")
    assert found["threshold"].by_experiment
    assert found["threshold"].type == "one for each client or number"
    assert found["threshold"].default_in_words == "required; in a config, the experiment gives it"
    assert found["clients_per_round"].default_in_words == "default 10; in a config, the experiment gives it"
    assert (found["tune_steps"].default, found["server_optimizer"].type) == ("0", "name or table of an optax optimizer")
    assert {each.name: each.type for each in described("iafl", "algorithm").parameters}["contribution"] == (
        "name, table or list of numbers"
    )


def test_tables_of_parameters_are_shown_field_by_field() -> None:
    found = {each.name: each for each in described("ipfl", "algorithm").parameters}
    assert found["tokens"].type == "table (in Python `fljax.algorithms.market.Tokens`)"
    assert (found["tokens.initial"].default, found["tokens.initial"].gradient) == ("500.0", "zero")
    assert found["tokens.price"].type == "integer or number or array [C] or list of numbers"
    assert found["clustering"].type == "name or table"
    assert found["bidding.rule"].text.startswith("the clusters that a client bids for")


def test_equations_stand_apart() -> None:
    found = described("fedprox", "algorithm")
    assert found.equation == (
        "FedAvg with the local objective `F_k(y) + mu/2 ||y - w||^2`: `mu (y - w)` is added to every gradient.",
    )
    (rule,) = described("synthetic", "dataset").equation
    assert "\n    u_k ~ N(0, alpha^2)" in rule


@pytest.mark.in_turn
def test_a_text_keeps_its_order() -> None:
    first, second = described("fedala", "algorithm").about
    assert first.startswith("Local training starts")
    assert described("fedala", "algorithm").equation == (second,)
    assert described("fedala", "algorithm").summary.startswith("FedALA: clients learn, entry by entry")
    assert described("cgsv_iafl", "algorithm").summary == algorithms.REGISTRY["cgsv_iafl"].summary, "a file of two"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("fedavg", {"aggregation": "streamed", "server keeps": "1 model", "a client keeps": "nothing"}),
        ("iafl", {"aggregation": "stacked", "server keeps": "a model for each client", "polls clients": "yes"}),
        ("qffl", {"aggregation": "stacked", "needs all clients": "no"}),
        ("afl", {"server keeps": "2 models", "needs all clients": "yes, unless updates = 'model'"}),
        ("scaffold", {"a client keeps": "1 model", "a client sends": "2 models", "personal models": "no"}),
        ("fedproto", {"a client sends": "less than a model", "global model": "no"}),
        ("fedsoft", {"polls clients": "every 2 rounds"}),
        ("standalone", {"aggregation": "none"}),
    ],
)
def test_facts_of_unlike_algorithms(name: str, facts: dict[str, str]) -> None:
    found = of_algorithm(name, algorithms.REGISTRY[name])
    assert {key: found[key].partition(":")[0] for key in facts} == facts


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "fedavg",
            {
                "leaves a client": "update, its number of rows",
                "single updates": "not needed",
                "secure sums": "possible: the server needs sums over clients alone",
            },
        ),
        (
            "afl",
            {
                "leaves a client": "update, a loss",
                "secure sums": "possible for updates; the server also reads losses, with which it moves the mixture",
            },
        ),
        (
            "iafl",
            {
                "leaves a client": "update; its contribution when polled",
                "single updates": "needed",
                "secure sums": "not possible: the server reads updates, of which each reward averages others",
            },
        ),
        ("standalone", {"leaves a client": "nothing", "single updates": "none are sent"}),
    ],
)
def test_what_the_server_learns_of_a_client(name: str, facts: dict[str, str]) -> None:
    found = described(name, "algorithm").facts
    assert {key: found[key] for key in facts} == facts


@pytest.mark.in_turn
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_only_what_is_added_up_can_be_summed_in_secret(name: str) -> None:
    """The words of the entry are those of the aggregation: who keeps single updates says why."""
    aggregation = described(name, "algorithm").facts["aggregation"].partition(":")[0]
    assert ("update" in algorithms.REGISTRY[name].reads) == (aggregation == "stacked")


@pytest.mark.in_turn
def test_every_algorithm_has_facts() -> None:
    assert all(of_algorithm(name, entry) for name, entry in algorithms.REGISTRY.items())
    assert of_algorithm("odd", lambda task, local, *, odd: None) == {}


OWN = '''"""Two methods.

Source: nobody, "A paper".
"""

def mine(task, local, *, rate: float = 0.5, clients_per_round: int | None = None):
    """``w <- w + rate u``.

    Args:
      rate: how fast.
    """
    from fljax.algorithms import fedavg

    return fedavg(task, local, clients_per_round=clients_per_round, server_lr=rate)

def other(x):
    """No algorithm."""
'''


def test_an_algorithm_of_ones_own(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_methods.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    (found,) = describe("own_methods:mine")
    assert (found.kind, found.equation) == ("algorithm", ("`w <- w + rate u`.",))
    assert [(each.name, each.type, each.default) for each in found.parameters] == [
        ("rate", "number", "0.5"),
        ("clients_per_round", "integer or none", "none"),
    ]
    assert found.facts["a client sends"] == "1 model"
    assert (found.source, found.configs) == ('nobody, "A paper".', {})
    with pytest.raises(ValueError, match=r"expected an algorithm, a function of \(task, .*, got 'own_methods:other'"):
        describe("own_methods:other")
    refuses(lambda: describe("own_methods:mine", imports=False), "import paths are refused here")


def test_data_of_ones_own() -> None:
    assert {"FILE.csv", "FILE.parquet", "FOLDER/", "tfds:NAME", "hf:NAME"} <= set(entries("datasets"))
    (found,) = describe("FILE.csv")
    assert found.about[1].startswith('In a config:\n    [data]\n    dataset = "patients.csv"')
    assert found.equation == ()
    assert {("label", None), ("standardise", "true")} <= {(each.name, each.default) for each in found.parameters}
    (found,) = describe("tfds:kmnist")
    assert found.about[0].startswith("A data set of TensorFlow Datasets")
    assert found.about[1].startswith("\n    [data]")


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
    refuses(lambda: describe("fedprx"), r"expected a name that fljax list prints .*, got 'fedprx' \(did you mean 'fed")
    refuses(lambda: entries("algorithm"), "expected one of the lists ")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "none"), (True, "true"), ("a", '"a"'), (0.5, "0.5"), ((64, 30), "[64, 30]"), (float("inf"), "inf")],
)
def test_defaults_as_toml(value: object, text: str) -> None:
    assert written(value) == text


def test_types_in_words() -> None:
    assert type_in_words(int | None) == "integer or none"
    assert type_in_words(bool) == "true or false"
    assert type_in_words(float | Float[Array, ""]) == "number"
    assert type_in_words(int | Int[Array, ""]) == "integer"
    assert type_in_words(Sequence[Sequence[float]]) == "list of lists of numbers"
    assert type_in_words(Shaped[Array, "*rounds N"] | Sequence[float]) == "one for each client (and round)"
    assert type_in_words(Sequence[Any] | str | os.PathLike[str]) == "list or text or path"
    assert catalogue.line("a metric. Another sentence") == "a metric. Another sentence"
