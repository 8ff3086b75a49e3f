"""Examples in docstrings run as they stand, and docstrings can be read."""

from __future__ import annotations

import doctest
import importlib
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fljax
from fljax.cli import catalogue

ROOT = pathlib.Path(fljax.__file__).parent
MODULES = sorted(
    ".".join(("fljax", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.in_turn
@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0
    assert found.failed == 0


def test_the_protocol_has_a_complete_example() -> None:
    assert "fljax.protocol.algorithm" in MODULES


TEXT = """Does ``w <- w + v``. More.

    A rule::

        x = y
        z ~ N(0, 1)

    ====  =======
    name  meaning
    ====  =======
    a     first
    ====  =======

    Args:
      mu: its weight; 0 is
        FedAvg: as it is.
      **options: others.

    Source: Li et al., "X",
    section 5.

    Raises:
      ValueError: if so.
    """


def test_docstrings_have_parts() -> None:
    found = catalogue.parse(TEXT)
    assert found.paragraphs == (
        "Does ``w <- w + v``. More.",
        "A rule:\n    x = y\n    z ~ N(0, 1)",
        "\n  name  meaning\n  a     first",
    )
    assert found.arguments == {"mu": "its weight; 0 is FedAvg: as it is.", "**options": "others."}
    assert (found.source, found.sections) == ('Li et al., "X", section 5.', {"Raises": "ValueError: if so."})
    assert found.equations == found.paragraphs[:2]
    assert catalogue.docstring_of(object()).paragraphs != ()
    assert catalogue.parse("") == catalogue.Docstring((), {}, {}, "")


@pytest.mark.parametrize("text", ["``mu``", "``seed=3``", "by size", "``[N]`` numbers"])
def test_what_is_no_equation(text: str) -> None:
    assert not catalogue.states_equation(text)


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    found = catalogue.parse(text)
    assert all(each.strip() for each in found.paragraphs)
