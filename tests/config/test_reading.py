"""Configs that come with fljax, by name."""

from __future__ import annotations

import pathlib

import pytest

from fljax import config
from fljax.config import ConfigError, reading
from fljax.config.reading import read

ROOT = pathlib.Path(__file__).parent.parents[1]
TINY = 'name = "mine"\n'


def test_every_file_has_a_name() -> None:
    found = reading.shipped_configs()
    assert set(found.values()) == set((ROOT / "configs").rglob("*.toml"))
    assert {"quickstart", "incfl/table1_fmnist"} <= set(found)


def test_by_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config.load("quickstart") == config.load(ROOT / "configs" / "quickstart.toml")
    assert config.load("quickstart.toml", ["rounds=3"]).rounds == 3
    assert read("incfl/table2_fmnist")["name"] == "incfl-table2-fmnist", "its base is found, too"
    assert len(config.load_grid("quickstart", grid=["local.learning_rate=0.1,0.2"]).cells) == 2


def test_a_file_counts_before_a_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("quickstart").write_text(TINY)
    assert read("quickstart") == {"name": "mine"}
    pathlib.Path("incfl").mkdir()
    assert read("incfl/table1_fmnist")["name"] == "incfl-table1-fmnist"
    pathlib.Path("incfl", "table1_fmnist.toml").write_text(TINY)
    assert read("incfl/table1_fmnist.toml") == {"name": "mine"}


def test_a_folder_of_results_hides_no_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("quickstart").mkdir()
    assert read("quickstart")["name"] == "quickstart"


def test_similar_names_are_suggested(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        read("quikstart")
    assert str(error.value) == (
        "expected a config file, got 'quikstart' (did you mean the shipped config 'quickstart'?)"
    )
    with pytest.raises(ConfigError, match=r"got 'nothing.toml' \(No such file or directory\)"):
        read("nothing.toml")


def test_what_a_config_says_of_itself(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("# One\n# two.\n\n# three\nrounds = 1\n")
    assert reading.about_config(path) == "One two."
    assert all(reading.about_config(each) for each in reading.shipped_configs().values())


def test_an_installed_package_has_them_inside(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_FOLDERS", (tmp_path / "fljax" / "configs", tmp_path / "configs"))
    assert (reading.shipped_configs(), reading.find_config("quickstart")) == ({}, pathlib.Path("quickstart"))
    (tmp_path / "fljax" / "configs").mkdir(parents=True)
    (tmp_path / "fljax" / "configs" / "quickstart.toml").write_text(TINY)
    assert reading.find_config("quickstart") == tmp_path / "fljax" / "configs" / "quickstart.toml"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("my run.toml", "my-run"),
        ("Lauf 3 (größer).TOML", "Lauf-3-größer-"),
        (".hidden.toml", "hidden"),
        (".toml", "toml"),
        ("run", "run"),
        ("2026-11-29 10:30.toml", "2026-11-29-10-30"),
        ("  !.toml", "experiment"),
        ("é" * 80 + ".toml", "é" * 50),
    ],
)
def test_any_name_of_a_file_gives_a_valid_name(tmp_path: pathlib.Path, file: str, name: str) -> None:
    text = (ROOT / "configs/quickstart.toml").read_text(encoding="utf-8")
    (tmp_path / file).write_text(text.replace('name = "quickstart"\n', ""), encoding="utf-8")
    assert config.load(tmp_path / file).name == name
