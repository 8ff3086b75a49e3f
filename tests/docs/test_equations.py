"""The equations of methods: each method has them, and they become MathML. ``test_generated`` looks at the pages."""

from __future__ import annotations

import re

import pytest

from docs import generate
from docs.generator import methods
from fljax import algorithms
from fljax.core.values import parameters_of


def formulas(name: str) -> list[str]:
    """All LaTeX of a method: its equations, and the symbols in the text below them."""
    found = methods.equations()[name]
    return [*found.equations, *re.findall(r"\\\((.*?)\\\)", found.where)]


def test_every_method_has_equations_and_no_other() -> None:
    assert set(methods.equations()) == set(algorithms.REGISTRY)
    for name, found in methods.equations().items():
        assert 1 <= len(found.equations) <= 3, name
        assert found.where.endswith("."), name


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_the_text_names_hyper_parameters(name: str) -> None:
    build = algorithms.REGISTRY[name].build
    known = {*parameters_of(build), *algorithms.REGISTRY}
    named = set(re.findall(r"`(\w+)`", methods.equations()[name].where))
    assert named <= known, named - known
    if any(r"\eta_g" in each for each in methods.equations()[name].equations):
        assert "server_lr" in named


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_braces_and_sizes_are_balanced(name: str) -> None:
    for text in formulas(name):
        assert text.count("{") == text.count("}"), text
        assert text.count(r"\left") - text.count(r"\leftarrow") == text.count(r"\right"), text
        assert text.count("(") == text.count(")"), text


@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_they_become_mathml(name: str) -> None:
    for text in formulas(name):
        shown = generate.on_page_content(f'<div class="arithmatex">\\[\n{text}\n\\]</div>', None, None, None)
        assert shown.startswith("<math"), text
        assert "\\" not in shown, text  # a command that latex2mathml does not know stays as it is
