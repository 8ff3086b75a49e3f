"""Local training of one algorithm: its own optimizer, options and weight decay in place of those of all algorithms."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest

from fljax import config
from fljax.config import ConfigError, parse_grid
from fljax.experiments import run
from fljax.experiments.inputs.setup import resolve_setup
from fljax.training import Local, rate
from tests.toys.configs import BASE

LOCAL = BASE["local"] | {"optimizer": "sgd", "options": {"momentum": 0.9}, "weight_decay": 0.01}


def written(raw: dict[str, Any]) -> config.Config:
    """The config, after it was written and read again."""
    parsed = config.parse(raw)
    assert config.parse(tomllib.loads(config.dumps(parsed))) == parsed
    return parsed


def local_of(own: dict[str, Any], name: str = "fedavg") -> Local:
    """The local training of an algorithm with these keys of its own."""
    raw = BASE | {"local": LOCAL, "algorithms": [{"name": "fedavg", "label": "other"}, {"name": name, "local": own}]}
    other, entry = resolve_setup(written(raw)).algorithms
    assert other.local[4:9] == ("sgd", (("momentum", 0.9),), 1.0, 0.01, True)
    return entry.local


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("own", "optimizer", "options", "weight_decay"),
    [
        ({}, "sgd", (("momentum", 0.9),), 0.01),
        ({"weight_decay": 0.0}, "sgd", (("momentum", 0.9),), 0.0),
        ({"optimizer": "adam"}, "adam", (), 0.01),
        ({"optimizer": "adam", "options": {"b1": 0.8}}, "adam", (("b1", 0.8),), 0.01),
        ({"optimizer": "sgd"}, "sgd", (), 0.01),
        ({"options": {"nesterov": True}}, "sgd", (("nesterov", True),), 0.01),
        ({"options": {}}, "sgd", (), 0.01),
    ],
)
def test_an_optimizer_brings_its_own_options(own, optimizer, options, weight_decay):
    """Those of the experiment belong to the experiment's optimizer."""
    found = local_of(own)
    assert (found.optimizer, found.options, found.weight_decay) == (optimizer, options, weight_decay)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"optimizer": "adamm"}, r"algorithms\.fedavg\.local\.optimizer: .*\(did you mean 'adam'\?\)"),
        ({"optimizer": "adam", "options": {"momentum": 0.9}}, r"algorithms\.fedavg\.local\.options: expected one of"),
        ({"options": {"b1": 0.9}}, r"algorithms\.fedavg\.local\.options: expected one of"),
        ({"options": 0.9}, r"algorithms\.fedavg\.local\.options: expected a table"),
        ({"weight_decay": -1.0}, r"algorithms\.fedavg\.local\.weight_decay: expected"),
        ({"keep": "yes"}, r"algorithms\.fedavg\.local\.keep: expected"),
        ({"clip_norm": 0.0}, r"algorithms\.fedavg\.local\.clip_norm: expected"),
        ({"decay_of": "biases"}, r"algorithms\.fedavg\.local\.decay_of: expected"),
        ({"schedule": {"name": "cosine"}}, r"algorithms\.fedavg\.local\.schedule: expected one of the schedules"),
    ],
)
def test_what_a_config_refuses(own: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        local_of(own)


def test_clipping_schedules_and_kept_states_are_keys() -> None:
    """Boundaries are a table, or a list of pairs; what an algorithm does not name is that of the experiment."""
    steps = {"name": "piecewise_constant_schedule", "boundaries_and_scales": {"50": 0.1, "75": 0.1}}
    keys = {"keep": True, "clip_norm": 2.0, "decay_of": "weights"}
    raw = BASE | {"local": LOCAL | keys | {"schedule": steps}}
    pairs = steps | {"boundaries_and_scales": [[50, 0.1], [75, 0.1]]}
    raw["algorithms"] = [{"name": "fedavg"}, {"name": "ditto", "local": {"keep": False, "schedule": pairs}}]
    one, other = (entry.local for entry in resolve_setup(written(raw)).algorithms)
    assert one[9:12] == (True, 2.0, "weights")
    assert other[9:12] == (False, 2.0, "weights")
    for local in (one, other):
        np.testing.assert_allclose([rate(local, t) for t in (49, 50, 75)], np.array([1, 0.1, 0.01]) * rate(local))


def test_algorithms_that_need_plain_sgd() -> None:
    """They may have it where the others do not, and refuse anything else."""
    assert local_of({"optimizer": "sgd"}, "scaffold").options == ()
    for own, got in (({}, "'sgd' with {'momentum': 0.9}"), ({"optimizer": "adam"}, "'adam'")):
        raw = BASE | {"local": LOCAL, "algorithms": [{"name": "scaffold", "local": own}]}
        with pytest.raises(
            ValueError, match="expected the local optimizer 'sgd' without options for scaffold"
        ) as caught:
            run.check_setup(resolve_setup(config.parse(raw)), rehearsed=False)
        assert str(caught.value).endswith(got)
        assert "\n" not in str(caught.value)


def test_a_grid_over_optimizers_of_one_algorithm() -> None:
    raw = BASE | {"local": LOCAL}
    grid = parse_grid(raw, ["algorithms.fedavg.local.optimizer=sgd,adam"])
    assert [axis.name for axis in grid.axes] == ["optimizer"]
    found = [resolve_setup(cell).algorithms[0].local for cell in grid.cells]
    assert [(each.optimizer, each.options) for each in found] == [("sgd", ()), ("adam", ())]


@pytest.mark.parametrize(
    ("own", "path", "hides"),
    [
        ({"optimizer": "adam"}, "local.optimizer=sgd,rmsprop", "optimizer"),
        ({"optimizer": "adam"}, "local.options.momentum=0.0,0.9", "optimizer"),
        ({"options": {}}, "local.options.momentum=0.0,0.9", "options"),
        ({"weight_decay": 0.0}, "local.weight_decay=0.0,0.1", "weight_decay"),
    ],
)
def test_a_grid_that_an_algorithm_hides(own: dict[str, Any], path: str, hides: str) -> None:
    message = rf"algorithms\.fedavg\.local\.{hides}: expected none in a sweep over {path.partition('=')[0]}, got one"
    with pytest.raises(ConfigError, match=message):
        parse_grid(BASE | {"local": LOCAL, "algorithms": [{"name": "fedavg", "local": own}]}, [path])


@pytest.mark.parametrize(
    ("own", "shared", "hides"),
    [
        ("learning_rate=0.1,0.2", "learning_rate=0.3,0.4", "learning_rate"),
        ("optimizer=sgd,adam", "options.momentum=0.0,0.9", "optimizer"),
        ("epochs=1,2", "steps=2,5", "epochs"),
    ],
)
def test_a_grid_that_another_axis_hides(own: str, shared: str, hides: str) -> None:
    message = (
        rf"algorithms\.fedavg\.local\.{hides}: expected none in a sweep over local\.{shared.partition('=')[0]}, got one"
    )
    with pytest.raises(ConfigError, match=message):
        parse_grid(BASE | {"local": LOCAL}, [f"algorithms.fedavg.local.{own}", f"local.{shared}"])
