"""Options that are records: a NamedTuple of Python is a table of a config."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import pytest
from jax import Array

from fljax import algorithms, config, engine
from fljax.config import ConfigError, parse_grid
from fljax.contributions import Measure
from fljax.experiments import run
from fljax.experiments.inputs.clustering import ByF1
from fljax.experiments.inputs.setup import resolve_setup
from fljax.training import OptimizerSettings
from tests.toys.configs import BASE


class Rounding(NamedTuple):
    """A record inside a record."""

    digits: int


class Pay(NamedTuple):
    price: float | Array = 1.0
    count: int = 2
    ranked: Literal["members", "all"] = "members"
    least: float | None = None
    rounding: Rounding | None = None


PAY = Pay()


def mine(task: Any, local: Any, *, pay: Pay = PAY, other: Pay | None = None) -> Any:
    return algorithms.fedavg(task, local, server_lr=float(pay.price))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(algorithms.REGISTRY, "mine", mine)


def parsed(**options: Any) -> config.Config:
    return config.parse(BASE | {"algorithms": [{"name": "mine", **options}]})


def test_tables_become_records() -> None:
    found = parsed(pay={"price": 2, "ranked": "all", "rounding": {"digits": 3}}, other={"least": 0.5})
    assert config.parse(tomllib.loads(config.dumps(found))) == found
    (entry,) = resolve_setup(found).algorithms
    assert entry.options == {"pay": Pay(2, ranked="all", rounding=Rounding(3)), "other": Pay(least=0.5)}
    nothing = parsed(other={})
    assert resolve_setup(nothing).algorithms[0].options == {"other": Pay()}
    assert config.parse(tomllib.loads(config.dumps(nothing))) == nothing


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pay": {"prize": 1.0}}, "expected one of the keys price, count, ranked, least, rounding, "),
        ({"pay": {"prize": 1.0}}, "(did you mean 'price'?)"),
        ({"pay": {"price": "1"}}, "algorithms.mine.pay.price: expected a number, got '1'"),
        ({"pay": {"count": 1.5}}, "algorithms.mine.pay.count: expected an integer, got 1.5"),
        ({"pay": {"ranked": "al"}}, "algorithms.mine.pay.ranked: expected one of the values members, all, got 'al'"),
        ({"pay": {"rounding": {"digit": 1}}}, "algorithms.mine.pay.rounding: expected one of the keys digits"),
        ({"pay": {"rounding": {}}}, "algorithms.mine.pay.rounding.digits: expected a value (there is no default)"),
        ({"pay": 3}, "algorithms.mine.pay: expected a table, got 3"),
        ({"other": 3}, "algorithms.mine.other: expected a table, got 3"),
        ({"pai": {}}, "expected one of the hyper-parameters pay, other, got 'pai' (did you mean 'pay'?)"),
    ],
    ids=str,
)
def test_sentences(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(**options)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("algorithms.mine")


def test_fields_are_set_and_swept() -> None:
    raw = BASE | {"algorithms": [{"name": "mine"}]}
    grid = parse_grid(raw, ["algorithms.mine.pay.price=1,2.5"])
    assert [axis.name for axis in grid.axes] == ["price"]
    assert [cell.algorithms[0].options for cell in grid.cells] == [{"pay": {"price": 1}}, {"pay": {"price": 2.5}}]
    with pytest.raises(ConfigError, match=r"algorithms\.mine\.pay\.price: expected a number, got 'x'"):
        parse_grid(raw, ["algorithms.mine.pay.price=x"])


def plans(*options: Mapping[str, Any]) -> list[engine.Plan]:
    """The plan of IP-FL with each of some options."""
    entries = [{"name": "ipfl", "label": f"ipfl_{place}", **each} for place, each in enumerate(options)]
    return list(run.check_setup(resolve_setup(config.parse(BASE | {"algorithms": entries})), rehearsed=False).values())


def test_floats_of_records_are_traced() -> None:
    cells = plans(*({"tokens": {"initial": each}} for each in (10, 20.0)), {"tokens": {"initial": 10, "price": 2}})
    assert engine.groups(cells) == [[0, 1], [2]]
    least = ({"exploration": {"least": each, "random_slots": slots}} for each, slots in ((0.1, 1), (0.3, 1), (0.3, 2)))
    assert engine.groups(plans(*least)) == [[0, 1], [2]]


def resolved(**options: Any) -> Any:
    """What algorithms and experiments see of some options of FedAvg or of IAFL."""
    name = "iafl" if "contribution" in options else "ipfl" if "clustering" in options else "fedavg"
    return resolve_setup(config.parse(BASE | {"algorithms": [{"name": name, **options}]})).algorithms[0]


def test_forms_of_toml_end_in_the_setup() -> None:
    assert resolved(server_optimizer="adam").options == {"server_optimizer": "adam"}
    table = {"name": "sgd", "nesterov": True, "momentum": 0.9}
    expected = OptimizerSettings("sgd", (("momentum", 0.9), ("nesterov", True)))
    assert resolved(server_optimizer=table).options == {"server_optimizer": expected}
    assert resolved().contribution == Measure()
    assert resolved(contribution="size").contribution == Measure("size")
    assert resolved(contribution=[1, 2, 3, 4, 5, 6]).contribution == [1, 2, 3, 4, 5, 6]
    table = {"name": "size", "free_riders": [2], "induced_rate": 0.5}
    assert resolved(contribution=table).contribution == Measure("size", free_riders=(2,), induced_rate=0.5)
    assert resolved(clustering="random").clustering is None
    assert resolved(clustering={"name": "f1", "rounds": 2}).clustering == ByF1(2, 10, "validation")
    assert resolved(clustering={"name": "f1", "late": [5, 2]}).clustering == ByF1(late=(5, 2))


def test_free_riders_only() -> None:
    """The largest contribution of others needs others; a ceiling that is a number does not."""
    table = {"name": "size", "free_riders": list(range(6)), "induced_rate": 0.5}
    with pytest.raises(config.ConfigError, match=r"contribution\.free_riders: expected a client that is none, got"):
        resolved(contribution=table)
    expected = Measure("size", free_riders=tuple(range(6)), induced_rate=0.5, ceiling=2.0)
    assert resolved(contribution=table | {"ceiling": 2.0}).contribution == expected


def test_floats_of_the_servers_optimizer_are_traced() -> None:
    grid = ["algorithms.fedavg.server_optimizer.momentum=0.5,0.9"]
    raw = BASE | {"algorithms": [{"name": "fedavg", "server_optimizer": {"name": "sgd", "momentum": 0.1}}]}
    cells = [
        plan
        for cell in parse_grid(raw, grid).cells
        for plan in run.check_setup(resolve_setup(cell), rehearsed=False).values()
    ]
    assert engine.groups(cells) == [[0, 1]]


def test_the_flat_names_of_version_0_2_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected one of the hyper-parameters .*tokens.*, got 'initial_tokens'"):
        config.parse(BASE | {"algorithms": [{"name": "ipfl", "initial_tokens": 20}]})
    with pytest.raises(ConfigError, match=r"algorithms\.ipfl\.exploration: expected a table"):
        config.parse(BASE | {"algorithms": [{"name": "ipfl", "exploration": 0.5}]})
