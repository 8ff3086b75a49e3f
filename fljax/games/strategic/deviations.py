"""Deviations that are tried: which ones make sense for an algorithm, and their numbers for every client and profile.

What an algorithm reads is seen from its messages, so that users' algorithms need not declare anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax.core import trees
from fljax.core.sameness.codes import code_of
from fljax.core.values import as_number
from fljax.engine import Plan, as_declared
from fljax.engine.programs.program import partition_plan
from fljax.engine.programs.shapes import first_run
from fljax.engine.rounds.federations import as_vectors
from fljax.engine.rounds.round import train_one
from fljax.engine.rounds.states import initial_state
from fljax.games.strategic.utilities import tokens_of
from fljax.protocol import Algorithm, Federation, Seat
from fljax.protocol.messages import Report, changed_reports
from fljax.scenarios import ByReport, Deviation, Strategy
from fljax.scenarios.strategic import HONEST, received_model, strategic, updates_of, with_strategy

HONESTY = "honest"
# Of an update, and of a reported value.
_FACTORS = (0.5, 2.0, 4.0)
_OF_REPORTS = (0.0, 0.5, 2.0, 10.0)
_SHIFTED = ("contribution", "bid")  # of a client that has nothing, a multiple is nothing
_OF_UPDATES = ("own", "stale", "echo", "noise")
_NO_MODEL = "whose clients do not receive one model of the shape of their update"


class Played(NamedTuple):
    """A builder of an algorithm in which clients are strategic; hashable, so that equal ones share programs."""

    build: Any  # a Callable, which a NamedTuple would show as a method
    functions: tuple[Deviation, ...] = ()
    codes: tuple[str, ...] = ()  # of the functions, by which saved runs of older bodies are told from those of these

    def __call__(
        self, played: Strategy, chosen: Float[np.ndarray, " N"] | Float[Array, " N"] | None = None, **arguments: Any
    ) -> Algorithm:
        return with_strategy(self.build(**arguments), played, self.functions, chosen)


class Messages(NamedTuple):
    """The messages of an algorithm's clients."""

    reports: tuple[str, ...]  # the values that it asks for, in the order of ``Report``
    update: bool  # whether clients send one
    one_model: bool  # whether clients receive one model of the shape of their update
    classes: bool  # whether labels can be flipped
    tokens: bool = False  # whether the server keeps tokens of clients
    own_models: bool = False  # whether clients use models that they keep: they train also if they send nothing


def messages_of(plan: Plan, federation: Federation) -> Messages:
    """The messages of clients in a round, by abstract evaluation: nothing is computed."""
    spec, inputs = partition_plan(plan, federation)
    seen: list[Messages] = []

    def begin(traced: list[Any], by_seed: Any, data: Federation) -> tuple[()]:
        zero, data = jnp.zeros((), jnp.int32), as_vectors(data)
        algorithm = spec.algorithm(traced, by_seed)
        state = initial_state(algorithm, data, zero)
        client, kept = trees.take(data.clients, 0), trees.take(state.clients, 0)
        up, _ = train_one(algorithm, data, zero, zero, state.server, client, zero, kept)
        down = algorithm.down(state.server, Seat(zero, client.id, zero))
        updates = updates_of(up)
        one_model = len(updates) == 1 and received_model(algorithm, down, updates[0]) is not None
        classes, tokens = algorithm.task.classes is not None, tokens_of(state.server) is not None
        own = algorithm.personal is not None and bool(jax.tree.leaves(kept))
        seen.append(Messages(_reported((state.ballots, up)), bool(updates), one_model, classes, tokens, own))
        return ()

    jax.eval_shape(begin, *first_run(spec, inputs))
    return seen[-1]


def _reported(messages: Any) -> tuple[str, ...]:
    names: set[str] = set()

    def note(report: Report) -> Report:
        names.update(name for name, value in report._asdict().items() if value is not None)
        return report

    changed_reports(messages, note)
    return tuple(name for name in Report._fields if name in names)


def usual_deviations(messages: Messages) -> dict[str, Strategy]:
    """The default deviations by name, in what the algorithm reads.

    Efforts 0 (one row) and 1/2; free riders that send zero, the last change of the model, and the latter with noise;
    the update times -1, 1/2, 2 and 4; every reported value times 0, 1/2, 2 and 10, and contributions and bids plus 1.
    """
    tried = {"no effort": Strategy(effort=0.0), "half effort": Strategy(effort=0.5)}
    if messages.update:
        tried["zero rider"] = Strategy(own=0.0)
        if messages.one_model:
            tried["delta rider"] = Strategy(own=0.0, echo=1.0)
            tried["disguised rider"] = Strategy(own=0.0, echo=1.0, noise=1.0, noise_decay=1.0)
        tried |= {f"update times {factor:g}": Strategy(own=factor) for factor in (-1.0, *_FACTORS)}
    for name in messages.reports:
        for factor in _OF_REPORTS:
            tried[f"{name} times {factor:g}"] = Strategy(factor=ByReport(**{name: factor}))
        if name in _SHIFTED:
            tried[f"{name} plus 1"] = Strategy(shift=ByReport(**{name: 1.0}))
    return tried


def functions_of(deviations: Mapping[str, Strategy | Deviation]) -> tuple[Deviation, ...]:
    """The deviations that are functions."""
    return tuple(lie for lie in deviations.values() if not isinstance(lie, Strategy))


def places_of(deviations: Mapping[str, Strategy | Deviation]) -> Float[np.ndarray, " strategy"]:
    """The place of each strategy's function, from 1; 0: it has none. The honest strategy is the first."""
    has = np.array([0, *(not isinstance(lie, Strategy) for lie in deviations.values())])
    return (np.cumsum(has) * has).astype(np.float32)


def played_by(plan: Plan, deviations: Mapping[str, Strategy | Deviation], first: Mapping[str, Any]) -> Plan:
    """The plan in which clients are strategic, with the arguments ``first`` of ``Played``."""
    functions = functions_of(deviations)
    build = Played(plan.build, functions, tuple(map(code_of, functions)))
    return Plan(build, {**as_declared(plan.build, plan.arguments), **first}, plan.by_seed)


def rehearse_functions(deviations: Mapping[str, Strategy | Deviation], plan: Plan, federation: Federation) -> None:
    """Raises a ValueError for a function that gives a message of another form; nothing is computed."""
    if functions_of(deviations):
        nobody = jnp.zeros(federation.clients.id.shape[-1])
        messages_of(played_by(plan, deviations, {"played": Strategy(), "chosen": nobody}), federation)


def check_deviations(deviations: Mapping[str, Strategy | Deviation], messages: Messages, algorithm: Algorithm) -> None:
    """Raises a ValueError unless each deviation is numbers of one client, of fields that the algorithm reads."""
    check_numbers(deviations, algorithm)
    for name, reason in unread(deviations, messages).items():
        raise ValueError(f"expected deviations in what the algorithm reads, got {name!r} of one {reason}")


def check_numbers(deviations: Mapping[str, Strategy | Deviation], algorithm: Algorithm) -> None:
    """Raises a ValueError unless each deviation is numbers of one client that are in range, and not all honest."""
    if not deviations:
        raise ValueError("expected at least one deviation, got none")
    for name, strategy in deviations.items():
        if name == HONESTY or not (isinstance(strategy, Strategy) or callable(strategy)):
            raise ValueError(
                f"expected a fljax.scenarios.Strategy or a function for each deviation, by names other than "
                f"{HONESTY!r}, got {name!r} of type {type(strategy).__name__}"
            )
        if not isinstance(strategy, Strategy):
            continue
        for field, value in _fields(strategy).items():
            if as_number(value) is None:
                raise ValueError(f"expected one number for {field} of the deviation {name!r}, got {value!r}")
        strategic(algorithm, strategy=strategy)  # refuses numbers out of their range
        if not _differing(strategy) - {"noise_decay"}:
            raise ValueError(f"expected deviations from honest behaviour, got {name!r}, which is honest")


def unread(deviations: Mapping[str, Strategy | Deviation], messages: Messages) -> dict[str, str]:
    """Why some deviations would certify nothing, by name: clauses such as ``"which never reads size"``."""
    numbers = {name: strategy for name, strategy in deviations.items() if isinstance(strategy, Strategy)}
    reasons = {name: _reason(strategy, messages) for name, strategy in numbers.items()}
    left_out = {name: reason for name, reason in reasons.items() if reason}
    rest = {name: numbers_of(strategy).keys() for name, strategy in deviations.items() if name not in left_out}
    # All deviations are runs of one program, whose fields are those of all of them.
    if not messages.one_model and {"noise", "own"} <= {field for fields in rest.values() for field in fields}:
        left_out |= {
            name: f"{_NO_MODEL}, as noise beside own needs" for name, fields in rest.items() if "noise" in fields
        }
    return left_out


def _reason(strategy: Strategy, messages: Messages) -> str:
    """Why the deviation changes nothing that the algorithm reads; empty: it does."""
    for field in sorted(_differing(strategy)):
        kind, _, report = field.partition(".")
        if report and report not in messages.reports:
            asks = f"it asks for {', '.join(messages.reports) or 'no report'}"
            return f"which never reads {report} ({asks})"
        if kind in _OF_UPDATES and not messages.update:
            return "which never reads an update (clients send none)"
        if kind == "flip" and not messages.classes:
            return "which never reads labels of classes (the task has none)"
    fields = numbers_of(strategy).keys()
    return _NO_MODEL if {"stale", "echo"} & fields and not messages.one_model else ""


def _differing(strategy: Strategy) -> set[str]:
    """The fields that are not honest, by dotted names."""
    honest = numbers_of(HONEST)
    return {field for field, value in numbers_of(strategy).items() if value != honest[field]}


def _fields(strategy: Strategy) -> dict[str, Any]:
    """Every field that is not None, those of reports by dotted names such as ``factor.size``."""
    rest = {name: value for name, value in strategy._asdict().items() if not isinstance(value, ByReport)}
    for kind in ("factor", "shift"):
        rest |= {f"{kind}.{name}": value for name, value in getattr(strategy, kind)._asdict().items()}
    return {name: value for name, value in rest.items() if value is not None}


def numbers_of(strategy: Strategy | Deviation) -> dict[str, float]:
    """The numbers of a strategy of one client by dotted names, without fields that are None; a function has none."""
    if not isinstance(strategy, Strategy):
        return {}
    return {name: float(value) for name, value in _fields(strategy).items()}


def strategies_played(
    deviations: Mapping[str, Strategy | Deviation], choices: Int[np.ndarray, "profile client"]
) -> Strategy:
    """The strategies ``[P, N]`` of all profiles, with fields that some deviation has; choice 0 is honest."""
    honest, numbers = numbers_of(HONEST), [numbers_of(strategy) for strategy in deviations.values()]
    fields = [field for field in honest if any(field in strategy for strategy in numbers)]
    rows: dict[str, Float[np.ndarray, "profile client"]] = {}
    for field in fields:
        values = np.array([honest[field], *(strategy.get(field, honest[field]) for strategy in numbers)], np.float32)
        rows[field] = values[choices]

    def by_report(kind: str) -> ByReport:
        return ByReport(**{field.partition(".")[2]: rows[field] for field in fields if field.startswith(f"{kind}.")})

    rest: dict[str, Any] = {field: rows[field] for field in fields if "." not in field}
    return Strategy(factor=by_report("factor"), shift=by_report("shift"), **rest)
