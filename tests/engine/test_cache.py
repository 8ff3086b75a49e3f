"""Compiled programs on the disk, for later processes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import pytest

import fljax
from fljax.engine.devices import layout
from tests.refusals import refuses

VARIABLES = ("JAX_COMPILATION_CACHE_DIR", "FLJAX_COMPILATION_CACHE")


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of JAX that were changed; the cache of this process stays as it is."""
    settings: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", lambda name, value: settings.update({name: value}))
    monkeypatch.setattr(layout.compilation_cache, "reset_cache", lambda: None)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return settings


def test_one_call_keeps_programs_and_prints_their_place(changed, tmp_path, capsys):
    assert fljax.use_cache(tmp_path / "programs") == tmp_path / "programs"
    assert capsys.readouterr().out == f"compiled programs are kept in {tmp_path / 'programs'}\n"
    assert changed["jax_compilation_cache_dir"] == str(tmp_path / "programs")
    assert changed["jax_compilation_cache_max_size"] == layout.LIMIT
    assert changed["jax_enable_compilation_cache"] is True


def test_the_environment_chooses_the_folder(changed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fljax.use_cache() == tmp_path / ".cache" / "fljax" / "xla"
    changed.clear()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "of_jax")
    assert fljax.use_cache() == pathlib.Path("of_jax")
    assert changed == {"jax_enable_compilation_cache": True}  # JAX has read the rest from its variables
    monkeypatch.setenv("FLJAX_COMPILATION_CACHE", "of_fljax")
    assert fljax.use_cache() == pathlib.Path("of_fljax")
    assert changed["jax_compilation_cache_dir"] == "of_fljax"
    monkeypatch.setenv("FLJAX_COMPILATION_CACHE", "off")
    assert fljax.use_cache() is None
    assert changed["jax_enable_compilation_cache"] is False
    assert capsys.readouterr().out.endswith("compiled programs are not kept\n")


@pytest.mark.unchecked
@pytest.mark.parametrize("folder", ["", 3, False])
def test_what_is_no_folder_is_refused(changed: dict[str, Any], folder: Any) -> None:
    refuses(lambda: fljax.use_cache(folder), "expected the path of a folder for compiled programs, got ")
    assert not changed


def test_a_file_is_refused(changed: dict[str, Any], tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    refuses(lambda: fljax.use_cache(tmp_path / "file"), "expected a folder for compiled programs, got the file ")
    assert not changed


def test_a_folder_that_cannot_be_made_is_said(changed, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert fljax.use_cache(tmp_path / "file" / "programs") is None
    assert capsys.readouterr().out.startswith("compiled programs are not kept: [Errno")
    assert changed["jax_enable_compilation_cache"] is False


@pytest.mark.in_turn
def test_programs_are_kept_also_where_some_were_compiled_before(tmp_path: pathlib.Path) -> None:
    code = (
        "import jax, fljax\n"
        "jax.jit(lambda x: x - 1)(1.0).block_until_ready()\n"
        "fljax.use_cache('programs')\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "jax.jit(lambda x: x + 1)(1.0).block_until_ready()"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", *VARIABLES))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "compiled programs are kept in programs\n"
    assert len(list((tmp_path / "programs").glob("*-cache"))) == 1


def test_a_killed_process_does_not_spoil_the_compilation_cache(tmp_path: pathlib.Path) -> None:
    """A program without the time of its last use keeps JAX from storing others: one that is old is removed."""
    for name in ("old-cache", "old_but_used-cache", "fresh-cache"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "old_but_used-atime").write_bytes(b"")
    for name in ("old-cache", "old_but_used-cache"):
        os.utime(tmp_path / name, (1, 1))
    layout.mend(tmp_path)
    assert sorted(program.name for program in tmp_path.glob("*-cache")) == ["fresh-cache", "old_but_used-cache"]
    layout.mend(tmp_path / "nothing")
