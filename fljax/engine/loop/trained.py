"""A run's trained models as functions of a client; they can be pickled if the plan can."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fljax.core import trees
from fljax.core.labels import check_same_labels, labels_along
from fljax.core.platforms import ANY
from fljax.core.values import as_whole
from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout, Precision, on_one
from fljax.engine.offload.host_data import only_client
from fljax.engine.programs import jit, program
from fljax.engine.programs.program import Inputs, Plan, Spec
from fljax.engine.rounds.federations import by_id, with_least, without_rows
from fljax.engine.rounds.keys import Seeds, seeds_of
from fljax.engine.rounds.states import State, with_arrays
from fljax.protocol import Algorithm, Features, Federation, RowsAbsent, Seat


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
        if not isinstance(self._plan, tuple):
            self._plan = _unpacked(self._plan)
        spec, inputs = self._plan
        population = inputs.federation.unseen if unseen else inputs.federation.clients
        count = 0 if population is None else population.id.shape[-1]
        who, place = as_whole(client), as_whole(seed)
        if who is None or place is None or not 0 <= who < count or not 0 <= place < self._seeds:
            if unseen and not count:
                raise ValueError("expected unseen=True for a federation with unseen clients, got one without")
            advice = (
                "; names.clients.index(...) is the number of a client by its name" if isinstance(client, str) else ""
            )
            raise ValueError(
                f"expected a client below {count} and a position of a seed below {self._seeds}, "
                f"got {client!r}, {seed!r}{advice}"
            )
        row = inputs.federation.examples.x.shape[1:]
        sentence = f"expected x to be a batch of raw examples [b, {', '.join(map(str, row))}], got shape "
        is_scaled = inputs.federation.moments is not None  # by numbers for each entry of a row
        if x is not None and (x.ndim != 1 + len(row) or (is_scaled and x.shape[1:] != row)):
            raise ValueError(f"{sentence}{list(x.shape)}")
        # Uses the data as given and one copy of the state, so no copies of the data stay on other devices.
        at = self._state if self._devices == 1 else on_one(self._state)
        where = who
        if is_on_host(inputs, at):
            inputs, at = only_client(inputs, at, place, who, unseen)
            where = 0
        layout = Layout(1, 1, 1, platform=ANY, precision=self._precision)  # users may compile it for any platform
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
    if features.names is not None and (isinstance(x, Mapping) or hasattr(x, "columns")):
        x = _columns_of(x, features.names)
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
        return (x.astype(jnp.float32) - parts[0] - parts[1] - parts[2]) / parts[3]
    stored = (values - shift).astype(np.float32)
    return jnp.asarray((stored.astype(np.float64) - mean) / std, jnp.float32)


def _columns_of(table: Any, names: tuple[Any, ...]) -> Any:
    """The columns of a pandas or polars table, an Arrow table or a mapping, ``[n, columns]``."""
    there = list(table) if isinstance(table, Mapping) else list(getattr(table, "column_names", table.columns))
    if isinstance(table, Mapping):
        check_same_labels(0, {str(name): column for name, column in table.items()})
    lacking = [name for name in names if name not in there]
    if lacking:
        known = ", ".join(str(column) for column in names[:10]) + (", ..." if len(names) > 10 else "")
        raise ValueError(f"expected a table with the columns of the model ({known}), got none named {lacking[0]!r}")
    columns = [_column(name, table[name]) for name in names]
    lengths = {np.shape(column) for column in columns}
    if len(lengths) > 1 or len(next(iter(lengths))) != 1:
        got = ", ".join(map(str, sorted(lengths)))
        raise ValueError(f"expected columns of one length, with one number for each row, got shapes {got}")
    return (jnp if any(isinstance(column, jax.Array) for column in columns) else np).stack(columns, axis=1)


def _column(name: Any, values: Any) -> Any:
    """A column as float64; traced numbers as they are."""
    try:
        column = np.asarray(values)
        if column.dtype.kind in "biuf":
            return column.astype(np.float64)
        if column.dtype.kind in "OUS":  # nullable numbers, and numbers as text
            return column.astype(np.float64)
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


def is_on_host(inputs: Inputs, state: State) -> bool:
    """Whether examples or states of clients are on the host, as arrays of NumPy."""
    leaves = [inputs.federation.examples.x, *jax.tree.leaves(state.clients)]
    return any(isinstance(leaf, np.ndarray) for leaf in leaves)


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
