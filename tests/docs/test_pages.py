"""Everything in a code block of the documentation works: Python runs, configs are valid, commands are known.

Blocks ``python`` of a page run in one namespace, from top to bottom. Blocks ``py`` are other libraries' code, or need
files that a page does not make; they only have to be Python.
"""

from __future__ import annotations

import pathlib
import re
import shlex
import sys
import textwrap
import tomllib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import typer

from fljax import config
from fljax.cli.entry import app
from fljax.config.reading import read

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
# A fragment of a config is laid over these.
BASE = read(ROOT / "configs" / "quickstart.toml")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, those in tabs too."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(each) for _, each in found]


def with_blocks(language: str) -> list[Any]:
    chosen = [path for path in PAGES if blocks(path.read_text(encoding="utf-8"), language)]
    assert chosen
    return [pytest.param(path, id=path.relative_to(ROOT / "docs").as_posix()) for path in chosen]


@pytest.fixture
def modules() -> Iterator[dict[str, types.ModuleType]]:
    """Modules that exist during one test."""
    before = set(sys.modules)
    yield sys.modules
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


def run(path: pathlib.Path) -> dict[str, Any]:
    """Runs the blocks of a page; line numbers of a traceback are those of the block."""
    names: dict[str, Any] = {"__name__": "page"}
    for number, code in enumerate(blocks(path.read_text(encoding="utf-8"), "python")):
        exec(compile(code, f"{path.name}, block {number + 1}", "exec", dont_inherit=True), names)
    return names


def write_patients(folder: pathlib.Path) -> None:
    """The file of scores.md."""
    rows = [f"{number % 90},{number % 7}.5,hospital {number % 4},{int(number % 33 == 0)}" for number in range(800)]
    (folder / "patients.csv").write_text("\n".join(["age,pulse,hospital,ill", *rows]))


@pytest.mark.parametrize("path", with_blocks("python"))
def test_python_runs(path, tmp_path, monkeypatch, modules):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fljax.use_cores", lambda count=None: 2, raising=False)  # JAX has started in tests
    names = run(path)
    write_own_data(tmp_path)
    write_patients(tmp_path)
    # Import paths in configs of the page name what its Python blocks define.
    for text in blocks(path.read_text(encoding="utf-8"), "toml"):
        for module, function in re.findall(r'"(my_\w+):(\w+)"', text):
            modules.setdefault(module, types.ModuleType(module)).__dict__[function] = names[function]
        check_config(text)


def laid_over(base: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged, except those of names with options of their own."""
    found = dict(base)
    for key, value in raw.items():
        own = isinstance(value, Mapping) and key != "model" and isinstance(base.get(key), Mapping)
        found[key] = laid_over(base[key], value) if own else value
    return found


def check_config(text: str) -> None:
    raw = tomllib.loads(text)
    base = dict(BASE)
    if "partition" in raw.get("data", {}):
        base["data"] = {key: value for key, value in base["data"].items() if key != "partition_options"}
    if {"steps", "epochs"} & set(raw.get("local", {})):
        base["local"] = {key: value for key, value in base["local"].items() if key != "steps"}
    parsed = config.parse(laid_over(base, raw))
    if parsed.sweep is not None:
        assert config.parse_grid(laid_over(base, raw)).cells


def write_own_data(folder: pathlib.Path) -> None:
    """Files that configs in own_data.md name; whether they are there is all that is looked at."""
    for name in ("study/train.csv", "study/test.csv", "scans/labels.csv", "hospitals/north.csv", "hospitals/south.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("height,who,kind,diagnosis\n1,Ada,a,b\n")


@pytest.mark.parametrize("path", with_blocks("toml"))
def test_configs_are_valid(path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{number}.5,{number % 3},client {number % 50},{'ab'[number % 2]}" for number in range(1000)]
    (tmp_path / "rows.csv").write_text("\n".join(["height,weight,who,kind", *rows]))  # of own_data.md
    for name, values in {
        "x": np.zeros((1000, 2), np.float32),
        "y": np.arange(1000) % 3,
        "owners": np.arange(1000),
    }.items():
        np.save(tmp_path / f"{name}.npy", values)  # of large_data.md
    write_own_data(tmp_path)
    write_patients(tmp_path)
    for text in blocks(path.read_text(encoding="utf-8"), "toml"):
        if '"my_' not in text:
            check_config(text)


@pytest.mark.parametrize("path", with_blocks("py"))
def test_other_code_is_python(path: pathlib.Path) -> None:
    for code in blocks(path.read_text(encoding="utf-8"), "py"):
        compile(code, path.name, "exec")


def test_code_fits_the_page() -> None:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for block in (*blocks(text, "python"), *blocks(text, "py")):
            assert max(map(len, block.splitlines())) <= 92, (path.name, block)


def commands() -> list[Any]:
    found = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        whole = [block.replace("\\\n", " ") for block in blocks(text, "bash")]  # a command may have several lines
        lines = [line for block in whole for line in block.splitlines()]
        found += [pytest.param(line, id=line) for line in dict.fromkeys(lines) if re.match(r"fljax\b", line)]
    assert found
    return found


@pytest.mark.parametrize("line", commands())
def test_commands_are_known(line: str, tmp_path: pathlib.Path) -> None:
    """Names of commands and options are right, and the configs that they name exist; nothing is run."""
    _, *words = shlex.split(line)
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        assert name in command.commands, name
        command = command.commands[name]
    command.make_context(command.name, words)
    for word in words:
        if word.endswith(".toml"):
            assert (ROOT / word).is_file(), word
