"""Mutated configs through the real command line: exit code 0 or 2 and one sentence, before anything is computed."""

from __future__ import annotations

import contextlib
import copy
import datetime
import inspect
import io
import itertools
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fljax import algorithms, cli, data, models, scenarios
from fljax.config.reading import read
from fljax.experiments import run, sweep
from fljax.experiments.inputs.setup import resolve_setup
from tests.toys.configs import config_text

# beartype draws random numbers, which hypothesis refuses inside strategies.
pytestmark = [pytest.mark.thorough, pytest.mark.unchecked]

ROOT = pathlib.Path(__file__).parent.parents[1]
NAMES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("configs/**/*.toml"))
SHIPPED = {name: read(ROOT / name) for name in NAMES}
SETTINGS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

TINY = config_text('dataset = "digits"\npartition = "iid"\nclients = 3\nunseen = 1', steps=1, standalone=1)


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Calls ``fljax`` in this process, in an empty folder, and returns exit code and stderr."""
    folder = tmp_path_factory.mktemp("fuzz")
    number = itertools.count()

    def call(text: str, *arguments: str, name: str = "run") -> tuple[int, str]:
        (folder / "fuzzed.toml").write_text(text, encoding="utf-8")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
            cli.main([name, "fuzzed.toml", "--quiet", "--out", f"out-{next(number)}", *arguments])
        assert isinstance(stopped.value.code, int)
        return stopped.value.code, err.getvalue()

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("FLJAX_TRACEBACK", raising=False)
        patch.delenv("FLJAX_NO_IMPORT", raising=False)
        yield call


@pytest.fixture
def checked(command, monkeypatch):
    """As ``command``, but an experiment ends where its first computation would begin."""

    def only_checked(config, **_):
        run.check_setup(resolve_setup(config), rehearsed=False)
        raise SystemExit(0)

    def done(grid, **_):
        raise SystemExit(0)

    monkeypatch.setattr(run, "run", only_checked)
    monkeypatch.setattr(sweep, "run", done)
    return command


def assert_clean(code: int, err: str) -> None:
    assert code in (0, 2), err
    assert "Traceback" not in err
    if code == 2:
        assert err.endswith("\n")
        lines = err[:-1].split("\n")
        assert all(line.startswith("fljax: ") for line in lines), err
        assert len(set(lines)) == len(lines)
        assert all(line.isprintable() for line in lines)


INTEGERS = [0, 1, -1, 2, 7, 1000, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, -(2**63), 10**30]
FLOATS = [0.0, -0.0, 0.5, 1.0, 1.7, -1.0, 1e-300, 1e38, 1e300, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", " ", "x", "auto", "all", "fedavg", "digits", "../x", "a.b", "[b]x[/b] $a$ :smile: [/]", "\x1b[31m", "a\nb"]
TEXTS += ["\0", "\u202e", "\u2028", "é" * 120, "no_such_module:x", "fljax.algorithms:nothing", ":", "1", "nan", "_"]
OTHERS = [True, False, [], {}, [[]], [1], [0, 0], [-1], [0.5], ["x"], [True], {"x": 1}, {"name": "x"}, [{}]]
OTHERS += [{"name": "fedavg"}, [{"name": "fedavg"}], {"a": {"b": {"c": 1}}}, [[[[[1]]]]], datetime.date(2026, 1, 1)]
OTHERS += [datetime.time(1, 2), datetime.datetime(2026, 1, 1), [datetime.date(2026, 1, 1)]]
VALUES = st.one_of(
    st.sampled_from(INTEGERS),
    st.sampled_from(FLOATS),
    st.sampled_from(TEXTS),
    st.sampled_from(OTHERS),
    st.integers(-3, 40),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.integers(1, 60).map(lambda depth: [[]] if depth == 1 else _nested(depth)),
)
# Numbers with which a run stays tiny.
SMALL = st.one_of(
    st.integers(-1, 5), st.sampled_from(FLOATS), st.sampled_from(TEXTS), st.sampled_from(OTHERS), st.text(max_size=3)
).filter(lambda value: not (isinstance(value, str) and any("\ud800" <= each <= "\udfff" for each in value)))


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside nested tables and lists."""
    found = [path] if path else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        found += _places(each, (*path, key))
    return found


def _parameters(registry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Parameters of every builder and their defaults by its name, those included that a config may not set."""
    builders = {name: getattr(entry, "build", entry) for name, entry in registry.items()}
    signatures = {name: inspect.signature(build).parameters for name, build in builders.items()}
    return {name: {each: found[each].default for each in found} for name, found in signatures.items()}


ALGORITHMS, SCENARIOS = _parameters(algorithms.REGISTRY), _parameters(scenarios.REGISTRY)
MODELS, PARTITIONS = _parameters(models.MODELS), _parameters(data.PARTITIONERS)
DATASETS = {"digits": {}, **{name: _parameters(data.SOURCES)[name] for name in ("synthetic", "blobs", "two_means")}}


def _mutate(draw: Any, raw: dict[str, Any], values: st.SearchStrategy[Any]) -> None:
    """One mutation in place: of what a builder is given, of a number, or of anything."""
    kind = draw(
        st.sampled_from([*["algorithm", "scenario", "model", "partition"] * 2, "dataset", "number", "number", "any"])
    )
    places = _places(raw)
    if kind in ("model", "partition", "dataset") and isinstance(raw.get("data"), dict):
        known = {"model": MODELS, "partition": PARTITIONS, "dataset": DATASETS}[kind]
        name = draw(st.sampled_from(list(known)))
        options = _some(draw, known[name], values)
        if kind == "model":
            raw["model"] = {"name": name, **options}
        else:
            raw["data"] |= {kind: name, f"{kind}_options": options}
    elif kind in ("algorithm", "scenario"):
        known = ALGORITHMS if kind == "algorithm" else SCENARIOS
        name = draw(st.sampled_from(list(known)))
        entry = {"name": name, **_some(draw, known[name], values)}
        entries = raw.setdefault(f"{kind}s", [])
        if isinstance(entries, list):
            entries[:] = [*(each for each in entries[:1] if kind == "algorithm"), {"label": "fuzzed", **entry}][-2:]
            if kind == "scenario":
                del entries[0]["label"]
    elif kind == "number":
        numbers = [path for path in places if type(_at(raw, path)) in (int, float)]
        if numbers:
            *above, key = draw(st.sampled_from(numbers))
            of = float if isinstance(_at(raw, (*above, key)), float) else int
            _at(raw, above)[key] = _drawn(draw, values.filter(lambda value: type(value) is of))
    elif places:
        _mutate_any(draw, raw, draw(st.sampled_from(places)), values)


def _some(draw: Any, parameters: Mapping[str, Any], values: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Values for up to two of the parameters, and for those without a default; mostly of the default's type."""
    chosen = draw(st.lists(st.sampled_from(sorted(parameters)), max_size=2, unique=True)) if parameters else []
    found = {}
    for name in dict.fromkeys([*chosen, *(each for each in ("rate", "q", "mu") if each in parameters)]):
        of = type(parameters[name])
        of = float if parameters[name] is inspect.Parameter.empty else list if of is tuple else of
        typed = of in (int, float, str, bool, list) and draw(st.integers(0, 3)) > 0
        found[name] = _drawn(draw, values.filter(lambda value, of=of: type(value) is of) if typed else values)
    return found


def _at(raw: Any, path: Sequence[Any]) -> Any:
    for key in path:
        raw = raw[key]
    return raw


def _mutate_any(draw: Any, raw: dict[str, Any], path: Sequence[Any], values: st.SearchStrategy[Any]) -> None:
    *above, key = path
    holder = _at(raw, above)
    kind = draw(st.sampled_from(["replace", "replace", "replace", "delete", "rename", "add", "copy", "wrap", "table"]))
    if kind == "delete":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder[draw(st.sampled_from([f"{key}x", "x", "", "label", "name", "options", "a.b"]))] = holder.pop(key)
    elif kind == "add" and isinstance(holder, dict):
        added = draw(st.sampled_from(["label", "seed", "x", "threshold", "options", "scenarios"]))
        holder[added] = _drawn(draw, values)
    elif kind == "copy" and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    elif kind == "wrap":
        holder[key] = [holder[key]]
    elif kind == "table":
        holder[key] = {"x": holder[key]}
    else:
        holder[key] = _drawn(draw, values)


def _drawn(draw: Any, values: st.SearchStrategy[Any]) -> Any:
    """A value of one's own: a later mutation may change it."""
    return copy.deepcopy(draw(values))


def _small(raw: dict[str, Any], keep: int) -> dict[str, Any]:
    """A shipped config on the digits, with one or two of its algorithms."""
    raw = copy.deepcopy(raw)
    raw["data"] |= {"dataset": "digits", "clients": min(raw["data"]["clients"], 20)}
    raw["data"]["unseen"] = min(raw["data"].get("unseen", 0), 5)
    raw["data"].pop("dataset_options", None)
    raw["participation"] = {"clients_per_round": 20}
    raw["model"] = {"name": "mlp", "hidden": [8, 8, 8], "dropout": 0.1}
    raw["seeds"], raw["rounds"] = [0], 3
    start = keep % len(raw["algorithms"])
    raw["algorithms"] = raw["algorithms"][start : start + 2]
    raw.pop("published", None)
    return raw


@st.composite
def mutated(draw: Any) -> tuple[str, list[str], str]:
    """(text of a config, further arguments, command)."""
    raw = SHIPPED[draw(st.sampled_from(NAMES))]
    raw = _small(raw, draw(st.integers(0, 20)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        _mutate(draw, raw, VALUES)
    text = tomli_w.dumps(raw)
    if draw(st.integers(0, 19)) == 0:  # the text itself
        start, length = draw(st.integers(0, len(text))), draw(st.integers(0, 40))
        piece = text[start : start + length]
        text = (
            text[:start]
            + draw(st.sampled_from(["", "[", '"', "=", "\n", "\ufeff", piece * 2]))
            + text[start + length :]
        )
    arguments = []
    if draw(st.integers(0, 4)) == 0:
        path = ".".join(map(str, draw(st.sampled_from(_places(raw) or [("rounds",)]))))
        arguments = ["--set", f"{path}={draw(st.one_of(VALUES.map(str), st.text(max_size=5)))}"]
    name = "sweep" if "sweep" in raw and draw(st.booleans()) else "run"
    if name == "sweep" and draw(st.booleans()):
        arguments += ["--grid", f"local.learning_rate={draw(st.one_of(VALUES.map(str), st.text(max_size=5)))}"]
    return text, arguments, name


def _case(checked: Any, case: tuple[str, list[str], str]) -> None:
    text, arguments, name = case
    assert_clean(*checked(text, *arguments, name=name))


@settings(max_examples=300, derandomize=True, **SETTINGS)
@given(mutated())
def test_mutated_configs_are_checked(checked, case):
    _case(checked, case)


@pytest.mark.slow
@settings(max_examples=5000, **SETTINGS)
@given(mutated())
def test_many_mutated_configs_are_checked(checked, case):
    _case(checked, case)


@st.composite
def small_runs(draw: Any) -> tuple[str, list[str]]:
    raw = tomllib.loads(TINY)
    _mutate(draw, raw, SMALL)
    return tomli_w.dumps(raw), draw(st.sampled_from([[], ["--json"]]))


@settings(max_examples=20, derandomize=True, **SETTINGS)
@given(small_runs())
def test_mutated_configs_run(quick_compilation, command, case):
    text, arguments = case
    code, err = command(text, "--no-report", *arguments)
    if "diverged" not in err:  # the only other reason why a run may fail
        assert_clean(code, err)
