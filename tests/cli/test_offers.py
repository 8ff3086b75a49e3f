"""``fljax list``, ``show``, ``init``, ``export`` and ``compare``, as a user types them."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import re
import tomllib

import numpy as np
import pytest
import xarray as xr

from fljax import config
from fljax.cli.commands.describe import WIDEST
from fljax.experiments import run as experiment
from fljax.report.exporting import escape
from fljax.results import Results, folders
from tests.toys.command import call, printed
from tests.toys.configs import DIGITS, config_text

CONFIG = config_text(DIGITS, head="rounds = 4", batch_size=8)


def saved(
    folder: pathlib.Path,
    accuracy: dict[str, list[float]],
    text: str = CONFIG,
    seeds: tuple[int, ...] = (0, 1),
) -> pathlib.Path:
    """A run folder in which algorithms have these accuracies, one for each seed."""
    values = np.array(list(accuracy.values()))[..., None]
    dimensions = ("algorithm", "seed", "evaluated_round")
    metrics = xr.Dataset(
        {"average_accuracy": (dimensions, values), "opt_outs": (dimensions, 10 * values)},
        {"algorithm": list(accuracy), "seed": list(seeds), "evaluated_round": [4]},
    )
    folder.mkdir()
    (folder / "config.toml").write_text(text)
    folders.save_results(folder, Results(metrics, xr.Dataset()), text)
    return folder


def test_show() -> None:
    out = printed("show", "fedprox")
    assert out.startswith("fedprox, an algorithm\nFedProx: FedAvg with a proximal term")
    assert "F_k(y) + mu/2 ||y - w||^2" in out
    assert "\n  mu  number; default 0.1; differentiable\n      weight of the proximal term; 0 is FedAvg." in out
    assert "\n  clients_per_round  integer or none; default 10; in a config, the experiment gives it\n" in out
    assert "\nReturns\n  The algorithm. Info: `weight` [row], normalised.\n" in out
    assert "\n  a client sends: 1 model\n" in out
    assert "\n  aggregation: streamed: " in out
    assert "BibTeX: fljax cite fedprox" in out
    assert "incfl/table1_fmnist" in out
    assert "incfl_table1_unseen" in out
    assert all(len(line) <= WIDEST for line in out.splitlines())


def test_show_json() -> None:
    (found,) = json.loads(call("show", "dirichlet", "--json")[1])
    assert found["kind"] == "partition"
    parameters = {each["name"]: each for each in found["parameters"]}
    assert (parameters["beta"]["type"], parameters["minimum"]["default"]) == ("number or none", "10")


def test_long_lines_of_a_list_are_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = call("list", "datasets")[1]
    monkeypatch.setattr("fljax.cli.commands.describe._width", lambda: 60)
    wrapped = call("list", "datasets")[1]
    assert all(len(line) <= 60 for line in wrapped.splitlines())
    assert wrapped.split() == whole.split()
    assert len(wrapped.splitlines()) > len(whole.splitlines())


def test_init(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("init")
    assert (code, out) == (0, "experiment.toml is written; to run it: fljax run experiment.toml\n")
    assert config.load("experiment.toml").name == "experiment"
    code, out, err = call("init")
    assert (code, out) == (2, "")
    assert "expected the path of a file that does not exist yet, got 'experiment.toml'" in err
    assert call("init", ".")[0] == 2
    assert call("init", "none/a.toml")[0] == 2
    assert call("init", "a b.toml")[1].endswith("fljax run 'a b.toml'\n")


def test_what_is_commented_out_in_the_starter_config_is_valid(tmp_path: pathlib.Path) -> None:
    """Each commented table, and each commented key, by itself; comments in words stay comments."""
    path = tmp_path / "a.toml"
    call("init", str(path))
    lines = path.read_text().splitlines()
    code = re.compile(r"# (\[.*\]|\w+ = .+)$")
    groups: list[list[int]] = []
    for place, line in enumerate(lines):
        if code.match(line.split("  #")[0]):
            joined = bool(groups) and groups[-1][-1] == place - 1 and lines[groups[-1][0]].startswith("# [")
            groups[-1].append(place) if joined else groups.append([place])
    assert len(groups) >= 8
    for group in groups:
        changed = [line[2:] if place in group else line for place, line in enumerate(lines)]
        raw = tomllib.loads("\n".join(changed))
        if "valid_fraction" not in raw["data"] and raw.get("save_models") == "best":
            raw["data"]["valid_fraction"] = 0.2
        config.parse(raw, name="a")


@pytest.mark.thorough
def test_the_starter_config_runs(tmp_path: pathlib.Path, quick_compilation: None) -> None:
    call("init", str(tmp_path))
    outcome = experiment.run(config.load(tmp_path / "experiment.toml", ["rounds=4", "seeds=1"]), directory=None)
    assert [str(each) for each in outcome.metrics["algorithm"].values] == ["fedavg", "incfl"]


LABELS = ("fedavg", "50% of a_b & [c] #1 {x} ~^\\", ":smile:", "[red]a[/red]")


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    return saved(tmp_path / "one", {label: [0.5 + place / 8, 0.75] for place, label in enumerate(LABELS)})


def test_export_latex(run: pathlib.Path) -> None:
    out = printed("export", str(run), "--latex")
    head, begin, top, titles, middle, first, second, *rest, bottom, end = out.splitlines()
    assert head == (
        "% At the last evaluation, after round 4: mean and standard deviation over 2 seeds. "
        r"Bold: the best mean. Needs \usepackage{booktabs}."
    )
    assert (begin, top, middle) == (r"\begin{tabular}{lr}", r"  \toprule", r"  \midrule")
    assert titles == r"  Algorithm & average \\"
    assert first == r"  fedavg & $0.625 \pm 0.177$ \\"
    assert second.startswith(
        r"  50\% of a\_b \& {[}c] \#1 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{} & $0.688"
    )
    assert len(rest) == 2
    assert rest[-1].endswith(r"& $\mathbf{0.812} \pm 0.088$ \\")
    assert (bottom, end) == (r"  \bottomrule", r"\end{tabular}")
    several = call("export", str(run), "--latex", "--metric", "opt_outs", "--metric", "average_accuracy")[1]
    assert r"Number of clients that opt out & Average accuracy" in several
    assert r"$\mathbf{6.2} \pm 1.8$ & $0.625 \pm 0.177$" in several  # fewer opt-outs are better


def test_export_csv(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code, out, _ = call("export", str(run), "--csv")
    found = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert {line["algorithm"] for line in found} == set(LABELS)
    assert {line["metric"] for line in found} == {"average_accuracy", "opt_outs"}
    assert found[0]["mean"] == "0.625"
    assert float(found[0]["std"]) == pytest.approx(0.125 * 2**0.5)
    path = tmp_path / "table.csv"
    assert call("export", str(run), "--csv", "--out", str(path))[1] == f"{path}\n"
    assert path.read_text() == out
    code, _, err = call("export", str(run), "--csv", "--metric", "average_acuracy")
    assert (code, "(did you mean 'average_accuracy'?)" in err) == (2, True)
    assert call("export", str(run), "--csv", "--out", str(tmp_path / "none" / "a.csv"))[0] == 2


def test_export_says_which_seeds_diverged(run: pathlib.Path) -> None:
    metrics, records = folders.load_results(run)
    rounds = np.where(metrics["algorithm"].values[:, None] == "fedavg", [[-1, 3]], [[-1, -1]])
    diverged = metrics.assign(diverged=(("algorithm", "seed"), rounds))
    folders.save_results(run, Results(diverged, records), (run / "config.toml").read_text())
    out = call("export", str(run), "--latex")[1]
    assert out.splitlines()[0].endswith(
        r"Daggers: diverged and frozen there: fedavg 1 of 2 seeds, round 3. Needs \usepackage{booktabs}."
    )
    assert r"  fedavg$^\dagger$ & " in out
    assert out.count("dagger$") == 1
    lines = list(csv.DictReader(io.StringIO(call("export", str(run), "--csv")[1])))
    assert {line["diverged"] for line in lines if line["algorithm"] == "fedavg"} == {"1 of 2 seeds, round 3"}
    assert {line["diverged"] for line in lines if line["algorithm"] != "fedavg"} == {""}


@pytest.fixture
def swept(tmp_path: pathlib.Path) -> pathlib.Path:
    """A sweep of two methods over two rates."""
    values = np.arange(16.0).reshape(2, 2, 2, 1, 2)[..., 0] / 16
    dimensions = ("algorithm", "local.learning_rate", "seed", "evaluated_round")
    metrics = xr.Dataset(
        {"average_accuracy": (dimensions, values), "diverged": (dimensions[:3], np.full((2, 2, 2), -1))},
        {
            "algorithm": ["fedavg", "incfl"],
            "local.learning_rate": [0.1, 0.2],
            "seed": [0, 1],
            "evaluated_round": [4],
        },
        {"grid": json.dumps({"local.learning_rate": "local.learning_rate"}), "metric": "average_accuracy"},
    )
    metrics["diverged"][1, 0, 1] = 3
    folder = tmp_path / "swept"
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG)
    folders.save_results(folder, Results(metrics, xr.Dataset()), CONFIG)
    return folder


@pytest.mark.in_turn
def test_export_of_a_sweep(swept: pathlib.Path) -> None:
    out = call("export", str(swept), "--csv")[1]
    lines = list(csv.DictReader(io.StringIO(out)))
    found = {(line["algorithm"], line["local.learning_rate"]): line for line in lines}
    assert list(found) == [("fedavg", "0.1"), ("incfl", "0.1"), ("fedavg", "0.2"), ("incfl", "0.2")]
    assert {line["metric"] for line in lines} == {"average_accuracy"}
    assert float(found["incfl", "0.1"]["mean"]) == pytest.approx((8 + 10) / 32)
    assert (found["incfl", "0.1"]["diverged"], found["incfl", "0.2"]["diverged"]) == ("1 of 2 seeds, round 3", "")
    assert call("export", str(swept), "--csv", "--metric", "average_accuracy")[1] == out
    code, _, err = call("export", str(swept), "--csv", "--metric", "loss")
    assert (code, "expected one of the metrics average_accuracy" in err) == (2, True)
    table = call("export", str(swept), "--latex")[1]
    assert r"$\pm$" in table
    assert "±" not in table
    assert "1 of 4 runs, round 3" in table
    table = call("export", str(swept), "--latex", "--metric", "average_accuracy")[1]
    assert "Best cells by Average accuracy, on test rows." in table
    assert r"fedavg (local.learning\_rate = 0.2) & $" in table
    assert r"incfl (local.learning\_rate = 0.2) & $\mathbf{" in table


@pytest.mark.in_turn
def test_export_pictures(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = printed("export", str(run), "--pdf")
    assert sorted(each.name for each in (run / "pictures").iterdir()) == [
        "average_accuracy.pdf",
        "average_accuracy.svg",
    ]
    assert out.splitlines() == [str(run / "pictures" / f"average_accuracy.{suffix}") for suffix in ("pdf", "svg")]
    assert (run / "pictures" / "average_accuracy.pdf").read_bytes().startswith(b"%PDF")
    call("export", str(run), "--pdf", "--out", str(tmp_path / "again"))
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (run / "pictures" / path.name).read_bytes()
    assert call("export", str(run), "--pdf", "--out", str(run / "config.toml"))[0] == 2


def plain(text: str) -> str:
    return re.sub(r"[\s│┃┏┓┗┛━┳┻┡┩╇─└┘┴├┤┼]+", " ", text)


@pytest.mark.in_turn
def test_compare(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = CONFIG.replace("learning_rate = 0.1", "learning_rate = 0.2").replace("steps = 2", "steps = 3")
    other = saved(tmp_path / "two", {"fedavg": [0.6, 0.95], ":smile:": [0.5, 0.5], "new": [0.5, 0.75]}, text)
    out = printed("compare", str(run), str(other))
    assert " one/fedavg 0.625 ± 0.177 " in plain(out)
    assert " two/fedavg 0.775 ± 0.247 +0.150 ± 0.071 " in plain(out)
    assert " two/:smile: 0.500 ± 0.000 -0.250 ± 0.000 " in plain(out)
    assert " two/new 0.625 ± 0.177 +0.000 ± 0.000 " in plain(out)
    assert " one/[red]a[/red] 0.812 ± 0.088 two/fedavg" in plain(out)
    assert (
        "The config of two differs from that of one:\n  local.learning_rate: 0.1 -> 0.2\n  local.steps: 2 -> 3\n" in out
    )
    found = json.loads(call("compare", str(run), str(other), "--json")[1])
    assert found["configs"] == {"two": {"local.learning_rate": ["0.1", "0.2"], "local.steps": ["2", "3"]}}
    (line,) = [e for e in found["metrics"] if (e["run"], e["algorithm"], e["metric"]) == ("two", "new", "opt_outs")]
    assert line["difference"] == {"mean": 0.0, "std": 0.0, "of": ["one", "fedavg"]}


@pytest.mark.in_turn
def test_compare_says_which_seeds_diverged(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = saved(tmp_path / "two", {"fedavg": [0.6, 0.95], "new": [0.5, 0.75]})
    assert "diverged" not in call("compare", str(run), str(other))[1]
    metrics, records = folders.load_results(other)
    metrics["diverged"] = (("algorithm", "seed"), np.array([[2, -1], [-1, -1]]))
    folders.save_results(other, Results(metrics, records), (other / "config.toml").read_text())
    out = plain(call("compare", str(run), str(other))[1])
    assert "two/fedavg 0.775 ± 0.247 1 of 2 seeds, round 2 +0.150 ± 0.071 " in out
    assert "two/new 0.625 ± 0.177 +0.000 ± 0.000 " in out
    lines = json.loads(call("compare", str(run), str(other), "--json")[1])["metrics"]
    marks = {(each["run"], each["algorithm"]): each["diverged"] for each in lines}
    assert {key for key, words in marks.items() if words} == {("two", "fedavg")}
    assert marks["two", "fedavg"] == "1 of 2 seeds, round 2"


def test_compare_other_seeds_and_equal_names(tmp_path: pathlib.Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = saved(tmp_path / "a" / "run", {"fedavg": [0.5, 0.7]})
    second = saved(tmp_path / "b" / "run", {"fedavg": [0.9, 0.9, 0.9]}, seeds=(4, 5, 6))
    out = printed("compare", str(first), str(second))
    assert "0.900 ± 0.000 +0.300 " in plain(out), "without a spread, since the seeds are different ones"
    assert f"{second} has the config of {first}." in out


def test_nothing_in_latex_is_a_command() -> None:
    assert escape("\\input{a}") == r"\textbackslash{}input\{a\}"
    assert escape("a >= 1 | b < 2") == r"a \textgreater{}= 1 \textbar{} b \textless{} 2"
    assert escape("plain words, 1.5") == "plain words, 1.5"
