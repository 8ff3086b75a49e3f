"""Strict switches for every test, and data that many tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import jax
import jaxtyping
import pytest
from hypothesis import settings

from tests import drawn, kinds
from tests.precision import enable_x64

# Every call of a function of fljax checks its annotations. As for type checkers, a whole number is a float. Nothing may
# import fljax before this line. The option --jaxtyping-packages would be too late: in jaxtyping 0.2 it comes after
# the conftests of folders.
jaxtyping.install_import_hook("fljax", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update(
    "jax_num_cpu_devices", 2
)  # so that clients are really spread in every test that does not say otherwise

# CI's thorough tests take --hypothesis-profile=ci.
settings.register_profile("quick", max_examples=drawn.QUICK, deadline=None)
settings.register_profile("ci", max_examples=drawn.CI, deadline=None)
settings.load_profile("quick")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of CI, whose time is limited."""
    words = "of the thorough tests, part K of N stays thorough, counted from 0; the others count as slow"
    parser.addoption("--part", default="0/1", metavar="K/N", help=words)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before ``-m`` chooses among them."""
    kinds.split(items, kinds.parse(config.getoption("part") or ""))


@pytest.fixture(scope="module", autouse=True)
def _forget_programs() -> Iterator[None]:
    """Each compiled program holds a few of the 65,530 memory maps that Linux grants a process; thousands of programs
    would use them up, and the next compilation would crash the worker."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _unchecked_where_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Switches the checks of annotations off in a test that is marked ``unchecked``."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", before or request.node.get_closest_marker("unchecked") is not None)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def x64():
    """Double precision for one test."""
    with enable_x64(True):
        yield


@pytest.fixture(scope="module")
def quick_compilation():
    """For files of tiny programs: compiling them costs far more than running them."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
