from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import xarray as xr

from fljax import algorithms, report, scenarios
from fljax import config as configuration
from fljax.cli import catalogue
from fljax.cli.commands.run import start_jax
from fljax.cli.running import KINDS
from fljax.experiments import run as experiment
from fljax.experiments import sweep
from fljax.metrics import registry
from fljax.results import folders, sweeps
from fljax.results.events import Event
from fljax.results.non_finite import Divergence, InfiniteLoss, NotFinite
from tests.toys.command import call, printed
from tests.toys.configs import DIGITS, config_text

CONFIG = config_text(DIGITS, head="rounds = 4", batch_size=8)


def outcome(config, diverged=(), infinite=()):
    shape = (1, len(config.seeds), 1)
    dimensions = ("algorithm", "seed", "evaluated_round")
    metrics = xr.Dataset(
        {"average_accuracy": (dimensions, np.full(shape, 0.5)), "m": (dimensions, np.full(shape, np.nan))},
        {"algorithm": ["fedavg"], "seed": list(config.seeds), "evaluated_round": [config.rounds]},
    )
    return experiment.Outcome(metrics, xr.Dataset(), tuple(diverged), {}, tuple(infinite))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A current directory with a config, and an experiment that takes no time; returns what it was called with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLJAX_TRACEBACK", raising=False)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    calls = []

    def run(config, *, directory, resume, on_event, **_):
        with folders.claim(directory, configuration.dumps(config), resume):
            calls.append((config, directory, resume))
            for round in (0, 2, 4):
                on_event(Event("train", "fedavg", round, 4, round / 2, ""))
            on_event(Event("note", "fedavg", 4, 4, 2.0, "a [note]"))
            return outcome(config)

    monkeypatch.setattr(experiment, "run", run)
    monkeypatch.setattr(report, "write", lambda folder, results=None: (folder / "report.png", folder / "report.html"))
    return calls


def test_run(fake, tmp_path):
    code, out, err = call("run", "tiny.toml", "--seeds", "2", "--set", "local.steps=7")
    assert code == 0
    ((config, folder, resume),) = fake
    assert (config.seeds, config.local.steps, resume) == ((0, 1), 7, False)
    assert folder.parent.name == "runs"
    assert folder.name.startswith("tiny-")
    assert "0.500 ± 0.000" in out
    assert f"Results: {folder}" in out
    assert "report.html" in out
    assert "a [note]" in err
    assert "steps = 7" in (folder / "config.toml").read_text()
    assert "jax" in json.loads((folder / "environment.json").read_text())["versions"]


def test_run_json(fake):
    code, out, _ = call("run", "tiny.toml", "--out", "x", "--json", "--quiet", "--no-report")
    found = json.loads(out)
    assert (code, found["directory"], found["report"], found["diverged"]) == (0, "x", [], [])
    first, second = found["summary"]
    assert (first["metric"], first["mean"], first["std"]) == ("average_accuracy", 0.5, None)
    assert (second["metric"], second["mean"]) == ("m", None)


def test_run_quiet(fake):
    assert call("run", "tiny.toml", "--quiet") == (0, "", "")


def test_resume_finds_the_latest_run(fake):
    assert call("run", "tiny.toml", "--resume")[0] == 2
    call("run", "tiny.toml")
    assert call("run", "tiny.toml", "--resume")[0] == 0
    assert fake[1][1:] == (fake[0][1], True)
    code, _, err = call("run", "tiny.toml", "--resume", "--set", "rounds=9")
    assert (code, len(fake)) == (2, 2)
    assert "got a changed one" in err


def test_results_are_not_overwritten(fake, tmp_path):
    (tmp_path / "results.nc").touch()
    code, _, err = call("run", "tiny.toml", "--out", ".")
    assert (code, fake) == (2, [])
    assert "expected a folder without results, or --resume" in err


def test_unwritable_folder(fake):
    code, _, err = call("run", "tiny.toml", "--out", "tiny.toml/x")
    assert (code, fake) == (2, [])
    assert "expected a folder to write in, got 'tiny.toml/x'" in err


def test_infinite_losses(fake, monkeypatch):
    """As for runs that diverged: one sentence, and no success."""
    found = [InfiniteLoss({"algorithm": "fedavg", "seed": 0}, 3, "test_loss", (1, 2)), InfiniteLoss({}, None, "m", ())]
    monkeypatch.setattr(experiment, "run", lambda config, **others: outcome(config, infinite=found))
    code, _, err = call("run", "tiny.toml", "--out", "x", "--quiet")
    told = "the test_loss of clients 1, 2 is infinite after round 3 (algorithm fedavg, seed 0), and so in 1 more"
    assert (code, err) == (1, f"fljax: {told}; all is saved in x\n")
    code, out, _ = call("run", "tiny.toml", "--out", "y", "--json")
    expected = {"run": {"algorithm": "fedavg", "seed": 0}, "round": 3, "metric": "test_loss", "clients": [1, 2]}
    assert json.loads(out)["infinite"][0] == expected


def test_diverged(fake, monkeypatch):
    def run(config, **_):
        return outcome(config, [("fedavg", 0, 3)])

    monkeypatch.setattr(experiment, "run", run)
    code, out, err = call("run", "tiny.toml", "--out", "x", "--json", "--quiet")
    assert (code, err) == (1, "fljax: fedavg diverged with seed 0 in round 3; all is saved in x\n")
    assert json.loads(out)["diverged"] == [{"algorithm": "fedavg", "seed": 0, "round": 3, "clients": []}]


def test_who_made_a_run_diverge_is_in_the_table_and_in_the_sentence(fake, monkeypatch):
    def run(config, **_):
        found = outcome(config, [("fedavg", 1, 3)])
        senders = np.zeros((1, 2, 4), np.int8)
        senders[0, 1, [0, 2]] = 1
        dropped = (("algorithm", "seed", "evaluated_round"), np.full((1, 2, 1), 7))
        added = {"diverged": (("algorithm", "seed"), [[-1, 3]]), "dropped_messages": dropped}
        added["diverged_by"] = (("algorithm", "seed", "client"), senders)
        return found._replace(metrics=found.metrics.assign(added).assign_coords(client=np.arange(4)))

    monkeypatch.setattr(experiment, "run", run)
    code, out, err = call("run", "tiny.toml", "--out", "x", "--seeds", "2")
    assert code == 1
    who = "in which clients 0, 2 sent values that are not finite"
    assert err.strip() == f"fljax: fedavg diverged with seed 1 in round 3, {who}; all is saved in x"
    assert "1 of 2 seeds, round 3" in out
    assert "7.0 ± 0.0" in out
    out = call("run", "tiny.toml", "--out", "x", "--seeds", "2", "--json")[1]
    assert json.loads(out)["diverged"] == [{"algorithm": "fedavg", "seed": 1, "round": 3, "clients": [0, 2]}]


@pytest.mark.parametrize("error", [NotFinite(Divergence(1, 3, (2,))).of("fedavg"), ZeroDivisionError("by 0")])
def test_a_run_that_stops_itself(fake, monkeypatch, error):
    def run(config, **_):
        raise error

    monkeypatch.setattr(experiment, "run", run)
    code, out, err = call("run", "tiny.toml", "--out", "x", "--quiet")
    assert (code, out) == (1, "")
    words = "fedavg was stopped, since client 2 sent values that are not finite in round 3 of seed 1"
    stopped = err == f"fljax: {words}; what was computed before is saved in x\n"
    assert stopped == isinstance(error, NotFinite)


def test_fault_is_one_sentence(fake, monkeypatch):
    def run(config, **_):
        raise ValueError("shapes\ndiffer")  # not raised by fljax, hence no bad input

    monkeypatch.setattr(experiment, "run", run)
    code, _, err = call("run", "tiny.toml", "--quiet")
    assert code == 1
    place = r"\S*test_cli\.py:\d+"
    advice = r"\(run with FLJAX_TRACEBACK=1 for the traceback\)"
    assert re.fullmatch(rf"fljax: failed in run \({place}\): ValueError: shapes differ {advice}\n", err)
    monkeypatch.setenv("FLJAX_TRACEBACK", "1")
    assert "Traceback" in call("run", "tiny.toml", "--out", "y", "--quiet")[2]


def test_interrupt(fake, monkeypatch):
    def run(config, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run", run)
    code, _, err = call("run", "tiny.toml", "--quiet", "--out", "x")
    how = "to go on: fljax run tiny.toml --quiet --out x --resume"
    sentence = f"fljax: interrupted; what was saved before is kept; {how}\n"
    assert (code, err) == (130, sentence)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_have_exit_codes_of_their_own(fake, monkeypatch, number):
    """Also where a library has wrapped what the signal raised; afterwards signals mean what they meant before."""
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]

    def run(config, **_):
        try:
            signal.raise_signal(number)
        except BaseException as error:
            raise RuntimeError("wrapped") from error

    monkeypatch.setattr(experiment, "run", run)
    assert call("run", "tiny.toml", "--quiet") == (128 + number, "", "fljax: interrupted\n")
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_full_disk_is_one_sentence(fake, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    code, _, err = call("run", "tiny.toml", "--quiet", "--out", "x")
    assert (code, fake, err.count("\n")) == (1, [], 1)
    assert err.startswith("fljax: expected to write config.toml (")
    assert "got: No space left on device" in err


@pytest.fixture
def fake_sweep(fake, monkeypatch):
    """As ``fake``, for sweeps: no time, and one cell that diverges where the learning rate is 1."""
    calls = []

    def run(grid, *, directory, resume, on_event, **_):
        with folders.claim(directory, configuration.dumps(grid.config), resume):
            calls.append((grid, directory, resume))
            on_event(Event("train", "fedavg", 4, 4, 2.0, ""))
        axes = {axis.name: list(axis.values) for axis in grid.axes}
        metrics = outcome(grid.config).metrics.expand_dims(axes, axis=tuple(range(1, 1 + len(axes))))
        metrics = metrics.assign(diverged=metrics["m"].isel(evaluated_round=0, drop=True).fillna(-1))
        metrics = metrics.assign_attrs(metric="average_accuracy", grid=sweep.paths(grid))
        best = sweeps.Best("fedavg", "average_accuracy", {"learning_rate": 0.1}, 0.5, 0.5, float("nan"), 1, ())
        rates = [cell.local.learning_rate for cell in grid.cells]
        diverged = (("fedavg", {"learning_rate": 1}, 0, 3),) if 1 in rates else ()
        return sweep.Outcome(metrics, xr.Dataset(), diverged, best=(best,))

    monkeypatch.setattr(sweep, "run", run)
    return calls


def test_sweep(fake_sweep):
    arguments = [
        "--grid",
        "local.learning_rate=0.1,0.2",
        "--grid",
        "local.steps=1",
        "--set",
        "rounds=8",
        "--seeds",
        "2",
    ]
    code, out, _ = call("sweep", "tiny.toml", *arguments)
    ((grid, folder, resume),) = fake_sweep
    assert (code, resume, len(grid.cells), grid.config.rounds, grid.config.seeds) == (0, False, 2, 8, (0, 1))
    assert "learning_rate" in out
    assert "0.500" in out
    assert f"Results: {folder}" in out
    written = tomllib.loads((folder / "config.toml").read_text())
    assert written["sweep"]["grid"]["local.learning_rate"] == [0.1, 0.2]
    assert call("sweep", "tiny.toml", *arguments, "--resume")[0] == 0
    assert fake_sweep[1][1:] == (folder, True)


def test_sweep_json_and_divergence(fake_sweep):
    code, out, err = call("sweep", "tiny.toml", "--grid", "local.learning_rate=0.1,1", "--json", "--out", "x")
    assert code == 1
    assert "fedavg diverged at learning_rate = 1 with seed 0 in round 3; all is saved in x" in err
    found = json.loads(out)
    assert found["best"][0]["cell"] == {"learning_rate": 0.1}
    assert found["diverged"] == [
        {"algorithm": "fedavg", "cell": {"learning_rate": 1}, "seed": 0, "round": 3} | {"clients": []}
    ]


@pytest.mark.parametrize("kind", list(KINDS))
def test_list(kind):
    code, out, _ = call("list", kind)
    assert (code, bool(out)) == (0, True)
    found = json.loads(call("list", kind, "--json")[1])
    assert all(name in out for name in found)


ORIGIN = {**scenarios.REGISTRY, **algorithms.REGISTRY}
# Words of titles by which docstrings name papers in short.
SHORT = {
    "INCFL": "To Federate or Not To Federate",
    "MaxFL": "Maximizing Global Model Appeal",
    "IAFL": "Incentive-Aware Federated Learning",
    "IP-FL": "{IP-FL}: Incentivized and Personalized",
}


@pytest.mark.parametrize("name", ORIGIN)
def test_cite_gives_the_papers_that_the_docstring_names(name):
    """By their titles in quotation marks, or by short names before a section, an appendix, an equation or a table."""
    header = " ".join((sys.modules[ORIGIN[name].build.__module__].__doc__ or "").split())
    source = header.partition("Source:")[2].partition("Deviation")[0]
    titles = {title.lower() for title in re.findall(r'"([A-Z][^"]*? [^"]*?)"', source)}
    titles |= {
        SHORT[short].lower() for short in re.findall(r"\b(INCFL|MaxFL|IAFL|IP-FL)(?=,? \(?(?:section|app))", source)
    }
    papers = ORIGIN[name].references
    if not titles:
        assert "Source: none" in header
        assert call("cite", name)[0] == 2
        return
    printed = call("cite", name)[1].lower()
    assert printed.count("@") == len(papers) >= 1
    for title in titles:
        assert title.replace("{", "").replace("}", "") in printed.replace("{", "").replace("}", "")


def test_both_papers_of_incfl():
    printed = call("cite", "incfl")[1]
    assert "To Federate or Not To Federate" in printed
    assert "Maximizing Global Model Appeal" in printed
    keys = re.findall(r"@\w+\{(\w+),", printed)
    assert len(keys) == len(set(keys)) == 2


def test_lists_show_whole_sentences():
    """A docstring whose first sentence takes two lines is not cut at the end of the first."""

    def long(x):
        """Gives what is asked for, in words that
        need a second line. Then more.
        """

    assert catalogue.line(long) == "Gives what is asked for, in words that need a second line"
    for kind in KINDS:
        for line in call("list", kind)[1].splitlines():
            assert line.count("``") % 2 == 0, line
            assert line.count("(") == line.count(")"), line
            assert not line.endswith((",", " of", " the", " and", " a")), line


def test_every_metric_of_results_is_listed():
    found = json.loads(call("list", "metrics", "--json")[1])
    assert found == registry.METRICS
    assert {"unseen_average_gain", "global_model_appeal", "required_loss", "seconds_train"} <= set(found)


def test_doctor_and_status():
    found = json.loads(call("doctor", "--json")[1])
    assert {"versions", "devices", "memory", "data"} <= set(found)
    assert "digits" in call("doctor")[1]
    assert "digits" in json.loads(call("data", "status", "--json")[1])
    assert call("data", "prepare", "digits")[1] == "digits: 1797 examples of 8 x 8 x 1, 10 classes\n"


@pytest.mark.thorough
def test_doctor_says_what_a_config_would_hold(fake):
    out = printed("doctor", "--config", "tiny.toml", "--set", "seeds=2")
    assert {"fedavg", "at once", "server", "data"} <= set(re.split(r" *[│┃] *", out))
    assert "all 2 seeds" in out
    code, out, _ = call("doctor", "--config", "tiny.toml", "--json")
    found = json.loads(out)["fedavg"]
    assert code == 0
    assert found["model"] == found["server"] == 4 * (64 + 1) * 10
    assert found["peak"] > found["data"] > 0
    assert found["warning"] is None
    for arguments, sentence in (
        (["--config", "no.toml"], "expected a config file, got 'no.toml'"),
        (["--config", "tiny.toml", "--set", "local.rate=1"], "local.rate: expected one of the keys"),
        (["--set", "rounds=1"], "expected --config with --set"),
    ):
        code, _, err = call("doctor", *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert sentence in err


def test_compilation_cache(monkeypatch):
    import jax

    changed = {}
    monkeypatch.setattr(jax.config, "update", lambda name, value: changed.update({name: value}))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("FLJAX_COMPILATION_CACHE", "off")
    start_jax()
    assert "jax_compilation_cache_dir" not in changed
    assert changed["jax_enable_compilation_cache"] is False
    monkeypatch.delenv("FLJAX_COMPILATION_CACHE")
    start_jax(cache=False)
    assert "jax_compilation_cache_dir" not in changed
    start_jax()
    assert changed["jax_compilation_cache_max_size"] > 0
    assert changed["jax_compilation_cache_dir"].endswith(os.path.join(".cache", "fljax", "xla"))


@pytest.mark.in_turn
def test_compilation_cache_is_filled(tmp_path):
    """As the command starts it, in a process where JAX has not."""
    code = (
        "from fljax.cli.running import start_jax\n"
        "start_jax()\n"
        "import jax\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "jax.jit(lambda x: x + 1)(1.0).block_until_ready()\n"
        "print(jax.device_count())"
    )
    drop = ("JAX_COMPILATION_CACHE_DIR", "FLJAX_COMPILATION_CACHE", "XLA_FLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in drop} | {"HOME": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) == len(os.sched_getaffinity(0))
    assert any((tmp_path / ".cache" / "fljax" / "xla").iterdir())


def test_published_tables(tmp_path):
    code, printed, _ = call("list", "tables")
    assert code == 0
    assert "maxfl_table1_flexible" in printed
    code, printed, _ = call("reproduce", "incfl_table1_unseen", "--dataset", "FMNIST", "--no-run")
    assert code == 0
    assert "98.8 ± 0.1" in printed
    assert "ours" not in printed
    code, printed, _ = call("reproduce", "ipfl_table1_cifar10_clusters", "--partition", "10:90", "--no-run")
    assert code == 0
    assert "cluster_model_acc_pct[c0]" in printed


def test_help_imports_nothing_heavy():
    """``--help`` is quick: no JAX, no xarray, no matplotlib."""
    code = (
        "import sys, fljax.cli as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit as stopped: assert stopped.code == 0\n"
        "assert not {'jax', 'xarray', 'matplotlib', 'numpy'} & set(sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "run" in found.stdout


def test_version():
    from fljax import __version__

    assert call("--version")[:2] == (0, f"fljax {__version__}\n")
