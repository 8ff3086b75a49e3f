"""What the command line lets in: import paths where they are allowed, and labels of any kind, end to end."""

from __future__ import annotations

import csv
import html
import os
import re
import subprocess
import sys
import unicodedata

import pytest
import xarray as xr

from fljax.core import names
from fljax.experiments import run as experiment
from tests.processes import command, ended
from tests.toys.command import call
from tests.toys.configs import config_text

TINY = config_text('dataset = "digits"\npartition = "iid"\nclients = 3', batch_size=8, steps=1, standalone=1)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with a config and a module whose import would be noticed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLJAX_TRACEBACK", raising=False)
    monkeypatch.delenv(names.NO_IMPORT, raising=False)
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "front_door_probe.py").write_text("from fljax.models import logistic_regression as model\n")
    yield tmp_path
    sys.modules.pop("front_door_probe", None)


IMPORTING = ("--set", "model.name=front_door_probe:model")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "tiny.toml", "--no-import"),
        ("sweep", "tiny.toml", "--grid", "local.steps=1,2", "--no-import"),
        ("doctor", "--config", "tiny.toml"),
        ("doctor", "--config", "tiny.toml", "--no-import"),
    ],
    ids=" ".join,
)
def test_import_paths_are_refused(here, arguments):
    code, _, err = call(*arguments, *IMPORTING)
    assert code == 2
    assert err.startswith("fljax: model.name: expected one of the models ")
    assert "got the import path 'front_door_probe:model', and import paths are refused here" in err
    assert "front_door_probe" not in sys.modules
    assert sorted(each.name for each in here.iterdir()) == ["front_door_probe.py", "tiny.toml"]


def test_the_environment_refuses_what_an_option_allows(here, monkeypatch):
    monkeypatch.setenv(names.NO_IMPORT, "1")
    for arguments in (("run", "tiny.toml"), ("doctor", "--config", "tiny.toml", "--import")):
        code, _, err = call(*arguments, *IMPORTING)
        assert (code, "import paths are refused here" in err) == (2, True)
    assert "front_door_probe" not in sys.modules


def test_import_paths_are_followed_where_that_is_asked_for(here, monkeypatch):
    monkeypatch.setattr(experiment, "estimates", lambda config: {})
    code, _, err = call("doctor", "--config", "tiny.toml", "--import", *IMPORTING)
    assert (code, err) == (0, "")
    assert "front_door_probe" in sys.modules


@pytest.mark.in_turn
def test_doctor_and_list_import_nothing_of_the_current_directory(here):
    for name in ("mine", "my_models", "fljax_data", "conftest", "sitecustomize_fljax"):
        (here / f"{name}.py").write_text("raise SystemExit('imported')\n")
    script = (
        "import pathlib, sys\n"
        "from fljax import cli\n"
        "for arguments in (['doctor'], ['doctor', '--json'], ['list', 'models'], ['list', 'datasets']):\n"
        "    try:\n"
        "        cli.main(arguments)\n"
        "    except SystemExit as stopped:\n"
        "        assert stopped.code == 0, stopped.code\n"
        "files = [getattr(each, '__file__', None) for each in list(sys.modules.values())]\n"
        "here = pathlib.Path.cwd()\n"
        "assert not [each for each in files if each and pathlib.Path(each).parent == here]\n"
    )
    # The current directory comes first on Python's path, as with `python -m fljax`.
    path = os.pathsep.join(["", *(each for each in sys.path if each)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=here,
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "imported" in done.stdout + done.stderr) == (0, False), done.stderr


@pytest.mark.thorough
def test_a_run_imports_what_it_uses(here):
    """No matplotlib where nothing is drawn, neither in a table; and no scikit-learn for its digits."""
    script = (
        "import sys\n"
        "import jax\n"
        "jax.config.update('jax_disable_most_optimizations', True)\n"
        "from fljax import cli, report\n"
        "def unused(*names):\n"
        "    assert not set(names) & set(sys.modules), sorted(set(names) & set(sys.modules))\n"
        "try:\n"
        "    cli.main(['run', 'tiny.toml', '--out', 'x', '--no-report'])\n"
        "except SystemExit as stopped:\n"
        "    assert stopped.code == 0, stopped.code\n"
        "unused('flax.nnx', 'matplotlib', 'PIL', 'sklearn', 'tensorflow')\n"
        "print(*report.write('x'))\n"
        "assert 'matplotlib' in sys.modules\n"
        "unused('matplotlib.pyplot', 'sklearn', 'tensorflow')\n"
    )
    run = [sys.executable, "-c", script]
    path = os.pathsep.join(each for each in sys.path if each)
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(run, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Test results after round 1" in done.stdout
    assert (here / "x" / "report.png").is_file()


@pytest.mark.parametrize("text", ["a\x1b[31mred", "a\x9bb", "\u202eabc", "a\x07"])
def test_nothing_of_a_config_steers_the_terminal(here, text):
    written = "".join(f"\\U{ord(each):08x}" for each in text)
    for arguments in (("--set", f'algorithms.fedavg.label="{written}"'), ("--set", f"{text}=1"), ("--set", text)):
        code, out, err = call("run", "tiny.toml", *arguments)
        assert (code, out) == (2, "")
        assert not any(unicodedata.category(each) in ("Cc", "Cf") for each in err.rstrip("\n"))


LABEL = "[b]x[/b] $a$ :smile: [/]"


@pytest.mark.thorough
def test_a_label_is_the_same_letters_everywhere(here, quick_compilation):
    code, out, err = call("run", "tiny.toml", "--out", "x", "--set", f'algorithms.fedavg.label="{LABEL}"')
    assert code == 0, err
    assert LABEL in out
    with open(here / "x" / "metrics.csv", encoding="utf-8", newline="") as file:
        assert {row["algorithm"] for row in csv.DictReader(file)} == {LABEL}
    assert xr.load_dataset(here / "x" / "results.nc", engine="h5netcdf")["algorithm"].values.tolist() == [LABEL]
    page = (here / "x" / "report.html").read_text(encoding="utf-8")
    assert LABEL in html.unescape(re.sub(r"<[^>]*>", "", page))
    assert (here / "x" / "report.png").stat().st_size > 0
    again = ("--out", "x", "--resume", "--no-report", "--set", f"algorithms.fedavg.label={LABEL}")
    code, out, err = call("run", "tiny.toml", *again)
    assert (code, LABEL in out) == (0, True), err


@pytest.mark.in_turn
def test_a_platform_that_is_not_there_is_one_sentence(here):
    started = command(here, "run", "tiny.toml", "--out", "x", variables={"JAX_PLATFORMS": "nowhere"})
    ((code, _, err),) = ended([started])
    assert code == 2
    last = err.strip().splitlines()[-1]
    assert last.startswith("fljax: JAX_PLATFORMS: expected platforms that JAX finds on this machine, got 'nowhere'")
