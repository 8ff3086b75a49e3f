"""The architecture: what may import what, what may be named where."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from fljax.algorithms import REGISTRY

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fljax"
FILES = sorted(PACKAGE.rglob("*.py"))

# Imports run from a higher floor to a lower one. The second number orders the rooms of a floor.
FLOORS = {
    "types": (0, 0),
    "messages": (0, 0),
    "trees": (0, 0),
    "loops": (0, 0),
    "seeds": (0, 1),
    "streaming": (0, 1),
    "roles": (0, 1),
    "failures": (0, 0),
    "gpu_rules": (0, 0),
    "naming": (0, 1),
    "arguments": (0, 0),
    "signatures": (0, 0),
    "allowed_values": (0, 2),
    "values": (0, 3),
    "environment": (0, 1),
    "describing": (0, 0),
    "headings": (0, 0),
    "docstrings": (0, 0),
    "checkpoints": (0, 0),
    "hosts": (0, 1),
    "atomic_files": (0, 0),
    "aggregators": (1, 0),
    "contributions": (1, 0),
    "data": (1, 0),
    "models": (1, 0),
    "metrics": (1, 0),
    "scalar_metrics": (1, 1),
    "metric_names": (1, 2),
    "infinite_losses": (1, 0),
    "anomalies": (1, 0),
    "matching": (1, 0),
    "endings": (1, 0),
    "published_tables": (1, 0),
    "verdicts": (1, 1),
    "measured_cells": (1, 1),
    "claims": (1, 2),
    "records": (1, 1),
    "results": (1, 2),
    "requirements": (4, 0),
    "long_records": (1, 0),
    "theory": (1, 1),
    "training": (2, 0),
    "local": (2, 0),
    "engine": (2, 1),
    "tracking": (2, 2),
    "algorithms": (3, 0),
    "scenarios": (3, 1),
    "config": (4, 0),
    "clustering": (4, 1),
    "checkpoint_origins": (4, 1),
    "further_rounds": (4, 1),
    "folders": (4, 2),
    "initial_models": (4, 3),
    "setup": (5, 0),
    "outlines": (4, 3),
    "preparation": (5, 1),
    "progress_files": (5, 1),
    "model_files": (5, 1),
    "watching": (5, 1),
    "cells": (5, 2),
    "plans": (5, 2),
    "entrants": (5, 1),
    "progress_bars": (5, 0),
    "compiling": (5, 2),
    "experiment": (5, 3),
    "saved_models": (5, 4),
    "saved_comparisons": (5, 5),
    "run_folders": (5, 6),
    "sweep": (5, 4),
    "sweep_parts": (5, 5),
    "report": (6, 0),
    "reproduce": (6, 1),
    "comparison_checks": (6, 0),
    "comparison": (6, 1),
    "testing": (6, 1),
    "catalogue": (6, 2),
    "cli": (7, 0),
    "__main__": (8, 0),
}
# ``standalone`` is the engine's own public function, and in the names of its results, as well as an algorithm.
PUBLIC_OF_THE_ENGINE = {"standalone"}


def room(path: Path) -> str:
    """The top-level module or package of fljax that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names of everything that a file imports, anywhere in it, as absolute names."""
    found = set()
    package = ("fljax", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (above, node.module) if part)
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return frozenset(found)


@functools.cache
def attributes(path: Path) -> frozenset[str]:
    """Dotted names of everything that a file uses as an attribute."""
    return frozenset(ast.unparse(node) for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute))


def rooms_imported(path: Path) -> set[str]:
    inside = {name.split(".")[1] for name in imports(path) if name.startswith("fljax.")}
    return inside - {"__version__", room(path)}


def outside(path: Path) -> set[str]:
    return {name for name in imports(path) if name.split(".")[0] != "fljax"}


def named(files: list[Path]) -> list[Any]:
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in files]


@pytest.mark.parametrize("path", named([path for path in FILES if path != PACKAGE / "__init__.py"]))
def test_imports_run_downward(path):
    assert room(path) in FLOORS, f"{room(path)} has no floor"
    for other in rooms_imported(path):
        assert other in FLOORS, f"{other} has no floor"
        assert FLOORS[other] < FLOORS[room(path)], f"{path.relative_to(ROOT)} imports fljax.{other}"


def test_only_the_front_doors_are_given_a_config():
    """A config is resolved once, in ``setup``; its tables are seen nowhere else."""
    readers = {room(path) for path in FILES if "fljax.config.Config" in imports(path)}
    assert readers <= {"config", "setup", "experiment", "run_folders", "cli"}
    readers = {room(path) for path in FILES if any(name.startswith("fljax.config.") for name in imports(path))}
    assert not readers & {"preparation", "plans", "clustering", "report", "algorithms", "scenarios", "contributions"}


def test_nothing_but_the_face_imports_the_face():
    for path in FILES:
        assert "fljax" not in imports(path), path


def test_engine_and_algorithms_do_not_know_each_other():
    for path in FILES:
        if room(path) == "engine":
            assert not rooms_imported(path) & {"algorithms", "scenarios"}, path
        if room(path) in ("algorithms", "scenarios"):
            assert "engine" not in rooms_imported(path), path


def docstrings(module: ast.Module) -> set[int]:
    """Identities of the constants that are docstrings."""
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
    return found


def words(path: Path) -> set[str]:
    """Identifiers of a file and the words in its strings, docstrings apart."""
    module = tree(path)
    skipped = docstrings(module)
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            found |= set(re.findall(r"\w+", node.value.lower()))
        for field in ("id", "attr", "arg", "name", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                found |= {part.lower() for part in name.split(".")}
    return found


def test_the_words_of_a_file(tmp_path):
    path = tmp_path / "a.py"
    path.write_text('"""fedavg"""\nimport incfl as b\nx = q.afl if y == "use ditto" else f(rank=1)\n')
    assert {"incfl", "afl", "ditto", "rank", "x", "q"} <= words(path)
    assert "fedavg" not in words(path)


@pytest.mark.parametrize("path", named([path for path in FILES if room(path) == "engine"]))
def test_the_engine_names_no_algorithm(path):
    assert not words(path) & (set(REGISTRY) - PUBLIC_OF_THE_ENGINE)


def test_no_branch_on_an_algorithm_name():
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Compare):
                parts = [node.left, *node.comparators]
                strings = {part.value for part in parts if isinstance(part, ast.Constant)}
                assert not strings & (set(REGISTRY) - PUBLIC_OF_THE_ENGINE), f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("flax", "models"),
        ("tensorflow_datasets", "data"),
        ("tensorflow", "data"),
        ("sklearn.datasets", "data"),
        (
            "xarray",
            "contributions records long_records results endings infinite_losses anomalies cells further_rounds folders "
            "run_folders experiment sweep sweep_parts saved_comparisons report reproduce config cli engine comparison",
        ),
    ],
)
def test_libraries_have_a_home(library, home):
    for path in FILES:
        if any(name == library or name.startswith(library + ".") for name in outside(path)):
            assert room(path) in home.split(), f"{path.relative_to(ROOT)} imports {library}"


@pytest.mark.parametrize(
    "path", named([PACKAGE / "trees.py", *PACKAGE.glob("types/*.py"), *PACKAGE.glob("aggregators/*.py")])
)
def test_the_lowest_floors_need_jax_alone(path):
    allowed = {"__future__", "collections", "dataclasses", "functools", "typing", "jax", "jaxtyping", "math", "numpy"}
    assert {name.split(".")[0] for name in outside(path)} <= allowed


def test_host_side_loaders_are_imported_where_they_are_used():
    """Not at the top of a module: importing fljax.data must stay cheap."""
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not any(re.match(r"(tensorflow|sklearn|tensorflow_datasets)\b", name) for name in names), path


@pytest.mark.parametrize("private", ["jax.core", "jax._src", "jax.interpreters", "jax.pmap", "jax.experimental.maps"])
def test_no_private_or_retired_jax(private):
    for path in FILES:
        used = imports(path) | attributes(path)
        assert not any(name == private or name.startswith(private + ".") for name in used), path


def test_files_stay_readable():
    for path in FILES:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines"


def test_faces_have_no_logic():
    """They re-export names; ``__getattr__`` imports a name when it is first used, and ``__dir__`` lists such names."""
    for path in FILES:
        if path.name == "__init__.py" and path.parent != PACKAGE:
            late = ("__getattr__", "__dir__")
            body = [node for node in tree(path).body if getattr(node, "name", None) not in late]
            for node in ast.walk(ast.Module(body, [])):
                logic = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.For | ast.While
                assert not isinstance(node, logic), f"{path}:{getattr(node, 'lineno', 0)}"


# Each file holds one builder and has its name, as in configs and papers. All else in it is read from the registries, so
# nobody needs the module itself, and other names for 30 files would say nothing more.
NAMED_AFTER_THEIR_BUILDER = {"algorithms", "scenarios"}


def hidden_modules(face: Path) -> set[str]:
    """Modules of the package with this ``__init__.py`` whose name the package gives to something else."""
    package = ".".join(face.parent.relative_to(ROOT).parts)
    inside = {path.stem for path in face.parent.glob("*.py")} | {
        path.parent.name for path in face.parent.glob("*/*.py")
    }
    found = set()
    for node in ast.walk(tree(face)):
        if isinstance(node, ast.ImportFrom) and node.module != package:
            found |= {alias.asname or alias.name for alias in node.names}
    return {f"{package}.{name}" for name in found & inside}


def test_no_module_is_hidden_by_what_its_package_exports():
    """``import fljax.x.y as z`` and ``from fljax.x import y as z`` are the same object."""
    hidden = set().union(*(hidden_modules(path) for path in FILES if path.name == "__init__.py"))
    assert "fljax.algorithms.fedavg" in hidden
    assert not {name for name in hidden if name.split(".")[1] not in NAMED_AFTER_THEIR_BUILDER}


def test_every_file_says_what_it_is():
    for path in FILES:
        assert ast.get_docstring(tree(path)), path


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "README.md", "fljax", "benchmarks", "configs", "tests", "notebooks"]
)
def test_the_project_has_its_parts(name):
    assert (ROOT / name).exists()


@pytest.mark.parametrize(
    "package", ["training", "types", "algorithms", "scenarios", "engine", "aggregators", "contributions", "theory"]
)
def test_help_lists_what_a_package_exports(package: str) -> None:
    """``help(package)`` and ``from package import *`` read ``__all__``; it has every name that the face imports."""
    face = importlib.import_module(f"fljax.{package}")
    imported = {
        alias.asname or alias.name
        for node in tree(PACKAGE / package / "__init__.py").body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    assert set(face.__all__) == imported
    assert all(hasattr(face, name) for name in face.__all__)
