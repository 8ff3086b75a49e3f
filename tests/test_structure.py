"""The architecture: what may import what, what may be named where."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fljax.algorithms import REGISTRY

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fljax"
FILES = sorted(PACKAGE.rglob("*.py"))

# The rooms of the package, from the ground up. A room imports rooms of lower floors alone, which stand further up here.
# Imports inside functions and under TYPE_CHECKING count, too.
ORDER = (
    ("core",),
    ("aggregators", "protocol"),
    ("contributions", "data", "metrics", "models", "theory", "training"),
    ("algorithms", "results"),
    ("engine", "report", "scenarios"),
    ("config", "games", "testing"),
    ("experiments", "published"),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
FLOORS = {room: floor for floor, rooms in enumerate(ORDER) for room in rooms}
# The same inside the engine; its face imports all of them.
ORDER_OF_THE_ENGINE = (
    ("checkpoints", "devices"),
    ("rounds",),
    ("callbacks", "programs"),
    ("offload",),
    ("loop",),
    ("whole_runs",),
)
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


def modules_imported(path: Path) -> set[str]:
    """The files of fljax that a file imports, as dotted names; a package's face is ``fljax.package``."""
    found = set()
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "fljax":
            continue
        # ``from fljax.a import b`` is of the module ``fljax.a.b``, or else of ``fljax.a``.
        while len(parts) > 1 and not is_module(parts):
            parts = parts[:-1]
        found.add(".".join(parts))
    return found


@functools.cache
def _modules() -> frozenset[str]:
    files = (path.relative_to(ROOT).with_suffix("") for path in FILES)
    return frozenset(".".join(path.parts).removesuffix(".__init__") for path in files)


def is_module(parts: list[str]) -> bool:
    return ".".join(parts) in _modules()


def rooms_imported(path: Path) -> set[str]:
    inside = {(*name.split("."), "__init__")[1] for name in modules_imported(path)}
    return inside - {room(path)}


def outside(path: Path) -> set[str]:
    return {name for name in imports(path) if name.split(".")[0] != "fljax"}


def named(files: list[Path]) -> list[Any]:
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in files]


@pytest.mark.parametrize("path", named(FILES))
def test_imports_run_downward(path: Path) -> None:
    assert room(path) in FLOORS, f"{room(path)} is not in ORDER"
    for other in rooms_imported(path):
        assert other in FLOORS, f"{other} is not in ORDER"
        assert FLOORS[other] < FLOORS[room(path)], f"{path.relative_to(ROOT)} imports fljax.{other}"


@pytest.mark.parametrize(
    "path", named([path for path in FILES if path.match("engine/*/*") or path.match("engine/[a-z]*")])
)
def test_imports_inside_the_engine_run_downward(path: Path) -> None:
    floors = {part: floor for floor, parts in enumerate(ORDER_OF_THE_ENGINE) for part in parts}
    folder = path.relative_to(PACKAGE / "engine").parts[0].removesuffix(".py")
    for name in modules_imported(path):
        if name.startswith("fljax.engine."):
            other = name.split(".")[2]
            assert other == folder or floors[other] < floors[folder], f"{path.relative_to(ROOT)} imports {name}"


def test_modules_import_each_other_in_no_circle() -> None:
    """A file imports whole files: those of names that a face gives are the files that have them."""
    left = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): modules_imported(path)
        for path in FILES
        if path != PACKAGE / "__init__.py"  # which imports at first use
    }
    left.pop("fljax.__main__")
    while left:
        free = {name for name, needs in left.items() if not (needs - {name}) & set(left)}
        assert free, f"a circle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in free}


def test_own_modules_are_imported_by_name() -> None:
    """But for faces, which import a module when one of its names is used, and names that users write."""
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                assert "fljax" not in ast.unparse(node), f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_file_imports_the_face_of_its_own_package() -> None:
    for path in FILES:
        folders = path.relative_to(ROOT).parts[:-1]
        faces = {".".join(folders[:depth]) for depth in range(1, len(folders) + 1)}
        if path.name == "__init__.py":
            faces.discard(".".join(folders))
        assert not faces & modules_imported(path), path


def test_the_root_has_no_loose_files() -> None:
    assert {path.name for path in PACKAGE.iterdir() if path.is_file()} == {
        "__init__.py",
        "__main__.py",
        "py.typed",
        "starter.toml",
    }


def test_only_the_front_doors_are_given_a_config() -> None:
    """Its names are resolved in ``config``, its values made in ``experiments.inputs.setup``; others see no tables."""
    readers = {path.relative_to(PACKAGE).as_posix() for path in FILES if "fljax.config.Config" in imports(path)}
    doors = {f"experiments/{name}.py" for name in ("certify", "design", "inputs/setup", "load", "run", "worth")}
    assert not {each for each in readers if not each.startswith(("config/", "cli/"))} - doors
    readers = {room(path) for path in FILES if any(name.startswith("fljax.config.") for name in imports(path))}
    assert not readers & {"report", "algorithms", "scenarios", "contributions", "engine"}


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
        ("optax", "algorithms config games models training"),
        ("typer", "cli"),
        ("rich", "cli experiments"),
        ("matplotlib", "report"),
        ("jinja2", "core"),
        ("pydantic", "config"),
        ("tensorflow_datasets", "data"),
        ("tensorflow", "data"),
        ("sklearn.datasets", "data"),
        ("tomli_w", "config experiments"),
        ("xarray", "cli contributions engine experiments games published report results"),
    ],
)
def test_libraries_have_a_home(library, home):
    for path in FILES:
        if any(name == library or name.startswith(library + ".") for name in outside(path)):
            assert room(path) in home.split(), f"{path.relative_to(ROOT)} imports {library}"


@pytest.mark.parametrize("path", named(FILES))
def test_texts_leave_by_one_door_each(path):
    """HTML by templates, tables by ``as_csv``, terminals by ``tell`` and ``PlainConsole``; pictures come by formats."""
    where = path.relative_to(PACKAGE).as_posix()
    called = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    names = {ast.unparse(node.func) for node in called}
    if where not in ("core/plain.py", "__main__.py"):  # which imports nothing that it can do without
        assert "print" not in names
        assert not any(name.endswith(("stdout.write", "stderr.write", ".to_csv")) for name in names)
    if where != "experiments/progress_bars.py":
        assert not any(name.startswith("rich.console") for name in imports(path))
    texts = [node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)]
    assert not [text for text in texts if isinstance(text, str) and re.search(r"</\w|<\w+ \w+=", text)]
    assert all(
        {keyword.arg for keyword in node.keywords} == {"formats"}
        for node in called
        if ast.unparse(node.func) == "Image.open"
    )


@pytest.mark.parametrize(
    "path", named([PACKAGE / "core" / "trees.py", *PACKAGE.glob("protocol/*.py"), *PACKAGE.glob("aggregators/*.py")])
)
def test_the_lowest_floors_need_jax_alone(path):
    assert {name.split(".")[0] for name in outside(path)} - sys.stdlib_module_names <= {"jax", "jaxtyping", "numpy"}


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
        assert lines <= 800, f"{path.relative_to(ROOT)} has {lines} lines"


# Builders of algorithms and estimators are one idea in closures, and may be longer.
BUILDERS = ("algorithms", "contributions")


def test_functions_stay_readable() -> None:
    """A body has at most 80 lines without its docstring, and internals have at most 8 parameters; beyond: a record."""
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                where = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                lines = node.body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]
                assert lines <= 80 or (room(path) in BUILDERS and node in tree(path).body), f"{where} has {lines} lines"
                given = node.args
                parameters = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
                assert parameters <= 8 or node.name[0] != "_", f"{where} has {parameters} parameters"


def test_faces_have_no_logic():
    """They re-export names; ``fljax.core.lazy`` imports a name when it is first used, and lists such names."""
    for path in FILES:
        if path.name == "__init__.py":
            for node in ast.walk(tree(path)):
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
    "package",
    ["training", "protocol", "algorithms", "scenarios", "engine", "aggregators", "contributions", "games", "theory"],
)
def test_help_lists_what_a_package_exports(package: str) -> None:
    """``help(package)`` and ``from package import *`` read ``__all__``; it has every name that the face imports."""
    face = importlib.import_module(f"fljax.{package}")
    imported = {
        alias.asname or alias.name
        for node in tree(PACKAGE / package / "__init__.py").body
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "fljax.core.lazy")
        for alias in node.names
    }
    assert set(face.__all__) == imported
    assert all(hasattr(face, name) for name in face.__all__)
