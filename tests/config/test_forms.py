"""What a config may not be: too large, not for print, or (where that is asked for) a reason to import."""

from __future__ import annotations

import re
import sys

import pytest

from fljax import config
from fljax.config import ConfigError, forms
from fljax.core import names
from tests.toys.configs import DIGITS, config_text

MINIMAL = config_text(DIGITS, head="rounds = 20", model="mlp", batch_size=8)


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.delenv(names.NO_IMPORT, raising=False)
    file = tmp_path / "tiny.toml"
    file.write_text(MINIMAL)
    return file


def error(path, *overrides, **options):
    with pytest.raises(ConfigError) as caught:
        config.load(path, overrides, **options)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("seeds=1000000000", "seeds: expected at most 65536 seeds, got 1000000000"),
        ("seeds=[4294967296]", "seeds: expected seeds of at most 4294967295"),
        ("seeds=[1.7]", "seeds: expected a positive number of seeds or a list of different integers"),
        ("seeds=1.0", "seeds: expected a positive number of seeds"),
        ("seeds='1'", "seeds: expected a positive number of seeds"),
        ("rounds=1000000000000", "rounds: expected a number of at most 134217727, got 1000000000000"),
        ("rounds=1e9", "rounds: expected an integer, got 1000000000.0"),
        ("rounds=true", "rounds: expected an integer, got True"),
        (f"rounds={10**30}", "rounds: expected an integer of at most 64 bits"),
        (f"rounds={'9' * 5000}", "rounds: expected an integer, got '999"),
        ("data.clients=1000000000", "data.clients: expected a number of at most 16777216, got 1000000000"),
        ("data.clients=4.0", "data.clients: expected an integer, got 4.0"),
        ("data.unseen=16777216", "expected at most 16777216 clients, seen and unseen, got 16777220"),
        ("local.steps=2147483648", "local.steps: expected a number of at most 2147483647, got 2147483648"),
        ("local.batch_size=2147483648", "local.batch_size: expected a number of at most 2147483647"),
        ("local.learning_rate=1e400", "local.learning_rate: expected a finite number, got inf"),
        ("local.learning_rate=nan", "local.learning_rate: expected a number, got nan"),
        ("local.learning_rate=-0.0", "local.learning_rate: expected a number above 0, got -0.0"),
        ("local.learning_rate=2026-01-01", "local.learning_rate: expected a number, got datetime.date"),
        ("local.options.momentum=nan", "local.options.momentum: expected a number, got nan"),
        ("execution.clients=2147483648", "execution.clients: expected 'auto', 'trial'"),
        (f"rounds={'[' * 1500}{']' * 1500}", "expected a value, got brackets that are nested too deep"),
        (f"model.hidden={'[' * 40}{']' * 40}", "model: expected tables and lists at most 32 deep"),
        (f"{'.'.join('a' * 100)}=1", "expected an override 'table.key=value'"),
        ('data.folder="\\u0000"', "data.folder: expected text without NUL and surrogates"),
        ("data.folder=\udcff", "data.folder: expected text without NUL and surrogates"),
        (f"name={'é' * 60}", "name: expected a name of at most 100 bytes"),
        ("=3", "expected an override 'table.key=value', got '=3'"),
        ("rounds==3", "rounds: expected an integer, got '=3'"),
        ("scenarios=[" + ", ".join(['{name="finetuned"}'] * 201) + "]", "scenarios: expected at most 200 of them"),
    ],
)
def test_what_is_too_large_or_no_number_is_one_sentence(path, override, sentence):
    assert re.search(re.escape(sentence), error(path, override)), error(path, override)


def test_records_that_no_array_can_hold(path):
    found = error(path, "rounds=100000000", "data.clients=1000", "seeds=3")
    assert "expected seeds x rounds x clients_per_round to be at most 2147483647, got 300000000000" in found
    found = error(path, "rounds=1000", "evaluate_every=1", "data.unseen=1000000", "seeds=3")
    assert "expected seeds x evaluations x clients to be at most" in found


@pytest.mark.parametrize(
    "label", ["", " ", "a\x1b[31m", "a\x7f", "a\nb", "a\x00", "\u202eabc", "a\u2028b", "a\u2066", "x" * 101]
)
def test_labels_that_are_not_for_print(path, label):
    written = "".join(f"\\u{ord(each):04x}" for each in label)
    assert re.search("expected (a label of 1 to 100 characters|text without NUL)", error(path, _labelled(written)))


@pytest.mark.parametrize("label", ["[b]x[/b] $a$ :smile: [/]", "é ü", "家族 👩\u200d👧", "a/b", "x" * 100])
def test_labels_of_any_script_and_with_markup(path, label):
    loaded = config.load(path, [_labelled(label)])
    assert loaded.algorithms[0].label == label
    again = path.with_name("again.toml")
    again.write_text(config.dumps(loaded), encoding="utf-8")
    assert config.load(again) == config.load(path, [_labelled(label), "name=tiny"])


def _labelled(label):
    return f'algorithms.fedavg.label="{label}"'


def test_other_names_are_for_print(path):
    for key in ("data.dataset", "data.partition", "model.name", "algorithms.fedavg.name"):
        assert "without control characters" in error(path, f'{key}="\\u001b[31m"')
    assert "without control characters" in error(path, 'sweep.grid={"data.dataset" = ["a\\u001b"]}')


def test_values_of_a_grid(path):
    def sweep_error(*grid):
        with pytest.raises(ConfigError) as caught:
            config.load_grid(path, (), grid)
        return str(caught.value)

    assert "expected a list of different values, got []" in sweep_error("local.steps=")
    assert "expected a list of different values" in sweep_error("local.steps=1,1")
    assert "expected a grid 'table.key=value,value'" in sweep_error("=1")
    assert "expected a grid 'table.key=value,value'" in sweep_error("local.steps")
    assert "other than dates" in sweep_error("local.steps=2026-01-01")
    assert "brackets that are nested too deep" in sweep_error(f"local.steps={'[' * 1500}")
    hundred = ",".join(map(str, range(1, 101)))
    axes = [f"{key}={hundred}" for key in ("local.steps", "local.batch_size", "standalone.steps")]
    assert sweep_error(*axes) == "expected a grid of at most 10000 cells, got 1000000"


def test_files_that_are_no_configs(path, tmp_path):
    assert "expected a config file, got" in error(tmp_path)
    path.write_bytes(MINIMAL.encode("utf-16"))
    assert "expected valid TOML in" in error(path)
    path.write_text("rounds = 1\nrounds = 2\n")
    assert "expected valid TOML in" in error(path)
    path.write_text(f"rounds = {'[' * 1500}{']' * 1500}")
    assert "brackets that are nested too deep" in error(path)
    path.write_text(f"{'a.' * 2000}b = 1")
    assert "expected tables and lists at most 32 deep" in error(path)
    path.write_text("#" * (forms.LARGEST_FILE + 1))
    assert f"expected a config file of at most {forms.LARGEST_FILE} bytes" in error(path)
    path.write_text(f'base = "{"x" * 5000}"')
    assert "expected a config file, got" in error(path)
    path.unlink()
    path.symlink_to(path)
    assert "expected a config file, got" in error(path)


def test_a_file_may_begin_with_a_byte_order_mark(path):
    plain = config.load(path)
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert config.load(path) == plain


def test_bases_are_not_without_end(path, tmp_path):
    for place in range(20):
        (tmp_path / f"{place + 1}.toml").write_text(f'base = "{place}.toml"\n')
    path.rename(tmp_path / "0.toml")
    assert config.load(tmp_path / "16.toml").rounds == 20
    assert "expected at most 16 configs under one another" in error(tmp_path / "20.toml")


IMPORTED = "no_import_probe"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module whose import would be noticed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{IMPORTED}.py").write_text("def build(*args, **options): raise AssertionError\n")
    yield IMPORTED
    sys.modules.pop(IMPORTED, None)


PLACES = {
    "data.dataset": "data.dataset",
    "data.partition": "data.partition",
    "model.name": "model.name",
    "algorithms.fedavg.name": "algorithms.{name}",
    "scenarios": "scenarios.{name}",
    "algorithms.fedavg.scenarios": "algorithms.fedavg.scenarios.{name}",
    "algorithms.iafl.contribution": "algorithms.iafl.contribution",
}


@pytest.mark.parametrize("key", PLACES)
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_import_paths_are_refused_where_they_are_forbidden(path, module, monkeypatch, key, by):
    path.write_text(MINIMAL + '[[algorithms]]\nname = "iafl"\n')
    if by == "environment":
        monkeypatch.setenv(names.NO_IMPORT, "1")
    name = f"{module}:build"
    value = f'[{{name="{name}"}}]' if key.endswith("scenarios") else name
    said = error(path, f"{key}={value}", imports=by == "environment")
    assert said.startswith(f"{PLACES[key].format(name=name)}: expected one of the ")
    assert f"got the import path {name!r}, and import paths are refused here" in said
    assert module not in sys.modules


def test_import_paths_in_a_sweep_are_refused_as_well(path, module):
    with pytest.raises(ConfigError, match="import paths are refused here"):
        config.load_grid(path, (), [f"model.name=mlp,{module}:build"], imports=False)
    assert module not in sys.modules


def test_without_imports_all_other_names_work(path):
    assert config.load(path, imports=False) == config.load(path)
    assert "got 'mlpp' (did you mean 'mlp'?)" in error(path, "model.name=mlpp", imports=False)


@pytest.mark.parametrize(("value", "refused"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_refuses_import_paths(module, monkeypatch, value, refused):
    monkeypatch.setenv(names.NO_IMPORT, value)
    if refused:
        with pytest.raises(ValueError, match="import paths are refused here"):
            names.resolve(f"{module}:build", {}, "model")
    else:
        assert names.resolve(f"{module}:build", {}, "model").__name__ == "build"
    assert (module in sys.modules) != refused


def test_long_values_are_cut_in_sentences():
    assert names.shown("short") == "'short'"
    assert len(names.shown("x" * 10_000)) == 200
    assert len(names.unknown("model", "x" * 1_000_000, ["mlp"])) < 300
