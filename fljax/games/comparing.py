"""Estimators of a client's worth judged by retraining, and how far a worth depends on the algorithm, beside seeds.

Every coalition is retrained from scratch, as runs of one compiled program. Runs of one seed share initial weights,
batches and draws, which depend on seed, round and id, never on the coalition: so differences are less noisy than
values. A worth still depends on one draw of batches: error bars need several seeds.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, PyTree

from fljax import contributions, training
from fljax.algorithms.measuring import has_head, head_rows
from fljax.contributions import ESTIMATORS, CachedGame, Estimate, RunRecord
from fljax.contributions.solutions import LARGEST, members_of
from fljax.core import trees
from fljax.core.names import unknown
from fljax.core.sameness import code_of
from fljax.core.values import arguments_for, is_whole
from fljax.engine import Over, Plan, is_stacked, plan_of, rollout, runs
from fljax.engine.rounds.states import Seeds, by_id, local_data, seeds_of, with_shared, without_shared
from fljax.games.solutions import shapley
from fljax.games.tables import CoalitionTable, Cost, by_code, in_braces
from fljax.games.values import Measured, Measures, Value, algorithm_of, check_value, estimate, in_words, measures_of
from fljax.protocol import Algorithm, Federation, Info, Round, Seat, Subset
from fljax.protocol.sums import Part, Total, as_streamed
from fljax.results import Reference

Coalitions = Literal["leave_one_out"] | Bool[np.ndarray, "M N"] | Bool[Array, "M N"] | Sequence[Iterable[int]]
Baseline = Literal["initial", "chance"] | float
Outside = Literal["alone", "global"]


def coalitions(
    plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    value: Value = "average_accuracy",
    among: Coalitions | None = None,
    baseline: Baseline = "initial",
    outside: Outside = "alone",
    reference: Reference | None = None,
    max_runs: int = 4096,
    **of_runs: Any,
) -> CoalitionTable:
    """Retrains coalitions of clients from scratch: ``v(S)`` is the value of a run in which S alone takes part.

    A client outside a coalition has no rows in its run. The run sees only its shapes and what is declared for all
    clients, such as classes. Metrics judge all clients, in and outside the coalition.

    Args:
      plan: an ``Algorithm``, or a ``Plan`` whose floats change without recompiling.
      federation: of N clients, shared by all seeds or one per seed (``fljax.data.stack``).
      rounds: of every run.
      seeds: R integers that key all randomness of a run; 3 means the seeds 0, 1 and 2. They redraw initial weights,
        batches and cohorts, and the partition if the federation is stacked.
      value: a metric, at the end of a run (``fljax list metrics``); or a function ``(algorithm, state, scores) ->
        number`` at the top of a module, traced, where more is better. If less of a metric is better, it is negated.
      among: the coalitions: None for all ``2^N``, "leave_one_out" for no client, all clients, and all clients but one;
        ``[M, N]`` bools; or collections of ids, such as ``[{0, 1}, {0, 1, 2}]``.
      baseline: ``v(empty)``: "initial" is the value of the untrained model, which differs between seeds; "chance" is
        ``1 / classes``, for accuracies; or a number. It is run only with "initial".
      outside: the payoff of a client outside the coalition: "alone" is its payoff in the coalition of itself (NaN if
        ``among`` lacks that); "global" is its payoff by the run's model.
      reference: standalone models (``fljax.standalone``) for metrics that compare with them.
      max_runs: more runs are refused.
      **of_runs: further arguments of ``fljax.runs``: ``execution``, ``block``, ``checkpoint``, ``on_block``. With
        ``checkpoint`` the same call goes on with the runs that are missing.

    Returns:
      ``CoalitionTable``. A run that has diverged is NaN.

    Raises:
      ValueError: if there are more runs than ``max_runs``, or more than 16 clients without ``among``; if ``among`` has
        no coalition, one twice, or unknown clients; if there is no such metric; or as ``fljax.runs``.

    Source: Shapley, "A value for n-person games" (1953), for the game; Song et al., "Profit allocation for federated
    learning" (2019), for its values by retraining.
    """
    if outside not in ("alone", "global"):
        raise ValueError(f'expected outside to be "alone" or "global", got {outside!r}')
    chosen, numbers = plan_of(plan), seeds_of(seeds)
    members, cost = planned(chosen, federation, among, rounds=rounds, seeds=len(numbers), max_runs=max_runs)
    algorithm = algorithm_of(chosen)
    check_value(value, algorithm, federation, reference)
    empty = _baseline(baseline, value, algorithm)
    trained = members if empty is None else members[members.any(axis=1)]
    if not len(trained):
        raise ValueError(f"expected a coalition with members beside baseline={baseline!r}, got that of nobody alone")
    began = time.perf_counter()
    measured = runs(
        chosen,
        federation,
        Over(member=trained),
        rounds=rounds,
        seeds=numbers,
        measure=Measured() if isinstance(value, str) else Measured(value, code_of(value)),
        max_runs=max_runs,
        **of_runs,
    )
    measures = measures_of(measured, value, reference)
    cost = cost._replace(seconds=time.perf_counter() - began)
    text = baseline if isinstance(baseline, str) else repr(float(baseline))
    names = tuple(map(str, federation.names.clients or range(members.shape[1])))
    described = {"baseline": text, "seeds": tuple(numbers), "names": names, "cost": cost}
    described["notes"] = str(measured.attrs.get("notes", ""))
    return _table(measures, members, empty, outside, described)


def planned(
    plan: Plan, federation: Federation, among: Coalitions | None, *, rounds: int, seeds: int, max_runs: int
) -> tuple[Bool[np.ndarray, "M N"], Cost]:
    """The coalitions that ``among`` means, and what they will cost; ``seeds`` is the number of seeds."""
    members = chosen_members(among, federation.clients.id.shape[-1])
    cost = estimate(plan, federation, members, rounds, seeds)
    if cost.runs > max_runs:
        raise ValueError(
            f"expected at most {max_runs:,} runs, got {in_words(cost)} for {len(members):,} coalitions and {seeds} "
            "seeds; max_runs allows more, among chooses coalitions"
        )
    return members, cost


def chosen_members(among: Coalitions | None, clients: int) -> Bool[np.ndarray, "M N"]:
    """The coalitions that ``among`` means, as for ``coalitions``."""
    if among is None:
        if clients > LARGEST:
            count = f"{2**clients:,}" if clients <= 40 else f"2^{clients}"
            raise ValueError(
                f"expected among= for more than {LARGEST} clients, got {clients} clients, which have {count} "
                f'coalitions; among="leave_one_out" has {clients + 2}'
            )
        return members_of(clients)
    if isinstance(among, str):
        if among != "leave_one_out":
            raise ValueError(f"expected among to be 'leave_one_out', coalitions or None, got {among!r}")
        rows = np.concatenate([np.zeros((1, clients)), 1 - np.eye(clients), np.ones((1, clients))]).astype(bool)
        return np.unique(rows, axis=0) if clients == 1 else rows
    if isinstance(among, np.ndarray | jax.Array):
        rows = np.asarray(among)
        if rows.ndim != 2 or rows.shape[1] != clients or rows.dtype != bool:
            raise ValueError(f"expected among to be bools [M, {clients}], got {rows.dtype} {list(rows.shape)}")
    else:
        rows = np.array([_row(ids, clients) for ids in among]).reshape(-1, clients)
    if not len(rows):
        raise ValueError("expected among to have at least one coalition, got none")
    first, counts = np.unique(rows, axis=0, return_counts=True)
    if counts.max() > 1:
        raise ValueError(f"expected each coalition of among once, got {in_braces(first[counts.argmax()])} twice")
    return rows


def _row(ids: Iterable[int], clients: int) -> np.ndarray:
    row = np.zeros(clients, bool)
    for client in ids:
        if not is_whole(client) or not 0 <= client < clients:
            raise ValueError(f"expected coalitions of the clients 0 to {clients - 1}, got {client!r}")
        row[int(client)] = True
    return row


def _baseline(baseline: Baseline, value: Value, algorithm: Algorithm) -> float | None:
    """``v(empty)``; None if it is run."""
    if baseline == "initial":
        return None
    if baseline == "chance":
        classes = algorithm.task.classes
        if not isinstance(value, str) or "accuracy" not in value or classes is None:
            raise ValueError(
                'expected an accuracy and a task of classes for baseline="chance", got '
                f"{value if isinstance(value, str) else 'a function'}; a number may be given"
            )
        return 1 / classes
    if isinstance(baseline, str) or not np.isfinite(baseline):
        raise ValueError(f'expected baseline to be "initial", "chance" or a number, got {baseline!r}')
    return float(baseline)


def _table(
    measures: Measures,
    members: Bool[np.ndarray, "M N"],
    empty: float | None,
    outside: Outside,
    described: dict[str, Any],
) -> CoalitionTable:
    """The table of all coalitions, with ``v(empty)`` where it was not run, and payoffs of those outside."""
    values, scores, diverged = measures.values, measures.scores, measures.diverged
    if empty is not None and values.shape[1] < len(members):
        place = int(np.flatnonzero(~members.any(axis=1))[0])
        values = np.insert(values, place, empty, axis=1)
        scores = np.insert(scores, place, np.nan, axis=1)
        diverged = np.insert(diverged, place, False, axis=1)
    payoffs = scores
    if outside == "alone":  # what a client reaches in the coalition of itself; NaN where there is no such coalition
        single = np.flatnonzero(members.sum(axis=1) == 1)
        clients = members[single].argmax(axis=1)
        reached = np.full((len(scores), members.shape[1]), np.nan)
        reached[:, clients] = scores[:, single, clients]
        payoffs = np.where(members[None], scores, reached[:, None])
    return CoalitionTable(
        values, members, payoffs, diverged, metric=measures.metric, payoff=measures.payoff, **described
    )


_JUDGED = ("kendall", "spearman", "share_error", "best_found", "worst_found", "compared")
_ROWS = "validation"  # of the server, by which models are judged
_SPENT = ("trainings", "evaluations", "gradients")
# Options that are taken from the task and the federation, where these have them.
_OFFERED = {"shapfed": "head", "fedce": "client_metric"}
_UPDATE, _MODEL, _WEIGHT = "recorded_update_", "recorded_model_", "recorded_weight"  # in the records of a run
_TOLD = ("converged",)  # details of estimates that are kept


def compare_estimators(
    plan: Algorithm | Plan,
    federation: Federation,
    table: CoalitionTable,
    *,
    rounds: int,
    rows: str = _ROWS,
    estimators: Sequence[str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    budget: int | None = None,
    server_rate: float = 1.0,
) -> xr.Dataset:
    """Every estimator of ``contributions.ESTIMATORS`` beside the Shapley values of the retrained table, seed by seed.

    Estimators of rounds see one run of all clients, with the seeds of the table. Other estimators ask for values of
    coalitions: they get at most ``budget`` of them from the table.

    Args:
      plan: of the table; its server has one model, and its clients send updates.
      federation: of the table, with rows of the server (``held``).
      table: of all coalitions.
      rounds: of the runs of the table.
      rows: the name of the server's rows that judge models for estimators of rounds.
      estimators: names; None: all that have what they need. "shapfed" needs a task with a head of classes or the option
        ``head``, "fedce" validation rows of all clients and an accuracy or the option ``client_metric``,
        "cffl_reputation" an accuracy, and estimators of rounds need the server's rows and one model.
      options: of estimators, by name.
      budget: the largest number of trainings; None: a quarter of all coalitions, and at least 2 N.
      server_rate: the server's learning rate, for estimators that repeat its step.

    Returns:
      Over ``estimator, seed``: ``kendall`` (tau-b), ``spearman``, ``share_error``, ``best_found`` and ``worst_found``
      against the truth of the same seed (``contributions.agreement``), ``compared``, the number of clients with an
      estimate, and ``converged``, False if a search for a minimum has not settled; by ``client`` also ``worth``, and
      ``deviation`` after the total is matched (its mean over seeds is the bias). Over ``estimator``: ``trainings``,
      ``evaluations``, ``gradients`` and ``seconds`` for each seed, compiling included, and ``stability``, the mean
      tau-b between seeds. ``truth`` has the Shapley values, and ``ceiling`` their stability. With estimators of rounds,
      ``gain`` over ``seed`` is the gain of the recorded run on the server's rows: values by ``multi_round`` add up to
      it if the server's step is the weighted mean of updates. The attribute ``left_out`` says in one line which
      estimators lack what they need; it is empty if none does.

    Raises:
      ValueError: if the table lacks a coalition, an estimator or the server's rows do not exist, an estimator lacks
        what it needs, or the algorithm is of another kind.
    """
    chosen, truth = plan_of(plan), shapley(table)
    algorithm, settings = algorithm_of(chosen), dict(options or {})
    clients = table.members.shape[1]
    if (here := federation.clients.id.shape[-1]) != clients:
        raise ValueError(f"expected the federation of the table, of {clients} clients, got one of {here}")
    asked = EstimatorInputs(chosen, federation, table.metric, rows, settings, budget)
    names, left_out = asked.split(estimators)
    judge, record, gain = _Judge(algorithm, federation, rows, asked.by_accuracy), None, None
    if any(not ESTIMATORS[name].on_host for name in names):
        record = record_runs(chosen, federation, rounds=rounds, seeds=table.seeds, server_rate=server_rate)
        gain = _gains(judge, record)
    estimates: dict[str, list[Estimate]] = {}
    seconds: dict[str, float] = {}
    for name in names:
        began = time.perf_counter()
        if record is None or ESTIMATORS[name].on_host:
            estimates[name] = [
                _by_values(name, values, asked.trainings, seed, settings.get(name, {}))
                for seed, values in zip(table.seeds, by_code(table), strict=True)
            ]
        else:
            estimates[name] = _by_rounds(judge, record, name, settings.get(name, {}), clients, table.seeds)
        seconds[name] = (time.perf_counter() - began) / len(table.seeds)
    found = _dataset(estimates, seconds, truth, table).assign_attrs(left_out=left_out)
    return found if gain is None else found.assign(gain=("seed", gain))


class EstimatorInputs(NamedTuple):
    """The inputs of estimators, as for ``compare_estimators``, for a table that need not exist yet."""

    plan: Plan
    federation: Federation
    metric: str  # by which coalitions are judged
    rows: str = _ROWS
    options: Mapping[str, Mapping[str, Any]] = {}
    budget: int | None = None

    @property
    def trainings(self) -> int:
        """The largest number of trainings; by default a quarter of all coalitions, and at least 2 N."""
        clients = self.federation.clients.id.shape[-1]
        return max(2**clients // 4, 2 * clients) if self.budget is None else self.budget

    @property
    def by_accuracy(self) -> bool:
        """Whether estimators that look at rounds judge models by accuracy."""
        return "loss" not in self.metric and algorithm_of(self.plan).task.score is not None

    def split(self, names: Sequence[str] | None) -> tuple[list[str], str]:
        """The estimators that can run, and in one line which are left out and why; empty: none. Nothing is computed.

        All of ``names`` must run; None: all that can run.
        """
        for name in (*(names or ()), *self.options):
            if name not in ESTIMATORS:
                raise ValueError(unknown("estimator", name, ESTIMATORS))
        if names is None and self.rows != _ROWS:
            self._check_rows()
        lacking = self._lacking(list(ESTIMATORS if names is None else names))
        if names is None:
            return [name for name in ESTIMATORS if name not in lacking], _in_words(lacking)
        for name, reason in lacking.items():
            raise ValueError(f"{reason} (for the estimator {name!r})")
        return list(dict.fromkeys(names)), ""

    def _lacking(self, names: Sequence[str]) -> dict[str, str]:
        """Why some of the estimators cannot run: what was expected and what there is."""
        task, valid = algorithm_of(self.plan).task, self.federation.clients.valid.size
        clients, reasons = self.federation.clients.id.shape[-1], dict[str, str]()
        validated = bool(np.all(np.asarray(valid) > 0)) and task.score is not None
        needs = {
            "shapfed": (has_head(task), "a task with a head of classes, or the option head"),
            "fedce": (validated, "validation rows and an accuracy of all clients, or the option client_metric"),
            "cffl_reputation": (self.by_accuracy, "a table of accuracies"),
        }
        blind = self._blind() if any(not ESTIMATORS[name].on_host for name in names) else ""
        for name in names:
            options, least = self.options.get(name, {}), ESTIMATORS[name].least
            has, words = needs.get(name, (True, ""))
            if not has and _OFFERED.get(name) not in options:
                reasons[name] = f"expected {words}, got none"
            elif blind and not ESTIMATORS[name].on_host:
                reasons[name] = blind
            elif least is not None and (trainings := least(clients, **options)) > self.trainings:
                reasons[name] = f"expected a budget of at least {trainings} trainings, got {self.trainings}"
        return reasons

    def _blind(self) -> str:
        """Why nothing can be seen of the rounds of a run; empty: they can be seen."""
        by_seed = {name: jax.tree.map(lambda rows: rows[:1], values) for name, values in self.plan.by_seed.items()}
        try:
            self._check_rows()
            jax.eval_shape(
                lambda: record_runs(self.plan._replace(by_seed=by_seed), self.federation, rounds=1, seeds=(0,))
            )
        except ValueError as error:
            return str(error)
        return ""

    def _check_rows(self) -> None:
        """Raises a ValueError if the server lacks the rows."""
        if self.rows not in self.federation.held:
            held = self.federation.held
            valid = f"valid names are {', '.join(held)}" if held else "the server has none"
            raise ValueError(
                f"expected rows of the server, got {self.rows!r}; {valid} (held_fraction above 0 gives it rows)"
            )


def _in_words(reasons: Mapping[str, str]) -> str:
    """Which estimators are left out and why, in one line."""
    told = [
        f"{', '.join(name for name in reasons if reasons[name] == reason)} ({reason})"
        for reason in dict.fromkeys(reasons.values())
    ]
    return f"estimators left out: {'; '.join(told)}" if told else ""


def compare_algorithms(tables: Mapping[str, CoalitionTable]) -> xr.Dataset:
    """How well algorithms agree on what the same clients are worth, beside how well seeds of one algorithm agree.

    ``phi^a_r`` are the Shapley values of algorithm a with seed r. ``tau(phi^a_r, phi^b_r)`` compares algorithms, and
    ``tau(phi^a_r, phi^a_s)`` seeds. Contributions are volatile across algorithms if the first are lower. So are
    rewards, if these are shares of the sum: ``||phi^a_r / sum phi^a_r - phi^b_r / sum phi^b_r||_1 / 2`` is the part of
    all rewards that changes hands.

    Args:
      tables: of all coalitions, by label of the algorithm; all with the same clients, seeds and metric.

    Returns:
      Over ``algorithm, other, seed``: ``kendall`` (tau-b), ``spearman``, and ``best_agrees``, whether the client that
      is worth the most is the same, for each pair with the same seed; NaN where all clients are worth the same; and
      ``moved``, the part of rewards that changes hands, NaN where a sum is not positive. Over ``seed``: ``between``,
      the mean tau-b of all pairs of two algorithms. Over ``algorithm``: ``stability``, the mean tau-b of all pairs of
      seeds, and ``moved_between_seeds``, the mean part that changes hands between two seeds (both NaN with one seed);
      and ``worth`` by ``seed`` and ``client``.

    Raises:
      ValueError: if there are fewer than two tables, they are not alike, or one lacks a coalition.

    Source: "On the volatility of Shapley-based contribution metrics in federated learning" (arXiv 2405.08044), for the
    question.
    """
    if len(tables) < 2:
        raise ValueError(f"expected tables of at least two algorithms, got {len(tables)}")
    (label, first), *others = tables.items()
    for name in ("names", "seeds", "metric"):
        for other, table in others:
            mine, its = getattr(first, name), getattr(table, name)
            if mine != its:
                raise ValueError(f"expected tables of the same {name}, got {mine} of {label} and {its} of {other}")
    worth = np.stack([shapley(table) for table in tables.values()])
    judged = contributions.agreement(worth[:, None], worth[None])
    pairs = ("algorithm", "other", "seed")
    return xr.Dataset(
        {
            "kendall": (pairs, judged.kendall),
            "spearman": (pairs, judged.spearman),
            "best_agrees": (pairs, judged.best_found),
            "moved": (pairs, judged.share_error / 2),
            "between": ("seed", [contributions.stability(worth[:, seed]) for seed in range(len(first.seeds))]),
            "stability": ("algorithm", [contributions.stability(rows) for rows in worth]),
            "moved_between_seeds": ("algorithm", [_moved(rows) for rows in worth]),
            "worth": (("algorithm", "seed", "client"), worth),
        },
        {
            "algorithm": list(tables),
            "other": list(tables),
            "seed": list(first.seeds),
            "client": np.arange(worth.shape[-1]),
        },
        {"metric": first.metric},
    )


def _moved(rows: Float[np.ndarray, "seeds N"]) -> float:
    """The mean part of rewards that changes hands between two seeds; NaN if there are no two."""
    pairs = itertools.combinations(rows, 2)
    parts = [contributions.agreement(first, second).share_error / 2 for first, second in pairs]
    return float(np.mean(parts)) if parts else np.nan


def _by_values(name: str, values: np.ndarray, budget: int, seed: int, options: Mapping[str, Any]) -> Estimate:
    """An estimator that asks for values of coalitions, with those of one seed."""
    more = {"budget": budget + 1} if name == "ipss" and "budget" not in options else {}  # with the empty coalition
    game = CachedGame.of_table(values, budget=budget)
    return contributions.estimate(name, game, key=jax.random.key(seed), **more, **options)


class _Row(NamedTuple):
    """A client's row in the aggregation, with its update and its weight."""

    inner: PyTree
    update: PyTree
    weight: Array


def of_seed(federation: Federation, place: Array) -> Federation:
    """The federation of one of several seeds; one that all seeds share is returned as it is."""
    if not is_stacked(federation):
        return federation
    return with_shared(trees.take(without_shared(federation), place), federation)


def recording(algorithm: Algorithm) -> Algorithm:
    """The algorithm, whose Info also has every client's update and weight, and the model before the round."""
    # The weight is the weight of the client's part of the sum; if an aggregation is not a sum, it is 1.
    inner = as_streamed(algorithm.aggregate)

    def contribute(server: PyTree, seat: Seat, up: PyTree) -> tuple[Part, PyTree]:
        part, row = inner.contribute(server, seat, up)
        if not hasattr(up, "update"):
            raise ValueError("expected an algorithm whose clients send an update, got messages without one")
        weight = jnp.asarray(part.weight, jnp.result_type(float))
        return part, _Row(row, up.update, weight if weight.ndim == 0 else jnp.ones((), weight.dtype))

    def finish(server: PyTree, total: Total, rows: PyTree, round: Round) -> tuple[PyTree, Info]:
        if not hasattr(server, "model"):
            raise ValueError("expected an algorithm whose server has one model, got a server without one")
        after, info = inner.finish(server, total, rows.inner, round)
        updates = {f"{_UPDATE}{place}": leaf for place, leaf in enumerate(jax.tree.leaves(rows.update))}
        models = {f"{_MODEL}{place}": leaf for place, leaf in enumerate(jax.tree.leaves(server.model))}
        return after, {**info, **updates, **models, _WEIGHT: rows.weight}

    return algorithm._replace(aggregate=inner._replace(contribute=contribute, finish=finish))


def record_runs(
    plan: Plan, federation: Federation, *, rounds: int, seeds: tuple[int, ...], server_rate: float = 1.0
) -> RunRecord:
    """The records of the runs of several seeds, ``[R, T, ...]``: full runs of all clients, which send updates."""
    if rounds < 1:
        raise ValueError(f"expected at least one round for a record of rounds, got {rounds}")
    federation = by_id(federation)

    def one(seed: Array, by_seed: Any, place: Array) -> RunRecord:
        data = of_seed(federation, place)
        algorithm = plan.build(**plan.arguments, **by_seed)
        state, records = rollout(recording(algorithm), data, rounds=rounds, seed=seed)
        structure = jax.tree.structure(state.server.model)

        def tree(prefix: str) -> PyTree:
            return jax.tree.unflatten(structure, [records[f"{prefix}{i}"] for i in range(structure.num_leaves)])

        last = jax.tree.map(lambda leaf: leaf[None], state.server.model)
        models = jax.tree.map(lambda *parts: jnp.concatenate(parts), tree(_MODEL), last)
        present = jnp.asarray(records["cohort_present"], bool)
        weights = jnp.where(present, records[_WEIGHT], 0)
        rate = jnp.asarray(server_rate, weights.dtype)
        return RunRecord(models, tree(_UPDATE), weights, present, records["cohort_id"], rate)

    rows = {name: jax.tree.map(jnp.asarray, values) for name, values in plan.by_seed.items()}
    numbers = jnp.asarray(seeds, jnp.uint32)
    mapped = jax.jit(lambda *arguments: jax.lax.map(lambda row: one(*row), arguments))
    return mapped(numbers, rows, jnp.arange(len(seeds)))


class _Judge(NamedTuple):
    """By what models are judged: the server's rows of a name, by accuracy or by minus the loss."""

    algorithm: Algorithm
    federation: Federation
    rows: str
    by_accuracy: bool

    def scores(self, model: PyTree, data: Federation) -> tuple[Any, Any]:
        """Loss and accuracy on the server's rows of one seed."""
        subset = Subset(data.examples, data.held[self.rows], moments=data.moments)
        return training.evaluate(self.algorithm.task, lambda x: self.algorithm.predict(model, x), subset)

    def utility(self, model: PyTree, data: Federation) -> Any:
        """A number; more is better."""
        loss, accuracy = self.scores(model, data)
        return accuracy if self.by_accuracy else -loss

    def of_clients(self, models: PyTree, ids: Array, data: Federation) -> Float[Array, " S"]:
        """``[S]``: the accuracy of each of S models on the validation rows of the client with this id."""

        def one(row: tuple[PyTree, Array]) -> Array:
            model, id = row
            valid = local_data(data, trees.take(data.clients, id)).valid
            return training.evaluate(self.algorithm.task, lambda x: self.algorithm.predict(model, x), valid)[1]

        return jax.lax.map(one, (models, ids))


def _by_rounds(
    judge: _Judge, record: RunRecord, name: str, options: Mapping[str, Any], clients: int, seeds: Sequence[int]
) -> list[Estimate]:
    """The estimates of an estimator that looks at rounds, one program for all seeds."""
    stored, entry = by_id(judge.federation), ESTIMATORS[name]

    def one(row: tuple[RunRecord, Any, Any]) -> Estimate:
        seen, number, place = row
        data = of_seed(stored, place)
        if {"gradient", "next gradient"} & set(entry.needs):
            seen = contributions.validation_gradients(seen, lambda model: judge.scores(model, data)[0])
        offered = {
            "utility": functools.partial(judge.utility, data=data),
            "head": functools.partial(head_rows, judge.algorithm.task),
            "client_metric": functools.partial(judge.of_clients, data=data),
        }
        more = arguments_for(entry.function, offered, options)
        estimate = contributions.estimate(name, seen, clients=clients, key=jax.random.key(number), **more)
        told = {name: estimate.details[name] for name in _TOLD if name in estimate.details}
        return Estimate(estimate.worth, cost=estimate.cost, details=told)

    numbers = jnp.asarray(seeds, jnp.uint32), jnp.arange(len(seeds))
    every = jax.jit(lambda *arguments: jax.lax.map(one, arguments))(record, *numbers)
    return [jax.tree.map(lambda leaf, place=place: np.asarray(leaf[place]), every) for place in range(len(seeds))]


def _gains(judge: _Judge, record: RunRecord) -> Float[np.ndarray, " seeds"]:
    """``[R]``: ``U(w^T) - U(w^0)`` of each seed's run."""

    def one(row: tuple[PyTree, Array]) -> Array:
        models, place = row
        data = of_seed(judge.federation, place)
        first, last = (judge.utility(trees.take(models, at), data) for at in (0, -1))
        return last - first

    places = jnp.arange(jax.tree.leaves(record.models)[0].shape[0])
    return np.asarray(jax.jit(lambda *rows: jax.lax.map(one, rows))(record.models, places), float)


def _dataset(
    estimates: Mapping[str, Sequence[Estimate]], seconds: Mapping[str, float], truth: np.ndarray, table: CoalitionTable
) -> xr.Dataset:
    worth = np.array([[estimate.worth for estimate in rows] for rows in estimates.values()], float)
    judged, by = contributions.agreement(worth, truth), ("estimator", "seed")
    spent = {
        name: [float(np.mean([getattr(estimate.cost, name) for estimate in rows])) for rows in estimates.values()]
        for name in _SPENT
    }
    return xr.Dataset(
        {
            "worth": ((*by, "client"), worth),
            "deviation": ((*by, "client"), judged.deviation),
            **{name: (by, getattr(judged, name)) for name in _JUDGED},
            **{name: ("estimator", numbers) for name, numbers in spent.items()},
            "seconds": ("estimator", list(seconds.values())),
            "stability": ("estimator", [contributions.stability(rows) for rows in worth]),
            "converged": (by, [[e.details.get("converged", True) for e in rows] for rows in estimates.values()]),
            "truth": (("seed", "client"), truth),
            "ceiling": ((), contributions.stability(truth)),
        },
        {"estimator": list(estimates), "seed": list(table.seeds), "client": np.arange(truth.shape[1])},
        {"metric": table.metric},
    )
