"""The algorithms that ``fljax.compare`` is given as entries of a Setup, and the deviations that a command asks for.

Deviations are names of usual ones, or a TOML file of strategies with a table for each.
"""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np
import tomli_w

from fljax import algorithms as registered
from fljax import scenarios as wrapping
from fljax import training
from fljax.config.name_resolution import Offer, builder_arguments, checked_options
from fljax.contributions import Contribution, RoundMeasure
from fljax.contributions.estimators.in_rounds import as_round_measure
from fljax.core.names import about_algorithm, check_text, describe, name_of, resolve, shown, unknown
from fljax.core.sameness import code_of
from fljax.core.values import parameters_of, takes_anything
from fljax.engine import Plan, plan_of
from fljax.engine.programs.shapes import checksum_of_programs
from fljax.experiments.inputs.clustering import ByF1
from fljax.experiments.inputs.setup import AlgorithmSetup, Setup, describe_requirement
from fljax.games.strategic.playing import Messages, numbers_of, unread, usual_deviations
from fljax.protocol import Algorithm, Federation, Task
from fljax.protocol.messages import Report
from fljax.scenarios import Deviation, Strategy
from fljax.training import Local, RateSchedule

# Names of usual deviations, strategies and functions by name, or None for all usual ones.
Deviations = tuple[str, ...] | Mapping[str, Strategy | Deviation] | None

_ALL = Messages(Report._fields, True, True, True, True)


class PlayedDeviations(NamedTuple):
    """The deviations that an algorithm plays."""

    deviations: Mapping[str, Strategy | Deviation]  # by name; empty if it reads none of the requested ones
    left_out: Mapping[str, str]  # reasons for the others by name, as clauses about the algorithm


def deviations_of(text: str | None, *, imports: bool = True) -> Deviations:
    """What an option says: a file that ends in ``.toml``, or names (or import paths of functions) with commas."""
    if text is None:
        return None
    if text.lower().endswith(".toml"):
        return read_deviations(pathlib.Path(text), imports=imports)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    found = {name: resolve(name, usual_deviations(_ALL), "deviation", imports=imports) for name in names}
    return names if all(isinstance(lie, Strategy) for lie in found.values()) else found


def read_deviations(path: pathlib.Path, *, imports: bool = True) -> dict[str, Strategy | Deviation]:
    """The strategies of a file by name; a text is the import path of a function."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"expected {str(path)!r} to be readable, got: {error.strerror}") from None
    except ValueError as error:  # of TOML, or of UTF-8
        raise ValueError(f"expected {str(path)!r} to be a TOML file, got: {error}") from None
    strategies: dict[str, Strategy | Deviation] = {}
    for name, table in tables.items():
        if isinstance(table, str):
            strategies[name] = resolve(table, {}, "deviation", imports=imports)
            continue
        if not isinstance(table, dict):
            raise ValueError(f"expected a table of numbers for each deviation of {str(path)!r}, got {name} = {table!r}")
        checked = checked_options(name, Strategy, table, Offer(), "key")
        strategies[name] = Strategy(**builder_arguments(Strategy, checked))
        try:
            numbers_of(strategies[name])
        except (TypeError, ValueError):  # a list, which is for several clients or rounds
            raise ValueError(f"expected one number for each field of the deviation {name!r}, got {table}") from None
    if not strategies:
        raise ValueError(f"expected at least one deviation in {str(path)!r}, got none")
    return strategies


def chosen_of(asked: Deviations, messages: Messages) -> PlayedDeviations:
    """What is tried of an algorithm with these messages: of the deviations that are asked for those that it reads."""
    if asked is None:
        return PlayedDeviations(usual_deviations(messages), {})
    named = strategies_of(asked)
    left_out = unread(named, messages)
    return PlayedDeviations({name: strategy for name, strategy in named.items() if name not in left_out}, left_out)


def strategies_of(asked: tuple[str, ...] | Mapping[str, Strategy | Deviation]) -> Mapping[str, Strategy | Deviation]:
    """The strategies that are asked for by name."""
    if isinstance(asked, Mapping):
        return asked
    usual = usual_deviations(_ALL)
    return {name: usual[name] for name in asked}


def recorded_deviations(asked: Deviations) -> Any:
    """The deviations that are asked for, as values of JSON: names, or the numbers and code by name."""
    if not isinstance(asked, Mapping):
        return asked
    return {
        name: numbers_of(lie) if isinstance(lie, Strategy) else f"{name_of(lie)} {code_of(lie)}"
        for name, lie in asked.items()
    }


Builder = Callable[..., Algorithm]
# A name or a builder, with options and scenarios, or a value that runs as it is.
Entrant = str | Builder | tuple[Any, ...] | Plan | Algorithm | AlgorithmSetup
Algorithms = Sequence[Entrant] | Mapping[str, Entrant]

DOUBLE = ", double precision"  # of the JAX that traced a task
_FORMS = "a name, a builder, (name or builder, options), (name or builder, options, scenarios), a Plan or an Algorithm"
_SCENARIO_FORMS = "a scenario as a name, a wrapper or (name or wrapper, options)"
# Parameters of builders that an experiment gives; options cannot.
_GIVEN = ("task", "algorithm")


def entrants(algorithms: Algorithms, local: Local, contribution: Contribution) -> tuple[AlgorithmSetup, ...]:
    """The entries of a Setup. ``local`` and ``contribution`` are for entries whose options have none."""
    single = isinstance(algorithms, str | Algorithm | Plan | AlgorithmSetup) or callable(algorithms)
    if single or not isinstance(algorithms, Mapping | Sequence) or not algorithms:
        raise ValueError(f"expected a list of algorithms, or algorithms by label, got {describe(algorithms)}")
    if isinstance(algorithms, Mapping):
        labels = [str(label) for label in algorithms]
        if len(set(labels)) < len(labels):
            raise ValueError(f"expected different labels of algorithms, got {', '.join(map(repr, algorithms))}")
        return tuple(_entry(str(label), each, local, contribution) for label, each in algorithms.items())
    found: dict[str, AlgorithmSetup] = {}
    for each in algorithms:
        label = _label(each)
        if label in found:
            raise ValueError(
                f"expected a label for each algorithm, got two entries {label!r}; a mapping gives labels: "
                f"{{'{label}, first': ..., '{label}, second': ...}}"
            )
        found[label] = _entry(label, each, local, contribution)
    return tuple(found.values())


def _label(entrant: Entrant) -> str:
    """The label of an entry of a list: the name of its algorithm."""
    if isinstance(entrant, AlgorithmSetup):
        return entrant.label
    if isinstance(entrant, Algorithm):
        raise ValueError("expected a label for an Algorithm, which has no name, as in {'a label': algorithm}, got none")
    if isinstance(entrant, Plan):
        return name_of(getattr(entrant.build, "build", entrant.build))
    first: Any = next(iter(entrant)) if _is_pair(entrant) else entrant  # type: ignore[arg-type]
    return first if isinstance(first, str) else name_of(getattr(first, "build", first))


def _is_pair(entrant: Any) -> bool:
    return isinstance(entrant, tuple) and not hasattr(entrant, "_fields") and len(entrant) > 0


def _entry(label: str, entrant: Entrant, local: Local, contribution: Contribution) -> AlgorithmSetup:
    check_text("algorithms", [label])
    with about_algorithm(label):
        if isinstance(entrant, AlgorithmSetup):
            return entrant._replace(label=label)
        if isinstance(entrant, Plan | Algorithm):
            plan = plan_of(entrant)
            return AlgorithmSetup(label, plan.build, {}, (), local, contribution, None, plan)
        given: tuple[Any, ...] = tuple(entrant) if _is_pair(entrant) else (entrant,)  # type: ignore[arg-type]
        first, options, scenarios = (*given, {}, ())[:3] if len(given) == 1 else (*given, ())[:3]
        if len(given) > 3 or not isinstance(options, Mapping) or isinstance(scenarios, str | Mapping):
            raise ValueError(f"expected {_FORMS}, got {describe(entrant)}")
        build = _builder(first, registered.REGISTRY, "algorithm")
        options = dict(options)
        own, measure = options.pop("local", local), options.pop("contribution", contribution)
        measure = as_round_measure(measure) or measure
        pooled = options.pop("pooled", False)
        if not isinstance(pooled, bool):
            raise ValueError(f"expected pooled to be True or False, got {shown(pooled)}")
        start = options.pop("clustering") if isinstance(options.get("clustering"), ByF1) else None
        _check_options(build, options)
        wrappers = tuple(map(_scenario, scenarios))
        return AlgorithmSetup(label, build, options, wrappers, own, measure, start, pooled=pooled)


def _scenario(given: Any) -> tuple[Callable[..., Algorithm], Mapping[str, Any]]:
    first, options = given if _is_pair(given) and len(given) == 2 else (given, {})
    wrap = _builder(first, wrapping.REGISTRY, "scenario")
    if not isinstance(options, Mapping):
        raise ValueError(f"expected {_SCENARIO_FORMS}, got {describe(given)}")
    _check_options(wrap, options)
    return wrap, dict(options)


def _builder(given: Any, registry: Mapping[str, Any], kind: str) -> Callable[..., Algorithm]:
    found = resolve(given, registry, kind) if isinstance(given, str) else given
    build: Any = getattr(found, "build", found)
    if not callable(build):
        forms = _FORMS if kind == "algorithm" else _SCENARIO_FORMS
        raise ValueError(f"expected {forms}, got {describe(given)}")
    return cast(Callable[..., Algorithm], build)


def _check_options(build: Callable[..., Algorithm], options: Mapping[str, Any]) -> None:
    """Raises a ValueError if a builder has no parameter for an option."""
    names = [name for name in parameters_of(build) if name not in _GIVEN]
    for name in options:
        if name not in names and not takes_anything(build):
            raise ValueError(f"{unknown('option', str(name), names)} for {name_of(build)}")


def settings_text(settings: Mapping[str, Any]) -> str:
    """Nested settings as TOML: numbers, texts and lists as they are, other values in a few words."""
    return tomli_w.dumps({name: value for name, value in _plain(settings).items() if value is not None})


def describe_comparison(setup: Setup, local: Local) -> str:
    """How a comparison was made, as TOML, without what only Python has: data, model, functions."""
    about = {} if setup.execution.clients == "debug" else marks_of(setup.task, setup.federation)
    return settings_text(
        {
            "name": setup.name,
            "made_by": "fljax.compare",
            "rounds": setup.rounds,
            "seeds": list(setup.seeds),
            "evaluate_every": setup.evaluate_every,
            "clients_per_evaluation": setup.clients_per_evaluation,
            "clients_per_round": setup.clients_per_round,
            "non_finite": setup.non_finite,
            "precision": setup.execution.precision,
            "standalone": setup.standalone._asdict(),
            "opt_out_threshold": setup.opt_out_threshold,
            "extra_metrics": list(setup.extra_metrics) or None,
            "standalone_initial": setup.standalone_initial,
            "standalone_stop": setup.standalone_stop and setup.standalone_stop._asdict(),
            "requirement": describe_requirement(setup.requirement),
            "scores": [score.name for score in setup.scores] or None,
            "score_every": setup.score_every,
            "federation": repr(setup.federation),
            "task": about,
            **described(setup.algorithms, local),
        }
    )


def described(entries: Sequence[AlgorithmSetup], local: Local) -> dict[str, Any]:
    """Local training and algorithms, for ``settings_text``; an algorithm may have a ``local`` of its own."""
    return {"local": local._asdict(), "algorithms": [_describe_entrant(entry, local) for entry in entries]}


def marks_of(task: Task, federation: Federation) -> dict[str, Any]:
    """A checksum of how a task computes the loss of a row, and the JAX that traced it; empty if it cannot be traced."""
    key = jax.random.key(0)
    row = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype)),
        federation.examples,
    )

    def loss(model: Any, one: Any) -> Any:
        return task.loss(task.logits(model, training.prepare(task, one.x)), one.y)

    try:
        traced = jax.jit(loss).trace(jax.eval_shape(task.init, key), row)
        double = DOUBLE if jax.dtypes.canonicalize_dtype(float) == np.float64 else ""
        told = f"{jax.__version__}, {jax.default_backend()}{double}"
        return {"checksum": checksum_of_programs([traced]), "jax": told}
    except Exception:  # a user's function may raise anything
        return {}


def _describe_entrant(entry: AlgorithmSetup, local: Local) -> dict[str, Any]:
    build = getattr(entry.build, "build", entry.build)
    found: dict[str, Any] = {"label": entry.label, "name": name_of(build), **entry.options}
    found |= {} if entry.local == local else {"local": entry.local._asdict()}
    found |= {"contribution": entry.contribution._asdict()} if isinstance(entry.contribution, RoundMeasure) else {}
    found |= {"pooled": True} if entry.pooled else {}
    wrappers = [{"name": name_of(wrap), **options} for wrap, options in entry.scenarios]
    return found | ({"scenarios": wrappers} if wrappers else {})


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, RateSchedule):
        return repr(value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields") and len(value) <= 100:
        return [_plain(each) for each in value if each is not None]
    return describe(value)
