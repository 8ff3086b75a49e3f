"""The example scripts run as a user would run them, and print sensible numbers."""

from __future__ import annotations

import pathlib
import re
import runpy

import jax
import numpy as np
import pytest

import fljax
from fljax.algorithms import fedavg
from fljax.testing import logistic_regression, tiny_federation

pytestmark = pytest.mark.usefixtures("quick_compilation")

FOLDER = pathlib.Path(__file__).parent


def printed(name, capsys) -> tuple[str, dict]:
    with jax.numpy_rank_promotion("allow"):  # what a user's session has
        values = runpy.run_path(str(FOLDER / f"{name}.py"))
    return capsys.readouterr().out, values


def numbers(text, pattern):
    return [float(each) for each in re.findall(pattern + r" (-?[\d.]+)", text)]


@pytest.mark.parametrize("name", ["regression", "multi_label", "next_token"])
def test_scripts_are_short(name):
    lines = (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 120


def test_the_template_of_an_algorithm_is_twenty_lines():
    text = (FOLDER / "own_algorithm.py").read_text(encoding="utf-8")
    builder = text[text.index("def fednova") : text.index("if __name__")]
    assert len([line for line in builder.splitlines() if line.strip()]) <= 20


@pytest.mark.in_turn
def test_the_template_is_fedavg_by_size_where_steps_are_equal():
    """In ``tests/testing`` it is checked by all laws."""
    task, federation, local = logistic_regression(), tiny_federation(), fljax.Local(0.2, 2, steps=3)
    own = runpy.run_path(str(FOLDER / "own_algorithm.py"))["fednova"]
    run = jax.jit(fljax.rollout, static_argnames=("algorithm", "rounds"))
    one, other = (run(build(task, local), federation, rounds=2)[0].server.model for build in (own, fedavg))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


@pytest.mark.thorough
def test_regression(capsys):
    text, values = printed("regression", capsys)
    alone, *federated = numbers(text, "error")
    assert len(federated) == 2
    assert max(federated) < alone < 1.5  # the variance of the labels is 1
    assert all(0 <= rate <= 1 for rate in numbers(text, "IPR"))
    assert "accuracy True" not in text
    assert values["reference"].test_accuracy is None
    assert not [name for name in values["result"].metrics if "accuracy" in str(name)]
    model = values["result"].deployed(0)
    expected = values["x"][:3] @ np.asarray(model["kernel"]) + np.asarray(model["bias"])
    np.testing.assert_allclose(values["result"].predict(0, values["x"][:3]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_multi_label(capsys):
    text, values = printed("multi_label", capsys)
    right = numbers(text, "right")
    assert len(right) == 3
    assert min(right) > 0.7
    assert all(0 <= rate <= 1 for rate in numbers(text, "IPR"))
    np.testing.assert_array_equal(values["federation"].examples.y, values["y"])


@pytest.mark.thorough
def test_next_token(capsys):
    text, values = printed("next_token", capsys)
    right = numbers(text, "right")
    assert len(right) == 3
    assert min(right) > 0.3  # guessing among some twenty letters
    assert all(0 <= rate <= 1 for rate in numbers(text, "IPR"))
    logits = values["result"].predict(1, values["text"][:2, :-1])
    assert logits.shape == (2, 8, len(values["letters"]))
