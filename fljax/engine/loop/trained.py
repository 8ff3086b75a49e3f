"""A run's trained models as functions of a client, which can be pickled if the plan can, and scores of the task.

``Scoring`` gives the scores (``fljax.metrics.scores``) at chosen evaluations of a run, and NaN at the others. The last
evaluation has scores, also of a run that is stopped. A function of one's own is called on made rows before anything is
trained, and refused if no rows could mend it. A client for which it fails later has NaN and is named.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PyTree

from fljax.core import trees
from fljax.core.names import check_same_labels, labels_along
from fljax.core.platforms import ANY
from fljax.core.values import as_whole
from fljax.data.own.words import as_numbers, one_hot
from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout, Precision, on_one
from fljax.engine.loop.checkpointing import function_name
from fljax.engine.loop.compilation import Programs
from fljax.engine.loop.history import Schedule
from fljax.engine.offload.host_data import only_client
from fljax.engine.offload.run import OffloadRun
from fljax.engine.programs import jit, program
from fljax.engine.programs.program import Inputs, Plan, Spec, predictions
from fljax.engine.rounds.states import Seeds, State, by_id, seeds_of, with_arrays, with_least, without_rows
from fljax.metrics.scores import (
    SCORES,
    NoValue,
    Predicted,
    Score,
    probabilities,
    rare_class,
    scores_of_clients,
    sentences_of,
    value_of,
)
from fljax.protocol import Algorithm, Features, Federation, Labelled, Names, RowsAbsent, Seat, Task
from fljax.training import prepare


class DeployedModels:
    """``(client, *, seed=0, unseen=False) -> Deployed``: the model that a client would use now."""

    # Pickle saves the state and the plan, but no rows of clients: a model that depends on its client's rows raises
    # ``RowsAbsent`` until ``with_rows``. Functions of built-in models are defined inside functions, so the plan needs
    # cloudpickle; without it the plan is lost, and a call raises a ValueError with the reason.

    def __init__(
        self,
        plan: tuple[Spec, Inputs] | bytes | str,
        state: State,
        seeds: int,
        devices: int,
        precision: Precision = "default",
        rows: Callable[[], Federation] | None = None,
    ) -> None:
        self._plan, self._state, self._seeds, self._devices = plan, state, seeds, devices
        self._precision: Precision = precision
        self._rows = rows

    def __call__(self, client: int, *, seed: int = 0, unseen: bool = False, x: Array | None = None) -> PyTree:
        # Uses the data as given and one copy of the state, so no copies of the data stay on other devices.
        (spec, inputs), at, seeds, precision = self.parts()
        population = inputs.federation.unseen if unseen else inputs.federation.clients
        count = 0 if population is None else population.id.shape[-1]
        who, place = as_whole(client), as_whole(seed)
        if who is None or place is None or not 0 <= who < count or not 0 <= place < seeds:
            if unseen and not count:
                raise ValueError("expected unseen=True for a federation with unseen clients, got one without")
            advice = (
                "; names.clients.index(...) is the number of a client by its name" if isinstance(client, str) else ""
            )
            raise ValueError(
                f"expected a client below {count} and a position of a seed below {seeds}, "
                f"got {client!r}, {seed!r}{advice}"
            )
        row = inputs.federation.examples.x.shape[1:]
        sentence = f"expected x to be a batch of raw examples [b, {', '.join(map(str, row))}], got shape "
        is_scaled = inputs.federation.moments is not None  # by numbers for each entry of a row
        if x is not None and (x.ndim != 1 + len(row) or (is_scaled and x.shape[1:] != row)):
            raise ValueError(f"{sentence}{list(x.shape)}")
        where = who
        leaves = [inputs.federation.examples.x, *jax.tree.leaves(at.clients)]
        if any(isinstance(leaf, np.ndarray) for leaf in leaves):  # on the host
            inputs, at = only_client(inputs, at, place, who, unseen)
            where = 0
        layout = Layout(1, 1, 1, platform=ANY, precision=precision)  # users may compile it for any platform
        try:
            return program.deployed(spec, layout, inputs, at, jnp.int32(place), jnp.int32(where), not unseen, x)
        except Exception as error:
            if _is_for_rows(error):
                if self._rows is None:
                    raise
                self._plan = self.with_rows(self._rows()).parts()[0]  # read once
                return self(client, seed=seed, unseen=unseen, x=x)
            # A model may take rows of another shape, such as longer texts, or raise any error.
            if x is None or x.shape[1:] == row:
                raise
            raise ValueError(f"{sentence}{list(x.shape)}") from error

    def with_rows(self, federation: Federation) -> DeployedModels:
        """As ``Models.with_rows``; a ValueError if clients, sizes or moments differ, or the plan was lost."""
        (spec, inputs), state, seeds, precision = self.parts()
        if not isinstance(federation, Federation):  # pyright: ignore[reportUnnecessaryIsInstance] - a user may err
            raise ValueError(f"expected the federation of the run, got {type(federation).__name__}")
        federation = with_least(by_id(federation))
        if not _same(without_rows(federation), without_rows(inputs.federation)):
            raise ValueError("expected the federation of the run, got one with other clients, sizes or moments")
        inputs = inputs._replace(federation=federation)
        return DeployedModels((spec, inputs), state, seeds, 1, precision)

    def parts(self) -> tuple[tuple[Spec, Inputs], State, int, Precision]:
        """The plan, the state on one device, the number of seeds and the precision."""
        if not isinstance(self._plan, tuple):
            self._plan = _unpacked(self._plan)
        state = self._state if self._devices == 1 else on_one(self._state)
        return self._plan, state, self._seeds, self._precision

    def __reduce__(self) -> Any:
        packed = self._plan
        if isinstance(packed, tuple):
            spec, inputs = packed
            packed = _packed(spec, inputs._replace(federation=without_rows(inputs.federation)))
        return DeployedModels, (packed, self._state, self._seeds, 1, self._precision, self._rows)

    def __copy__(self) -> DeployedModels:
        return self  # it is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> DeployedModels:
        return self


def _same(one: Federation, other: Federation) -> bool:
    """Whether two federations without rows agree in everything but how many rows there are in all."""
    rows = [part.shape[1:] for federation in (one, other) for part in federation.examples[:2]]
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    return rows[:2] == rows[2:] and len(leaves) == len(others) and all(map(np.array_equal, leaves, others))


def _is_for_rows(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is that rows are read where there are none."""
    while error is not None and not isinstance(error, RowsAbsent):
        error = error.__cause__
    return error is not None


class Predictions:
    """``(client, x, *, seed=0, unseen=False) -> logits`` of the client's deployed model, on raw examples."""

    _features: Features | tuple[Features, ...] = Features()  # of pickles of older versions

    def __init__(self, deployed: DeployedModels, features: Features | tuple[Features, ...]) -> None:
        self._deployed, self._features = deployed, features

    def __call__(self, client: int, x: Any, *, seed: int = 0, unseen: bool = False) -> Array:
        of_seed = self._features
        if not isinstance(of_seed, Features):
            place = as_whole(seed)
            of_seed = of_seed[place] if place is not None and 0 <= place < len(of_seed) else Features()
        return self._deployed(client, seed=seed, unseen=unseen, x=stored_features(x, of_seed))

    def with_rows(self, federation: Federation) -> Predictions:
        """The same predictions with the run's federation, whose rows some models depend on when they are used."""
        return Predictions(self._deployed.with_rows(federation), self._features)


def stored_features(x: Any, features: Features) -> Array:
    """Raw examples as a run has them stored: a table's columns by name, then as ``features`` say."""
    # Traced arrays are shifted in float32.
    if len(getattr(x, "dims", ())) == 2 and labels_along(x, 1) is not None:  # of xarray
        x = x.to_pandas()
    if features.words is not None and type(x) in (list, tuple, np.ndarray) and np.asarray(x).dtype.kind in "OUS":
        if np.ndim(x) != 2 or np.shape(x)[1] != len(features.words):
            raise ValueError(f"expected rows of {len(features.words)} words and numbers, got shape {np.shape(x)}")
        x = dict(zip(features.names or (), np.asarray(x).T, strict=True))
    if features.names is not None and (isinstance(x, Mapping) or hasattr(x, "columns")):
        x = _columns_of(x, features.names, features.words)
    if features.shift is None and features.mean is None:
        return jnp.asarray(x)
    width = len(features.shift or features.mean or ())
    if np.ndim(x) < 1 or np.shape(x)[-1] != width:
        return jnp.asarray(x)  # the sentence about shapes comes from the call
    shift, mean = (
        np.zeros(width) if numbers is None else np.asarray(numbers) for numbers in (features.shift, features.mean)
    )
    std = np.ones(width) if features.std is None else np.asarray(features.std)
    try:
        values = np.asarray(x, np.float64)
    except jax.errors.TracerArrayConversionError:
        row = (1,) * (x.ndim - 1) + (width,)
        high = shift.astype(np.float32)
        parts = [numbers.astype(np.float32).reshape(row) for numbers in (high, shift - high, mean, std)]
        scaled = (x.astype(jnp.float32) - parts[0] - parts[1] - parts[2]) / parts[3]
        return scaled if features.mean is None else jnp.where(jnp.isnan(x), 0, scaled)
    scaled = ((values - shift).astype(np.float32).astype(np.float64) - mean) / std
    filled = scaled if features.mean is None else np.where(np.isnan(values), 0, scaled)
    return jnp.asarray(filled, jnp.float32)


def _columns_of(table: Any, names: tuple[Any, ...], words: tuple[Any, ...] | None) -> Any:
    """The columns of a pandas or polars table, an Arrow table or a mapping, ``[n, features]``."""
    there = list(table) if isinstance(table, Mapping) else list(getattr(table, "column_names", table.columns))
    if isinstance(table, Mapping):
        check_same_labels(0, {str(name): column for name, column in table.items()})
    lacking = [name for name in names if name not in there]
    if lacking:
        known = ", ".join(str(column) for column in names[:10]) + (", ..." if len(names) > 10 else "")
        raise ValueError(f"expected a table with the columns of the model ({known}), got none named {lacking[0]!r}")
    lengths = {np.shape(table[name]) for name in names}
    if len(lengths) > 1 or len(next(iter(lengths))) != 1:
        got = ", ".join(map(str, sorted(lengths)))
        raise ValueError(f"expected columns of one length, with one number for each row, got shapes {got}")
    columns = [_column(name, table[name], some) for name, some in zip(names, words or [None] * len(names), strict=True)]
    return (jnp if any(isinstance(column, jax.Array) for column in columns) else np).column_stack(columns)


def _column(name: Any, values: Any, words: tuple[str, ...] | None) -> Any:
    """A column as float64, or one-hot; traced numbers as they are."""
    if words is not None:
        return one_hot(values, words)
    try:
        if np.asarray(values).dtype.kind in "biufOUS":  # also nullable numbers, and numbers as text
            return as_numbers(values)
    except jax.errors.TracerArrayConversionError:
        return values
    except (TypeError, ValueError):
        pass
    raise ValueError(f"expected numbers in the column {name!r} of the model, got others")


@jit.program(static_argnames=("spec", "layout"))
def _common(spec: Spec, layout: Layout, inputs: Inputs, state: State, seed: Array) -> PyTree:
    algorithm = spec.algorithm(inputs.traced, trees.take(inputs.by_seed, seed))
    if algorithm.common is None:
        return None
    state_of_seed, zero = trees.take(state, seed), jnp.zeros((), jnp.int32)
    seat = Seat(state_of_seed.round, zero, zero, True)
    return algorithm.common(algorithm.down(state_of_seed.server, seat))


def common_models(deployed: DeployedModels) -> PyTree | None:
    """The common (global) model of each seed, ``[seeds, ...]``; None if the algorithm has none.

    Args:
      deployed: ``Result.deployed``.
    """
    (spec, inputs), state, seeds, precision = deployed.parts()
    layout = Layout(1, 1, 1, platform=ANY, precision=precision)
    models = [_common(spec, layout, inputs, state, jnp.int32(seed)) for seed in range(seeds)]
    return None if models[0] is None else jax.tree.map(lambda *rows: jnp.stack(rows), *models)


class Models(NamedTuple):
    """Trained models without the metrics and records of their run.

    Attributes:
      state: of all seeds; ``simulate(..., initial=state)`` continues from it.
      deployed: as ``Result.deployed``.
      predict: as ``Result.predict``.
    """

    state: State
    deployed: DeployedModels
    predict: Predictions


def restore(
    plan: Algorithm | Plan,
    federation: Federation,
    arrays: Mapping[str, np.ndarray],
    *,
    seeds: Seeds,
    precision: Precision = "default",
    rows: Callable[[], Federation] | None = None,
) -> Models:
    """The models of an earlier run, from the arrays of its state.

    Args:
      plan: the run's plan.
      federation: the run's federation.
      arrays: ``arrays_of(result.state)``.
      seeds: the run's seeds.
      precision: of predictions, the run's ``Execution.precision``.
      rows: reads the federation with its rows when a model needs them; ``federation`` then has placeholders in place of
        rows. None: ``federation`` has the rows.

    Raises:
      ValueError: if the arrays do not fit a state of this plan, or are of other seeds.
    """
    seeds = seeds_of(seeds)
    program.check_seeds(seeds, federation)
    spec, inputs = program.partition_plan(plan, federation)
    state = state_of(arrays, spec, Layout(1, 1, 1, platform=ANY), inputs, jnp.asarray(seeds, jnp.uint32))
    if rows is not None:
        inputs = inputs._replace(federation=without_rows(inputs.federation))
    deployed = DeployedModels((spec, inputs), state, len(seeds), 1, precision, rows)
    return Models(state, deployed, Predictions(deployed, federation.features))


def state_of(arrays: Mapping[str, np.ndarray], spec: Spec, layout: Layout, inputs: Inputs, seeds: Array) -> State:
    """The state of a run from its arrays by path (``arrays_of``), on one device."""
    arguments = spec, layout, inputs, seeds
    shapes: Any = None if eager.is_on() else program.start.trace(*arguments).out_info
    # Only a real key says how it was made.
    if shapes is None or any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(shapes)):
        shapes = program.start(*arguments)
    paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    if set(expected) != set(arrays):
        odd = sorted(set(expected) ^ set(arrays))[0]
        raise ValueError(f"expected the arrays of a state of this algorithm, got others; one that differs is {odd}")
    on_host = layout.client_states == "host"
    state = with_arrays(jax.tree.unflatten(structure, list(expected.values())), arrays, on_host)
    stored, wanted = np.asarray(state.seed).tolist(), np.asarray(seeds).tolist()
    if stored != wanted:
        raise ValueError(f"expected the seeds of the state, {stored}, got {wanted}")
    return state


def _packed(spec: Spec, inputs: Inputs) -> bytes | str:
    """A pickled plan, or a sentence with the reason if the plan cannot be pickled."""
    # The arguments themselves, since their tree structure cannot be pickled.
    value = (spec._replace(structure=None, static=()), jax.tree.unflatten(spec.structure, spec.static), inputs)
    try:
        return pickle.dumps(value)
    except Exception as error:
        reason = str(error)
    try:
        return importlib.import_module("cloudpickle").dumps(value)
    except ImportError:
        return f"expected functions of the plan that can be imported, or the package cloudpickle, got: {reason}"
    except Exception as error:
        return f"expected a plan that can be pickled, got: {error}"


def _unpacked(packed: bytes | str) -> tuple[Spec, Inputs]:
    if isinstance(packed, str):
        raise ValueError(f"this result was pickled without its models: {packed}")
    try:
        spec, arguments, inputs = pickle.loads(packed)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"this result's models need the code that trained them, which cannot be imported: {error}"
        ) from error
    except Exception as error:  # what an object's own code raises, such as a jax.custom_vjp of the user's
        raise ValueError(
            f"this result's models cannot be read from the pickle: {type(error).__name__}: {error}"
        ) from error
    leaves, structure = jax.tree.flatten(arguments)
    return spec._replace(structure=structure, static=tuple(leaves)), inputs


_PREFIXES = {"client": "", "unseen": "unseen_"}
_ROWS = 64  # made rows of each class, or of a task without classes
_MOST = 2**20  # numbers in made rows, and in the matrices of all clients
_MISTAKES = (NameError, AttributeError, TypeError, ImportError, KeyError, IndexError, NotImplementedError)
_NAMED = 5  # clients in a sentence


def check_scores(scores: Sequence[Score], task: Task, federation: Federation) -> None:
    """Raises a ValueError if a score needs classes and the task has none, or a function fails on any rows."""
    for score in scores:
        if task.classes is None and not score.is_own:
            raise ValueError(
                f"expected a task of classes for the score {score.name}, got one with classes = None; a function "
                "of one's own, (labels, outputs) -> float, takes any task"
            )
        if score.wants == "matrix" and (size := federation.clients.id.shape[-1] * (task.classes or 0) ** 2) > _MOST:
            raise ValueError(f"expected at most {_MOST:,} numbers (clients x classes^2) of {score.name}, got {size:,}")
    own = [score for score in scores if SCORES.get(score.name) is not score]
    rows = _made_rows(task, federation) if own else None
    if rows is None:
        return
    for score in own:
        try:
            value_of(score, rows[0], rows[1], rare=0)
        except NoValue as error:
            told, cause = NoValue(score.name, f"{len(rows[0])} made rows", error.got), error.__cause__
            row = isinstance(cause, IndexError) and re.search(r"axis 0|(list|tuple) index|positional", str(cause))
            if cause is None or (isinstance(cause, _MISTAKES) and not row):
                raise told from cause
            warnings.warn(f"{told}; the run goes on, as its rows may differ", RuntimeWarning, stacklevel=1)


def _made_rows(task: Task, federation: Federation) -> tuple[np.ndarray, np.ndarray] | None:
    """Labels with all classes and probabilities; without classes real rows and the untrained model's outputs."""
    draw, examples = np.random.default_rng(0), federation.examples
    if task.classes is not None:
        count = max(2, min(_ROWS * task.classes, _MOST // task.classes))
        made = probabilities(draw.normal(size=(count, task.classes)))
        return (np.arange(count) % task.classes).astype(examples.y.dtype), made
    x, y = (np.asarray(leaf[:_ROWS]) for leaf in (examples.x, examples.y))
    try:
        outputs = jax.jit(lambda key, x: task.logits(task.init(key), prepare(task, x)))(jax.random.key(0), x)
    except jax.errors.UnexpectedTracerError:  # what the builder of a plan made
        return None
    return y, np.asarray(outputs)


class Scoring(NamedTuple):
    """The scores of some runs; nothing is computed if there are none."""

    scores: tuple[Score, ...]
    rounds: int | None  # between two evaluations that have scores; None: only the last one has
    offset: int  # evaluations are so much after multiples of ``rounds``, if a run goes on between two
    classes: int | None
    runs: int
    sizes: Mapping[str, int]  # the number of clients by dimension, "client" and maybe "unseen"
    names: Names
    failed: dict[tuple[str, str], str]  # by score and client, what a function of one's own did; it grows during the run

    @classmethod
    def of(cls, schedule: Schedule, first: int, task: Task, federation: Federation, runs: int, names: Names) -> Scoring:
        """The scores that a schedule from round ``first`` on asks for."""
        every = schedule.score_every
        if every is not None and every < 1:
            raise ValueError(f"expected score_every to be a positive number of evaluations, got {every}")
        check_scores(schedule.scores, task, federation)
        rounds = None if every is None else every * schedule.spacing
        sizes = {"client": federation.clients.id.shape[-1]}
        if federation.unseen is not None:
            sizes["unseen"] = federation.unseen.id.shape[-1]
        return cls(schedule.scores, rounds, first % schedule.spacing, task.classes, runs, sizes, names, {})

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with a run that goes on."""
        if not self.scores:
            return {}
        names = [f"{score.name} by {function_name(score.compute)}" for score in self.scores]
        return {"scores": names, "score_every": self.rounds}

    def measured(self, run: Programs | OffloadRun, state: State, done: int, last: bool) -> dict[str, Labelled]:
        """The scores after ``done`` rounds, by name, ``[runs, ...]``; NaN if they are not due."""
        if not self.scores:
            return {}
        if last or self._due(done):
            return self._computed(run, state, done)
        scores: dict[str, Labelled] = {}
        for dimension, size in self.sizes.items():
            none = Predicted(np.zeros((size, 0, self.classes or 1)), np.zeros((size, 0)), *np.zeros((2, size), int))
            for name, value in scores_of_clients(self.scores, none).items():
                values = np.full((self.runs, *np.shape(value)), np.nan, np.asarray(value).dtype)
                scores[_PREFIXES[dimension] + name] = _labelled(dimension, values)
        return scores

    def at_end(
        self, run: Programs | OffloadRun, state: State, done: int, scores: dict[str, Labelled]
    ) -> dict[str, Labelled]:
        """The evaluation ``scores`` of a run that was stopped after it, with its scores."""
        return scores if self._due(done) or not self.scores else scores | self._computed(run, state, done)

    def _due(self, done: int) -> bool:
        return self.rounds is not None and (done - self.offset) % self.rounds == 0

    def _computed(self, run: Programs | OffloadRun, state: State, done: int) -> dict[str, Labelled]:
        if isinstance(run, Programs):
            made = predictions(run.spec, run.layout, run.inputs, state, jnp.int32(done))
        else:
            made = run.predictions(state)
        of_all: dict[str, Predicted] = jax.tree.map(np.asarray, made)
        rare = rare_class(list(of_all.values())) if self.classes else None  # one for all seeds and clients
        scores: dict[str, Labelled] = {}
        for dimension, predicted in of_all.items():
            note = functools.partial(self._note, dimension)
            of_each = [Predicted(*(leaf[place] for leaf in predicted)) for place in range(self.runs)]
            of_runs = [scores_of_clients(self.scores, each, rare, self.classes is not None, note) for each in of_each]
            for name in of_runs[0]:
                values = np.array([part[name] for part in of_runs])
                scores[_PREFIXES[dimension] + name] = _labelled(dimension, values)
        return scores

    def _note(self, dimension: str, score: str, client: int | None, got: str) -> None:
        """Remembers that a client of a population (None: all of them together) has no value."""
        names = self.names.clients if dimension == "client" else self.names.unseen
        whose = f"{'unseen ' * (dimension == 'unseen')}client {client if names is None else names[client or 0]}"
        self.failed.setdefault((score, "all test rows" if client is None else whose), got)

    def notes(self, known: int = 0) -> dict[str, str]:
        """A sentence by score on the clients without a value, but for the first ``known`` of them."""
        by_score: dict[str, list[tuple[str, str]]] = {}
        for (score, whose), got in list(self.failed.items())[known:]:
            by_score.setdefault(score, []).append((whose, got))
        return {score: _no_values(score, failed) for score, failed in by_score.items()}

    def described(self, metrics: xr.Dataset) -> xr.Dataset:
        """Results whose scores say their ``long_name``, whether ``lower`` (0 or 1) is better, and who ``failed``."""
        lower, failed = {score.name: int(score.lower) for score in self.scores}, self.notes()
        for name, sentence in sentences_of(self.scores).items():
            for variable in (name, f"unseen_{name}"):
                if variable in metrics:
                    score = name.split("score_", 1)[1]
                    about = {"long_name": sentence, "lower": lower[score]}
                    about |= {"failed": failed[score]} if score in failed else {}
                    metrics[variable] = metrics[variable].assign_attrs(about)
        return metrics


def _labelled(dimension: str, values: np.ndarray) -> Labelled:
    """A score ``[runs]``, ``[runs, clients]`` or ``[runs, clients, C, C]``."""
    return Labelled(values, (dimension, "label", "predicted")[: values.ndim - 1])


def _no_values(score: str, failed: Sequence[tuple[str, str]]) -> str:
    """A sentence on clients for which a function of one's own has no value, and what it did for the first of them."""
    more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    return f"{NoValue(score, ', '.join(whose for whose, _ in failed[:_NAMED]) + more, failed[0][1])}; it is NaN there"
