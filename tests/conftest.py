"""Strict switches for every test, and data that many tests share."""

from __future__ import annotations

import gc
import os
import pathlib
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import jax
import jaxtyping
import pytest
from hypothesis import settings

from tests import annotations, compiled, drawn, kinds
from tests.precision import enable_x64

# In their own tests, every call of a function of the protocol, of the aggregators and of the metrics checks its
# annotations; where FLJAX_CHECK_TYPES is set, as in CI's second run, every call in all of fljax does in all tests.
# As for type checkers, a whole number is a float. Nothing may import fljax before this line. The option
# --jaxtyping-packages would be too late: in jaxtyping 0.2 it comes after the conftests of folders.
CHECKS_ALL = bool(os.environ.get("FLJAX_CHECK_TYPES"))
OFTEN = ("aggregators", "core.trees", "metrics", "protocol")
CHECKED_TESTS = frozenset({"aggregators", "core", "metrics", "protocol", "test_annotations.py"})
CHECKED = ["fljax"] if CHECKS_ALL else [f"fljax.{name}" for name in OFTEN]
jaxtyping.jaxtyped = annotations.at_first_call(jaxtyping.jaxtyped)
jaxtyping.install_import_hook(CHECKED, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)
# Two devices wait for each other in threads of one pool. With as many threads as cores, programs with several
# collective operations come to a halt.
os.environ.setdefault("NPROC", "8")
# Programs do not say from which lines of Python they come: the laws take a twentieth less time.
jax.config.update("jax_traceback_in_locations_limit", 0)

# CI's second run takes --hypothesis-profile=ci. Quick tests draw the same examples in every run, whose programs are
# on the disk.
settings.register_profile("quick", max_examples=drawn.QUICK, deadline=None, derandomize=True)
settings.register_profile("ci", max_examples=drawn.CI, deadline=None)
settings.load_profile("quick")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of CI, whose time is limited."""
    words = "of thorough tests and drawn examples, part K of N, counted from 0, stays; the others count as slow"
    parser.addoption("--part", default="0/1", metavar="K/N", help=words)


def pytest_configure(config: pytest.Config) -> None:
    """Compiled programs are kept in pytest's cache, or where JAX_COMPILATION_CACHE_DIR says."""
    given, cache = os.environ.get("JAX_COMPILATION_CACHE_DIR"), getattr(config, "cache", None)
    if given:  # workers of pytest-xdist get it from the process that starts them
        folder = pathlib.Path(given)
    elif cache is not None:
        folder = pathlib.Path(cache.mkdir("xla"))
        compiled.remove_oldest(folder)
    else:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="fljax-xla-"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    compiled.keep_on_disk(folder)
    gc.set_threshold(compiled.NEW_OBJECTS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before ``-m`` chooses among them."""
    kinds.split(items, kinds.parse(config.getoption("part") or ""))


def pytest_collection_finish() -> None:
    """What is there by now stays: no garbage collection looks at it again."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Quick tests compile quickly and take one device, with their fixtures; thorough tests do as users do."""
    marked = lambda *names: any(item.get_closest_marker(name) is not None for name in names)  # noqa: E731
    as_users = kinds.compiles_as_users_do(item)
    checked = CHECKS_ALL or not CHECKED_TESTS.isdisjoint(item.path.parts)
    with (
        compiled.quickly(kinds.compiles_quickly(item)),
        on_one_device(not (as_users or marked("devices"))),
        annotations_checked(checked and not marked("unchecked")),
        compiled.flags_restored(),
    ):
        return (yield)


@contextmanager
def annotations_checked(checked: bool) -> Iterator[None]:
    """Checks of annotations take a twentieth of the time of the quick tests."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", before or not checked)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@contextmanager
def on_one_device(one: bool) -> Iterator[None]:
    """Runs that say nothing of devices take one of the two that JAX sees: programs of several compile longer."""
    from fljax.engine.programs import shapes  # imported here, after the hook

    before = shapes.all_devices
    shapes.all_devices = (lambda: 1) if one else before
    try:
        yield
    finally:
        shapes.all_devices = before


@pytest.fixture(scope="session")
def memory_limit() -> list[int]:
    """Bytes of memory above which programs are forgotten, as they are after the files so far."""
    return [compiled.RESIDENT]


@pytest.fixture(scope="module", autouse=True)
def _forget_programs(memory_limit: list[int]) -> Iterator[None]:
    yield
    memory_limit[0] = compiled.forget_if_many(memory_limit[0])


@pytest.fixture
def x64():
    """Double precision for one test."""
    with enable_x64(True):
        yield


@pytest.fixture(scope="module")
def quick_compilation():
    """For files of tiny programs, whose thorough tests are compiled quickly as well."""
    with compiled.quickly():
        yield


@pytest.fixture(scope="module")
def quick_programs() -> Iterator[None]:
    """For files whose runs are compiled quickly, however thorough their tests are."""
    from tests.toys import quick  # imported here, after the hook

    with quick.quick_programs():
        yield


@pytest.fixture
def strict() -> Iterator[None]:
    """JAX promotes no rank and no dtype."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield
