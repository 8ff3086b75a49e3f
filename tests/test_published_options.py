"""Options for readings of the papers: a config reaches each of them, and errors are one sentence."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from fljax import config
from fljax.config import ConfigError
from fljax.setup import resolve_setup
from tests.test_experiment import BASE


def options_of(algorithm: str, **options: Any) -> dict[str, Any]:
    """The options that an algorithm's builder is given, after the config was written and read again."""
    parsed = config.parse(BASE | {"algorithms": [{"name": algorithm, **options}]})
    assert config.parse(tomllib.loads(config.dumps(parsed))) == parsed
    (entry,) = resolve_setup(parsed).algorithms
    return dict(entry.options)


@pytest.mark.parametrize(("algorithm", "options"), [("incfl", {"gap_scale": 6.0})])
def test_a_config_reaches_options_of_algorithms(algorithm: str, options: dict[str, Any]) -> None:
    assert options_of(algorithm, **options) == options


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [("incfl", {"gap_scale": "six"}, r"algorithms\.incfl\.gap_scale: expected a number, got 'six'")],
)
def test_errors_of_configs(algorithm: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options_of(algorithm, **options)
