"""Options for readings of the papers: a config reaches each of them, and errors are one sentence."""

from __future__ import annotations

import tomllib
from typing import Any

import jax
import numpy as np
import pytest

from fljax import config
from fljax.config import ConfigError
from fljax.data import row_numbers
from fljax.experiments.inputs.setup import resolve_setup
from tests.refusals import refuses
from tests.toys.configs import BASE, build_federation


def options_of(algorithm: str, **options: Any) -> dict[str, Any]:
    """The options that an algorithm's builder is given, after the config was written and read again."""
    parsed = config.parse(BASE | {"algorithms": [{"name": algorithm, **options}]})
    assert config.parse(tomllib.loads(config.dumps(parsed))) == parsed
    (entry,) = resolve_setup(parsed).algorithms
    return dict(entry.options)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("incfl", {"gap_scale": 6.0}),
        ("ipfl", {"importance": "accuracy"}),
        ("fedprox", {"stragglers": 0.5}),
        ("scaffold", {"weights": "size"}),
        ("pfedme", {"weights": "size"}),
        ("perfedavg", {"weights": "size"}),
        ("perfedavg", {"alpha": "local"}),
        ("afl", {"updates": "model", "clients_per_round": 2}),
    ],
)
def test_a_config_reaches_options_of_algorithms(algorithm: str, options: dict[str, Any]) -> None:
    assert options_of(algorithm, **options) == options


def test_a_config_reaches_the_shares_of_groups() -> None:
    options: dict[str, Any] = {"groups": 3, "minimum": 2, "shares": [0.5, 0.25, 0.25]}
    data = BASE["data"] | {"clients": 8, "unseen": 4, "dataset_options": {"classes": 3}, "partition_options": options}
    federation, _ = build_federation(config.parse(BASE | {"seeds": 1, "data": data}))
    labels = np.asarray(federation.examples.y)
    for unseen, expected in ((False, [4, 2, 2]), (True, [2, 1, 1])):
        groups = [set(labels[rows]) for rows in row_numbers(federation, unseen=unseen)]
        assert [groups.count({group}) for group in range(3)] == expected
    options["shares"] = "half"
    refuses(lambda: config.parse(BASE | {"data": data}), r"data\.partition_options\.shares: expected", ConfigError)


@pytest.mark.in_turn
def test_a_config_reaches_the_initialisation_of_a_model() -> None:
    model = {"name": "logistic_regression", "initialisation": "framework"}
    _, task = build_federation(config.parse(BASE | {"seeds": 1, "model": model}))
    bias = jax.tree.leaves(task.init(jax.random.key(0)))[0]
    assert bias.shape == (3,)
    assert np.all(bias != 0)
    with pytest.raises(ConfigError, match=r"model\.initialisation: expected one of .* flax, framework, got 'torch'"):
        config.parse(BASE | {"model": model | {"initialisation": "torch"}})


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("incfl", {"gap_scale": "six"}, r"algorithms\.incfl\.gap_scale: expected a number, got 'six'"),
        ("afl", {"updates": "gradient", "clients_per_round": 2}, "clients_per_round: expected .*6 clients, which afl"),
        ("perfedavg", {"alpha": "beta"}, r"algorithms\.perfedavg\.alpha: expected .*'local'.* got 'beta'"),
        ("ipfl", {"importance": "loss"}, r"algorithms\.ipfl\.importance: expected one of .* argmax, got 'loss'"),
    ],
)
def test_errors_of_configs(algorithm: str, options: dict[str, Any], message: str) -> None:
    refuses(lambda: options_of(algorithm, **options), message, ConfigError)
