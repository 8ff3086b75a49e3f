"""Profiles of strategies, played: what every client gets in each, as runs of one compiled program, and outside.

Deviations that are tried make sense for the algorithm. What it reads is seen from its messages, so that users'
algorithms need not declare anything.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax import algorithms
from fljax.contributions.solutions import LARGEST, Numbers, members_of
from fljax.core import trees, values
from fljax.core.names import describe, plain, unknown
from fljax.core.sameness import code_of
from fljax.core.values import as_number, is_whole
from fljax.engine import Over, Plan, RunsDone, as_declared, plan_of, runs
from fljax.engine.checkpoints import Checkpoint, Stopped
from fljax.engine.programs.program import partition_plan
from fljax.engine.programs.shapes import first_run
from fljax.engine.rounds.round import train_one
from fljax.engine.rounds.states import Seeds, as_vectors, initial_state, seeds_of
from fljax.engine.whole_runs.program import by_themselves
from fljax.engine.whole_runs.running import local_of, varied_arguments
from fljax.games.strategic.gains import PayoffTable, as_precise_as
from fljax.games.strategic.utilities import (
    Utility,
    UtilityFunction,
    check_utility,
    earnings_of,
    efforts_of,
    rounds_trained,
    steps_of_round,
    tokens_of,
    utilities_of,
    utilities_of_runs,
)
from fljax.games.values import algorithm_of
from fljax.protocol import Algorithm, Federation, Seat
from fljax.protocol.messages import Report, changed_reports
from fljax.results import Reference
from fljax.scenarios import ByReport, Deviation, Strategy
from fljax.scenarios.strategic import HONEST, received_model, strategic, updates_of, with_strategy
from fljax.training import Local

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
        if not differing(numbers_of(strategy)).keys() - {"noise_decay"}:
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
    for field in sorted(differing(numbers_of(strategy))):
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


def differing(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers by dotted name that are not honest."""
    honest = numbers_of(HONEST)
    return {field: value for field, value in numbers.items() if value != honest[field]}


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
    return strategy_of(rows)


def strategy_of(numbers: Mapping[str, Any]) -> Strategy:
    """The strategy of numbers by dotted name, the inverse of ``numbers_of``."""

    def by_report(kind: str) -> ByReport:
        parts = {field.partition(".")[2]: value for field, value in numbers.items() if field.startswith(f"{kind}.")}
        return ByReport(**parts)

    rest = {field: value for field, value in numbers.items() if "." not in field}
    return Strategy(**rest, factor=by_report("factor"), shift=by_report("shift"))


Shape = Literal["unilateral", "pairs", "join", "symmetric", "full"]
_SHAPES = ("unilateral", "pairs", "join", "symmetric", "full")
# Standalone models, trained here or a Reference; the mechanism with one member; numbers; None: not known.
Outside = Literal["standalone", "mechanism"] | Reference | Numbers | bool | None
_OUTSIDE = ("standalone", "mechanism")
JOINING = ("joins", "stays away")


@overload
def payoffs(
    plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    deviations: Mapping[str, Strategy | Deviation] | None = None,
    shape: Shape | Int[np.ndarray, "profile client"] = "unilateral",
    deviators: Sequence[int] | None = None,
    utility: Utility | UtilityFunction | None = None,
    outside: Outside = "standalone",
    standalone: Local | None = None,
    over: None = None,
    max_runs: int = 4096,
    **of_runs: Any,
) -> PayoffTable: ...
@overload
def payoffs(
    plan: Plan, federation: Federation, *, rounds: int, over: Over, **settings: Any
) -> tuple[PayoffTable, ...]: ...
def payoffs(
    plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    deviations: Mapping[str, Strategy | Deviation] | None = None,
    shape: Shape | Int[np.ndarray, "profile client"] = "unilateral",
    deviators: Sequence[int] | None = None,
    utility: Utility | UtilityFunction | None = None,
    outside: Outside = "standalone",
    standalone: Local | None = None,
    over: Over | None = None,
    max_runs: int = 4096,
    **of_runs: Any,
) -> PayoffTable | tuple[PayoffTable, ...]:
    """What every client gets in each profile of strategies: ``u_i(a_1, ..., a_N)`` by seed, profile and client.

    ==============  ====================================================  =========================
    shape           profiles of N clients and K strategies                number
    ==============  ====================================================  =========================
    unilateral      everybody is honest, or everybody but one client      1 + N (K - 1)
    pairs           everybody is honest, or everybody but two clients,    1 + N (N - 1) (K - 1) / 2
                    who play the same strategy
    join            every set of clients that join                        2^N
    symmetric       how many clients play each strategy; the first ids    C(N + K - 1, K - 1)
                    play the first strategies
    full            every choice of every client                          K^N
    ==============  ====================================================  =========================

    Args:
      plan: an ``Algorithm``, or a ``Plan`` whose floats change without recompiling.
      federation: of N clients, shared by all seeds or one per seed (``fljax.data.stack``).
      rounds: of every run.
      seeds: integers that key all randomness of a run; 3 means the seeds 0, 1 and 2.
      deviations: strategies of one client by name, each field one number: ``{"double": Strategy(own=2.0)}``; or
        functions ``(message, knowledge) -> message`` at the top of a module, traced, whose result replaces the honest
        Ballot or Up of the client (``fljax.scenarios.Knowledge``). None: ``usual_deviations`` in what the algorithm
        reads. "join" takes none.
      shape: which profiles are played; or the place of each client's strategy in them, 0 being honest, with the profile
        in which all are.
      deviators: ids of the clients that deviate, for "unilateral"; None: each in turn.
      utility: the payoff of a client: a ``Utility``, or a function ``(algorithm, state, scores) -> [N]`` at the top of
        a module, traced. None: the accuracy on its own test rows, or minus the loss for tasks without a score.
      outside: the payoff of a client that does not join: "standalone" by a model that it trains alone, in one more run;
        "mechanism" by the mechanism with only this member, without tokens, in N more runs; a ``fljax.Reference``; or
        numbers, ``[N]`` or ``[seeds, N]``. None: it is not known; "join" plays "standalone" then. Steps outside cost as
        much as steps in the mechanism, unless numbers are given.
      standalone: how clients train alone; None: by the plan's ``local``, in as many rounds. A ``Reference`` has its own
        steps.
      over: candidate mechanisms: ``Over`` with ``arguments`` alone, a row for each. Every profile is played under each
        with every seed, in one program. They share what is outside, which cannot be "mechanism" then.
      max_runs: more runs are refused.
      **of_runs: further arguments of ``fljax.runs``, as for ``coalitions``. With one ``block`` for all calls, these
        share their program.

    Returns:
      ``PayoffTable``, with NaN for a run that has diverged, and for a loss that is infinite. In a profile of "join" a
      client that stays away gets the outside payoff. A client pays for the local steps that it computes: a free rider
      sends nothing of its own training and pays nothing, unless it uses its own model (Ditto). With ``over`` a tuple of
      tables, in which also the payoffs of honest clients may be NaN.

    Raises:
      ValueError: if a deviation changes nothing that the algorithm reads, or is honest; if there are more runs
        than ``max_runs``; if the utility of an honest client is not finite; or as ``fljax.runs``.

    Source: Balcan, Sandholm and Vitercik, "Estimating approximate incentive compatibility" (EC 2019), for gains from
    samples of deviations; Areyan Viqueira et al., "Learning simulation-based games from data" (2019), for payoffs of
    simulated games.
    """
    (chosen, own, mechanisms), numbers = mechanisms_of(plan, over), seeds_of(seeds)
    joining, clients = isinstance(shape, str) and shape == "join", federation.clients.id.shape[-1]
    game = checked_plan(chosen, federation, deviations, utility, joining=joining)
    if joining and (outside is None or outside is False):
        outside = "standalone"
    known = checked_outside(outside, clients, len(numbers), game.utility)
    if over is not None:
        check_shared(known, standalone, own)
    further, strategies = runs_outside(known, clients), len(game.deviations or ()) + 1
    check_profiles(shape, clients, strategies, deviators, further, len(numbers), max_runs, mechanisms)
    choices = profiles(shape, clients, strategies, deviators)
    before = len(numbers) * further
    stages = Stages(of_runs, len(numbers) * mechanisms * len(choices) + before)
    same: dict[str, Any] = {"rounds": rounds, "seeds": numbers}
    with stages.of("outside", 0) as first:
        options = outside_options(known, standalone, chosen, federation, game.utility, **same, **first)
    with stages.of("", before) as second:
        tables = tables_of(game, federation, choices, over, options, max_runs=max_runs, **same, **second)
    tables = tuple(table._replace(outside_is=kind_of(known)) for table in tables)
    return tables[0] if over is None else tables


class CheckedPlan(NamedTuple):
    """A plan and deviations that make sense for it; None: clients join or stay away, and are honest."""

    plan: Plan
    messages: Messages
    deviations: Mapping[str, Strategy | Deviation] | None
    utility: Utility | UtilityFunction


def checked_plan(
    plan: Plan,
    federation: Federation,
    deviations: Mapping[str, Strategy | Deviation] | None,
    utility: Utility | UtilityFunction | None,
    *,
    joining: bool = False,
    beside: bool = False,
) -> CheckedPlan:
    """Checks a plan, for ``tables_of``. One ``beside`` another lacks what it never reads."""
    values.check_arguments(plan.build, plan.arguments, plan.by_seed)
    asked: Utility | UtilityFunction = Utility() if utility is None else utility
    algorithm = algorithm_of(plan)
    check_utility(asked, algorithm, federation)
    messages = messages_of(plan, federation)
    if isinstance(asked, Utility) and beside and not messages.tokens:
        asked = asked._replace(price=0.0, budget=None)
    if isinstance(asked, Utility) and asked.price and not messages.tokens:
        raise ValueError("expected an algorithm whose server keeps tokens for a price of tokens, got one without")
    if joining:
        if deviations is not None:
            raise ValueError('expected no deviations for the shape "join", whose clients are honest')
        return CheckedPlan(plan, messages, None, asked)
    tried = usual_deviations(messages) if deviations is None else deviations
    if beside:
        left_out = unread(tried, messages)
        tried = {name: lie for name, lie in tried.items() if name not in left_out}
    if tried or not beside:
        check_deviations(tried, messages, algorithm)
    if functions_of(tried):  # whose results may have another form than messages
        nobody = jnp.zeros(federation.clients.id.shape[-1])
        messages_of(played_by(plan, tried, {"played": Strategy(), "chosen": nobody}), federation)
    return CheckedPlan(plan, messages, tried, asked)


def tables_of(
    game: CheckedPlan,
    federation: Federation,
    choices: Int[np.ndarray, "profile client"],
    over: Over | None = None,
    outside: Float[np.ndarray, "seed client"] | None = None,
    *,
    rounds: int,
    seeds: Sequence[int],
    **of_runs: Any,
) -> tuple[PayoffTable, ...]:
    """The payoffs of profiles under each mechanism of ``over``, as ``payoffs`` has them, without its checks."""
    chosen, own, mechanisms = mechanisms_of(game.plan, over)
    joining, tried, every = game.deviations is None, game.deviations or {}, np.concatenate([choices] * mechanisms)
    played = strategies_played(tried, every)
    arguments: dict[str, Any] = {"played": played} if jax.tree.leaves(played) else {}
    if functions_of(tried):
        arguments["chosen"] = places_of(tried)[every]
    strategic = chosen
    if not joining or isinstance(game.utility, Utility):  # whose cost counts rounds
        first = {"played": played, **jax.tree.map(lambda rows: rows[0], arguments)}
        strategic = played_by(chosen, tried, first)
    if mechanisms > 1:  # the numbers of one are those of its plan, with the plan's program
        arguments |= jax.tree.map(lambda leaf: np.repeat(leaf, len(choices), 0) if np.ndim(leaf) else leaf, own)
    same = {"rounds": rounds, "seeds": seeds, "measure": earnings_of(game.utility), **of_runs}
    measured = runs(strategic, federation, Over(arguments, every == 0 if joining else None), **same)
    # By strategy, so that shapes are the same for all numbers of profiles: a new one compiles.
    own_choice = np.repeat(np.arange(len(tried) + 1)[:, None], choices.shape[1], axis=1)
    steps = steps_of_round(chosen, federation, strategies_played(tried, own_choice), game.messages.own_models)
    steps = np.broadcast_to(steps, (len(steps), *own_choice.shape))
    steps = steps[:, np.minimum(every, len(tried)), np.arange(choices.shape[1])]
    effort = efforts_of(rounds_trained(measured) * steps, chosen, federation, rounds)
    strategies = JOINING if joining else (HONESTY, *tried)
    names = tuple(map(str, federation.names.clients or ()))

    def table_of(place: Int[np.ndarray, " profile"]) -> PayoffTable:
        own = measured.isel(run=place)
        found = utilities_of_runs(own, effort[:, place], game.utility)
        if joining and outside is not None:
            found = np.where(choices == 0, found, outside[:, None])
        table = PayoffTable(found, choices, strategies, tuple(map(int, seeds)), outside, names=names)
        diverged = own["diverged"].transpose("seed", "run").values[:, table.honest].astype(bool)
        return with_losses_lost(table, diverged if over is None else None)

    return tuple(map(table_of, np.split(np.arange(len(every)), mechanisms)))


def mechanisms_of(plan: Algorithm | Plan, over: Over | None) -> tuple[Plan, dict[str, Any], int]:
    """The plan of the first mechanism, the arguments of all with a row for each, and their number."""
    if over is None:
        return plan_of(plan), {}, 1
    is_over = isinstance(over, Over)  # pyright: ignore[reportUnnecessaryIsInstance] - a user may give anything
    if not is_over or over.member is not None or over.cost is not None or not over.arguments:
        raise ValueError(
            f"expected over to be a fljax.Over of arguments alone, a row for each mechanism, got {describe(over)}"
        )
    first, arguments, mechanisms = varied_arguments(plan, over)
    return plan_of(first), arguments, mechanisms


def check_shared(outside: Outside, standalone: Local | None, arguments: Mapping[str, Any]) -> None:
    """Raises a ValueError if mechanisms that differ in ``arguments`` have not the same outside."""
    if kind_of(outside) == "mechanism":
        raise ValueError(f"expected outside options that all mechanisms share, got {outside!r}")
    if isinstance(outside, str) and standalone is None and "local" in arguments:
        raise ValueError("expected standalone=, how clients train alone, for mechanisms that differ in local, got None")


def checked_outside(outside: Outside, clients: int, seeds: int, utility: Utility | UtilityFunction) -> Outside:
    """What is outside, with numbers as an array ``[seeds, N]``; raises a ValueError for anything else."""
    if isinstance(outside, bool) or outside is None:
        return "standalone" if outside else None
    if isinstance(outside, str):
        if outside not in _OUTSIDE:
            raise ValueError(unknown("outside option", outside, _OUTSIDE))
        return outside
    is_reference = isinstance(outside, Reference)
    if is_reference and not isinstance(utility, Utility):
        raise ValueError("expected outside options of a utility function as an array or a name, got a Reference")
    values = np.asarray(outside.test_loss if is_reference else plain(outside))
    if values.dtype.kind not in "iuf" or values.shape not in ((clients,), (seeds, clients)):
        raise ValueError(
            f"expected outside options of {clients} clients, or of {seeds} seeds by {clients} clients, got "
            f"{values.dtype} of shape {list(values.shape)}"
        )
    if not is_reference and not np.isfinite(values).all():
        raise ValueError("expected finite outside options, got some that are not")
    return outside if is_reference else np.broadcast_to(values.astype(float), (seeds, clients))


def outside_options(
    outside: Outside,
    standalone: Local | None,
    plan: Plan,
    federation: Federation,
    utility: Utility | UtilityFunction,
    *,
    rounds: int,
    seeds: Sequence[int],
    **of_runs: Any,
) -> Float[np.ndarray, "seed client"] | None:
    """What clients get outside, of ``checked_outside``: given, or of runs of the mechanism or of standalone models."""
    if outside is None or isinstance(outside, np.ndarray):
        return outside
    local = local_of(plan) if standalone is None else standalone
    base, over, length = plan, Over(member=np.eye(federation.clients.id.shape[-1], dtype=bool)), rounds
    if kind_of(outside) == "standalone":
        if local is None and isinstance(outside, str):
            raise ValueError(
                "expected standalone=, how clients train alone, for an algorithm without an argument local, got None; "
                'outside= may also be "mechanism", a Reference, an array or None'
            )
        base, over = Plan(algorithms.standalone, {"task": algorithm_of(plan).task, "local": local}), Over()
        length = rounds if standalone is None else 1
        federation = by_themselves(federation)
    free = utility._replace(price=0.0) if isinstance(utility, Utility) else utility  # there are no tokens outside
    steps = steps_of_round(base, federation)
    if isinstance(outside, Reference):
        assert isinstance(free, Utility)
        judged = outside.test_accuracy is not None and free.metric != "test_loss"
        earned = np.asarray(outside.test_accuracy if judged else -outside.test_loss, float)
        effort = efforts_of(length * steps, plan, federation, rounds)[:, 0]
        return as_precise_as(utilities_of(earned, effort, None, free), earned)
    alone = played_by(base, {}, {"played": Strategy()})
    measured = runs(alone, federation, over, rounds=length, seeds=seeds, measure=earnings_of(free), **of_runs)
    effort = efforts_of(rounds_trained(measured) * steps, plan, federation, rounds)
    found = utilities_of_runs(measured, effort, free)
    return np.diagonal(found, axis1=1, axis2=2) if outside == "mechanism" else found[:, 0]


def runs_outside(outside: Outside, clients: int) -> int:
    """How many runs of a seed the outside options take."""
    return {"mechanism": clients, "standalone": 1}[outside] if isinstance(outside, str) else 0


def kind_of(outside: Outside) -> str:
    """What ``PayoffTable.outside_is`` says, of ``checked_outside``."""
    if isinstance(outside, str | None):
        return outside or ""
    return "standalone" if isinstance(outside, Reference) else "given"


def profiles(
    shape: Shape | Int[np.ndarray, "profile client"],
    clients: int,
    strategies: int,
    deviators: Sequence[int] | None = None,
) -> Int[np.ndarray, "profile client"]:
    """The strategy of each client in each profile of a shape, the honest one first; in "join", 1 stays away."""
    if not isinstance(shape, str):
        return shape
    if shape == "join":
        return members_of(clients).astype(int)
    if shape in ("unilateral", "pairs"):
        ids = range(clients) if deviators is None else deviators
        groups = itertools.combinations(ids, 1 if shape == "unilateral" else 2)
        played = itertools.product(groups, range(1, strategies))
        rows = [np.where(np.isin(np.arange(clients), group), strategy, 0) for group, strategy in played]
        return np.array([np.zeros(clients, int), *rows])
    if shape == "symmetric":
        return np.array(list(itertools.combinations_with_replacement(range(strategies), clients)))
    return np.array(list(itertools.product(range(strategies), repeat=clients)))


def check_profiles(
    shape: Shape | Int[np.ndarray, "profile client"],
    clients: int,
    strategies: int,
    deviators: Sequence[int] | None,
    alone: int,
    seeds: int,
    most: int,
    mechanisms: int = 1,
) -> None:
    """Raises a ValueError for another shape or deviator, or too many runs, of which ``alone`` are outside options."""
    if not isinstance(shape, str):
        fits = isinstance(shape, np.ndarray) and shape.dtype.kind in "iu" and shape.shape[1:] == (clients,)
        if not fits or not len(shape) or not 0 <= shape.min() <= shape.max() < strategies or shape.any(axis=1).all():
            raise ValueError(
                f"expected profiles [P, {clients}] of places of strategies from 0 to {strategies - 1}, of which one is "
                f"all zeros, got {describe(shape)}"
            )
    elif shape not in _SHAPES:
        raise ValueError(f"expected shape to be {', '.join(_SHAPES[:-1])} or {_SHAPES[-1]}, got {shape!r}")
    if deviators is not None:
        if not isinstance(shape, str) or shape != "unilateral":
            raise ValueError(f'expected deviators for the shape "unilateral" alone, got the shape {shape!r}')
        check_deviators(deviators, clients)
    if isinstance(shape, str) and shape == "join" and clients > LARGEST:
        raise ValueError(f'expected at most {LARGEST} clients for the shape "join", got {clients}')
    deviating = clients if deviators is None else len(deviators)
    count = (
        len(shape)
        if not isinstance(shape, str)
        else {
            "unilateral": 1 + deviating * (strategies - 1),
            "pairs": 1 + math.comb(clients, 2) * (strategies - 1),
            "join": 2**clients,
            "symmetric": math.comb(clients + strategies - 1, clients),
            "full": strategies**clients,
        }[shape]
    )
    total = (mechanisms * count + alone) * seeds
    if total > most:
        told = f" of {mechanisms} mechanisms" if mechanisms > 1 else ""
        told += f" and {alone} of clients alone" if alone else ""
        shown = f"{total:,}" if total < 10**15 else "more than 10^15"
        raise ValueError(
            f"expected at most {most:,} runs, got {shown} for {count if count < 10**15 else 'so many'} profiles{told} "
            f"with {seeds} seeds; max_runs allows more, deviations and deviators choose fewer"
        )


def check_deviators(deviators: Sequence[int], clients: int) -> None:
    """Raises a ValueError unless they are different ids of ``clients`` clients, at least one."""
    if not len(deviators) or len(set(deviators)) < len(deviators):
        raise ValueError(f"expected different ids of clients for deviators, got {list(deviators)}")
    for client in deviators:
        if not is_whole(client) or not 0 <= client < clients:
            raise ValueError(f"expected deviators to be ids of the clients 0 to {clients - 1}, got {client!r}")


def with_losses_lost(table: PayoffTable, diverged: Bool[np.ndarray, " seed"] | None) -> PayoffTable:
    """The table with NaN for infinite losses: a loss may be beyond the largest float where the model is not yet."""
    # A ValueError if an honest client has none that is finite in a run that has not ``diverged``, or if all have; None:
    # no error.
    if diverged is not None:
        if diverged.all():
            raise ValueError(
                "expected a run of honest clients that stays finite, got runs that diverge with every seed"
            )
        honest = np.where(diverged[:, None], 0, table.payoffs[:, table.honest])
        for seed, client in np.argwhere(~np.isfinite(honest)):
            raise ValueError(
                f"expected finite utilities of honest clients, got {honest[seed, client]:g} of client {client} with "
                f"seed {table.seeds[seed]}"
            )
    payoffs, outside = (
        None if array is None else np.where(np.isneginf(array), np.nan, array)
        for array in (table.payoffs, table.outside)
    )
    return table._replace(payoffs=payoffs, outside=outside)


class Stages(NamedTuple):
    """The arguments of ``fljax.runs`` in the calls that share a checkpoint and a count of runs."""

    of_runs: Mapping[str, Any]
    total: int

    @contextlib.contextmanager
    def of(self, name: str, before: int) -> Iterator[dict[str, Any]]:
        """Arguments of the stage ``name``, with ``before`` runs before it. ``Stopped`` inside counts all stages."""
        settings = dict(self.of_runs)
        place, told = Checkpoint.of(settings.get("checkpoint")), settings.get("on_block")
        if place is not None:
            settings["checkpoint"] = place.below(name)
        if told is not None:

            def tell(block: RunsDone) -> Any:
                return told(block._replace(done=before + block.done, runs=self.total))

            settings["on_block"] = tell
        try:
            yield settings
        except Stopped as stopped:
            saved = None if stopped.saved is None else before + stopped.saved
            raise Stopped(before + stopped.round, self.total, saved, stopped.unit) from None
