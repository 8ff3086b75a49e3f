"""Tables of contributions with named dimensions, since a plain one does not say whether rows are rounds or seeds.

Error bars are over seeds, of one number or of K numbers at once. What seeds redraw (the partition, initial weights, the
noise of training) decides what a bar is about. Say it beside it.
"""

from __future__ import annotations

import math
import pathlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Real

from fljax.contributions.solutions import Numbers
from fljax.core.names import did_you_mean, is_labelled, plain, shown, unknown

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


LEAST_SEEDS = 5  # with fewer seeds bounds say next to nothing, and rest on the normal distribution alone
METHODS = ("bonferroni", "max_t", "hoeffding")
_DRAWS, _NUMBERS = 4_000, 2_000_000  # resamples in all, and numbers of those that are in memory at a time
_ROWS = 100  # rows of a resample: more change its quantiles by a hundredth
_ROUNDING = 1e-12  # relative to the largest value


class ErrorBars(NamedTuple):
    """The mean over seeds and its t-interval, each ``[...]``.

    Attributes:
      mean: over the seeds.
      error: the standard error ``sd / sqrt(R)`` of the mean over R seeds.
      low: ``mean - t error``, with the quantile t of Student's distribution with R - 1 degrees of freedom.
      high: ``mean + t error``.
    """

    mean: Float[np.ndarray, ...]
    error: Float[np.ndarray, ...]
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]


def error_bars(values: Numbers, level: float = 0.95) -> ErrorBars:
    """``mean +- t_{R-1} sd / sqrt(R)`` over R seeds; the bars of one seed are NaN.

    Args:
      values: ``[R, ...]``, one row for each seed; contributions ``[R, N]``, for example.
      level: of the two-sided interval, between 0 and 1.

    Returns:
      Arrays ``[...]``. A NaN in a seed makes its entries NaN.

    Raises:
      ValueError: if there is no seed, or ``level`` is not between 0 and 1.
    """
    table = np.asarray(plain(values), float)
    if not table.ndim or not len(table):
        raise ValueError(f"expected values of at least one seed on the first axis, got shape {table.shape}")
    if not 0 < level < 1:
        raise ValueError(f"expected a level between 0 and 1, got {level}")
    seeds, mean = len(table), table.mean(axis=0)
    if seeds == 1:
        unknown = np.full_like(mean, np.nan)
        return ErrorBars(mean, unknown, unknown, unknown)
    from scipy.stats import t as student  # late: it takes a quarter of a second

    error = np.sqrt(np.sum((table - mean[None]) ** 2, axis=0) / (seeds - 1) / seeds)
    half = student.ppf((1 + level) / 2, seeds - 1) * error
    return ErrorBars(mean, error, mean - half, mean + half)


def wins(values: Numbers) -> Float[np.ndarray, "N N"]:
    """``[i, j]``: the share of the seeds in which client i has more than client j.

    A tie is a win of neither. Seeds in which one of the two is NaN do not count; without another seed the share is NaN.

    Args:
      values: ``[R, N]``.

    Raises:
      ValueError: if ``values`` has not two axes.
    """
    table = np.asarray(plain(values), float)
    if table.ndim != 2:
        raise ValueError(f"expected values by seed and client, got shape {table.shape}")
    first, second = table[:, :, None], table[:, None, :]
    known = np.sum(~(np.isnan(first) | np.isnan(second)), axis=0)
    return np.where(known > 0, np.sum(first > second, axis=0) / np.maximum(known, 1), np.nan)


class Bounds(NamedTuple):
    """Bounds of K means over seeds that hold at once.

    Attributes:
      mean: ``[K]``.
      error: ``[K]``, the standard errors ``sd / sqrt(R)``; 0 where all seeds agree, up to rounding.
      low: ``[K]``.
      high: ``[K]``.
      critical: the c of ``mean +- c error``; NaN for "hoeffding".
    """

    mean: Float[np.ndarray, " K"]
    error: Float[np.ndarray, " K"]
    low: Float[np.ndarray, " K"]
    high: Float[np.ndarray, " K"]
    critical: float


def simultaneous_bounds(
    values: Numbers,
    confidence: float = 0.95,
    *,
    method: str = "bonferroni",
    span: tuple[float, float] | None = None,
    seed: int = 0,
) -> Bounds:
    """Bounds of K means over R seeds: with probability ``confidence`` no mean is above ``high``; likewise for ``low``.

    With ``alpha = 1 - confidence``:

    - "bonferroni": ``mean +- c sd / sqrt(R)`` with ``c = t_{R-1, 1 - alpha / K}``, for values whose means are normal.
    - "max_t": the same with a c that is smaller where values are correlated: the quantile ``1 - alpha`` of
      ``max_k |mean*_k - mean_k| / error*_k``, but no more than Bonferroni's. Each resample ``*`` has R rows, which are
      sums of the seeds' deviations with normal weights (a multiplier bootstrap); a single value has Student's
      distribution then. Drawing seeds again would give bounds that are too narrow for few seeds and many values.
    - "hoeffding": ``mean +- (b - a) sqrt(log(K / alpha) / (2 R))`` for values in ``[a, b]``, of any distribution.

    A value that is equal in all seeds has no error, and its bounds are its mean ("bonferroni" and "max_t").

    Args:
      values: ``[R, K]``, one row for each seed, at least 5.
      confidence: between 0 and 1.
      method: "bonferroni", "max_t" or "hoeffding".
      span: ``(a, b)``, between which all values are by definition; for "hoeffding" alone.
      seed: of the weights of "max_t".

    Raises:
      ValueError: for fewer than 5 seeds, values that are not finite or not inside ``span``, or an unknown method.

    Source: Dunn, "Multiple comparisons among means" (1961); Chernozhukov, Chetverikov and Kato, "Gaussian
    approximations and multiplier bootstrap for maxima of sums" (2013); Hoeffding, "Probability inequalities for sums of
    bounded random variables" (1963).
    """
    table = np.asarray(plain(values), float)
    _check_bounded(table, confidence, method, span)
    seeds, count = table.shape
    mean, alpha = table.mean(axis=0), 1 - confidence
    error = np.sqrt(np.sum((table - mean[None]) ** 2, axis=0) / (seeds - 1) / seeds)
    error = np.where(error <= _ROUNDING * np.abs(table).max(), 0.0, error)
    if span is not None:
        half = np.full(count, (span[1] - span[0]) * np.sqrt(np.log(count / alpha) / (2 * seeds)))
        return Bounds(mean, error, mean - half, mean + half, np.nan)
    from scipy.stats import t as student  # late: it takes a quarter of a second

    critical = float(student.ppf(1 - alpha / count, seeds - 1))
    if method == "max_t":
        largest = _largest_error(table - mean[None], error, confidence, np.random.default_rng(seed))
        critical = min(critical, largest)
    return Bounds(mean, error, mean - critical * error, mean + critical * error, critical)


def _largest_error(centred: np.ndarray, error: np.ndarray, confidence: float, drawn: np.random.Generator) -> float:
    """The quantile of the largest t-value of normal values that are correlated as these are."""
    seeds, rows = len(centred), min(len(centred), _ROWS)
    scaled = centred[:, error > 0] / error[error > 0]
    if not scaled.size:
        return 0.0
    # Rows times the root are normal, with the correlations of the values.
    root = np.linalg.qr(scaled, mode="r") / np.sqrt(seeds * (seeds - 1))
    largest = np.empty(_DRAWS)
    block = max(1, _NUMBERS // (rows * max(root.shape)))
    for begin in range(0, _DRAWS, block):
        count = min(block, _DRAWS - begin)
        sample = drawn.normal(size=(count, rows, len(root))) @ root
        means, spread = sample.mean(axis=1), sample.std(axis=1, ddof=1)
        largest[begin : begin + count] = np.abs(means / spread).max(axis=1) * np.sqrt(rows)
    return float(np.quantile(largest, confidence))


def _check_bounded(table: np.ndarray, confidence: float, method: str, span: tuple[float, float] | None) -> None:
    if table.ndim != 2 or not table.shape[1]:
        raise ValueError(f"expected values by seed and at least one column, got shape {table.shape}")
    if len(table) < LEAST_SEEDS:
        raise ValueError(f"expected at least {LEAST_SEEDS} seeds for bounds, got {len(table)}")
    if not np.isfinite(table).all():
        raise ValueError("expected finite values for bounds, got some that are not")
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence between 0 and 1, got {confidence}")
    if method not in METHODS:
        raise ValueError(unknown("method", method, METHODS))
    if (span is not None) != (method == "hoeffding"):
        wants = "a span (a, b) of all values" if span is None else "a span for the method 'hoeffding' alone"
        raise ValueError(f"expected {wants}, got span {span} for {method!r}")
    if span is not None and not (span[0] < span[1] and span[0] <= table.min() and table.max() <= span[1]):
        raise ValueError(f"expected values in the span {span}, got some from {table.min():g} to {table.max():g}")


DIMENSIONS = ("seed", "round", "client")
VALUE = "contribution"
_UNSEEN = -1  # in place of the id of a client that contributes nothing


class Labels(NamedTuple):
    """What a run calls its seeds, rounds and clients.

    Attributes:
      seeds: of the run.
      rounds: their number; None: unknown.
      clients: the names of clients, one tuple for each seed; None in place of a tuple: they have ids only.
      unseen: the names of unseen clients, as ``clients``. A table may have them, since seeds draw others.
    """

    seeds: Sequence[int]
    rounds: int | None = None
    clients: Sequence[tuple[Any, ...] | None] = ()
    unseen: Sequence[tuple[Any, ...] | None] = ()


def by_seed(
    table: xr.DataArray | pd.Series | pd.DataFrame, population: int, labels: Labels
) -> Real[np.ndarray, "seeds *rounds N"]:
    """The numbers of a table for every seed of a run, by round up to its last row if it has rounds, by client id."""
    # A DataArray has the dimension ``client``, and ``round`` and ``seed`` where numbers differ by them; a Series has
    # these names of its index, a DataFrame has them and ``contribution`` as columns. Without coordinates, places are
    # ids, rounds from 0, and the run's seeds in order. The coordinate ``client`` has names of clients or ids. ``seed``
    # has the run's seeds; others are left out, as are names of unseen clients. ``round`` has rounds, the first one 0; a
    # row holds until the next round in the table, and the last row to the end.
    array = _array_of(table)
    dims = [str(name) for name in array.dims]
    for name in dims:
        if name not in DIMENSIONS:
            raise ValueError(f"{unknown('dimension', name, DIMENSIONS)} of contributions")
    if "client" not in dims:
        raise ValueError(f"expected contributions with the dimension client, got {', '.join(dims) or 'one number'}")
    if array.dtype.kind not in "iuf":
        raise ValueError(f"expected contributions to be numbers, got {array.dtype}")
    values = array.transpose(*(name for name in DIMENSIONS if name in dims)).values
    if "seed" in dims:
        values = values[_places_of_seeds(_coordinate(array, "seed"), array.sizes["seed"], labels.seeds)]
    else:
        values = np.broadcast_to(values, (len(labels.seeds), *values.shape))
    if "round" in dims:
        values = values[:, _places_of_rounds(_coordinate(array, "round"), array.sizes["round"], labels.rounds)]
    clients = _coordinate(array, "client")
    if clients is None and values.shape[-1] != population:
        raise ValueError(f"expected contributions of {population} clients, got {values.shape[-1]}")
    if clients is not None:
        nameless = [None] * len(labels.seeds)
        names = list(zip(labels.clients or nameless, labels.unseen or nameless, strict=True))
        places = {pair: _places_of_clients(clients, pair[0], pair[1], population) for pair in dict.fromkeys(names)}
        values = np.stack([row[..., places[pair]] for row, pair in zip(values, names, strict=True)])
    return values.astype(jnp.result_type(float))


def by_round(contribution: Any) -> Any:
    """The numbers of a table of one seed, ``[N]`` or ``[rounds, N]``, for builders; other values as they are."""
    if not is_labelled(contribution) and not hasattr(contribution, "dims"):
        return contribution
    array = _array_of(contribution)
    if "seed" in array.dims:
        raise ValueError(
            "expected contributions with the dimensions round and client, since a builder makes one seed's algorithm, "
            "got seed; fljax.compare takes all three"
        )
    return by_seed(array, array.sizes.get("client", 0), Labels((0,)))[0]


def read_table(path: str) -> xr.DataArray:
    """The contributions in a CSV file with the columns client, contribution, and round and seed if it has them."""
    import pandas as pd

    form: dict[str, Any] = {"dtype": str, "keep_default_na": False, "skipinitialspace": True, "index_col": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a row that is longer than the line of names
            frame = pd.read_csv(path, encoding="utf-8-sig", **form)
    except OSError as error:
        raise ValueError(f"expected a CSV file of contributions, got {path!r} ({error.strerror or error})") from None
    except (ValueError, pd.errors.ParserWarning) as error:  # also of an empty file, and of bytes that are no text
        words = " ".join(str(error).split())
        raise ValueError(f"expected a CSV file of contributions, got {path!r} ({words})") from None
    try:
        array = _of_frame(frame)
        wrong = ~(np.isfinite(array.values) & (array.values >= 0))
        if wrong.any():
            raise ValueError(f"expected contributions to be finite and at least 0, got {array.values[wrong][0]}")
    except ValueError as error:
        raise ValueError(f"{pathlib.Path(path).name}: {error}") from None
    return array


def _array_of(table: Any) -> xr.DataArray:
    """A DataArray of one of xarray or pandas, which calls an index without a name ``index``: it is of clients."""
    import xarray as xr

    if hasattr(table, "index") and not hasattr(table, "dims"):
        is_long = hasattr(table, "columns") and not {*DIMENSIONS} & {*table.index.names}
        long = table if is_long else (table if hasattr(table, "columns") else table.rename(VALUE)).reset_index()
        return _of_frame(long.rename(columns={"index": "client"}))
    if not isinstance(table, xr.DataArray):
        raise ValueError(f"expected contributions as an xarray.DataArray, got a {type(table).__name__}")
    return table


def _of_frame(frame: Any) -> xr.DataArray:
    """A long table, one row for each combination, as an array over the columns that it has."""
    columns = [str(column) for column in frame.columns]
    for column in columns:
        if column not in (*DIMENSIONS, VALUE):
            raise ValueError(unknown("column", column, (*DIMENSIONS, VALUE)))
    lacking = [column for column in ("client", VALUE) if column not in columns]
    if lacking:
        raise ValueError(f"expected the columns client and contribution, got no {' and no '.join(lacking)}")
    if not len(frame):
        raise ValueError("expected a row for each client, got none")
    dims = [column for column in DIMENSIONS if column in columns]
    labels = [[_label(column, label) for label in frame[column].tolist()] for column in dims]
    places = [{label: place for place, label in enumerate(dict.fromkeys(values))} for values in labels]
    shape = tuple(map(len, places))
    at = [np.array([of[label] for label in values]) for of, values in zip(places, labels, strict=True)]
    flat, rows, counts = np.unique(np.ravel_multi_index(at, shape), return_index=True, return_counts=True)
    where = f"expected one contribution for each {', '.join(dims)}, got"
    if counts.max() > 1:
        twice = [values[rows[counts.argmax()]] for values in labels]
        raise ValueError(f"{where} {_named(dims, twice)} twice")
    if len(flat) < math.prod(shape):
        absent = np.flatnonzero(np.append(flat, -1) != np.arange(len(flat) + 1))[0]
        lacking = [list(of)[place] for of, place in zip(places, np.unravel_index(absent, shape), strict=True)]
        raise ValueError(f"{where} none for {_named(dims, lacking)}")
    values = np.array([_number(value) for value in frame[VALUE].tolist()])[rows].reshape(shape)
    import xarray as xr

    return xr.DataArray(values, dict(zip(dims, map(list, places), strict=True)), dims)


def _label(name: str, label: Any) -> Any:
    """A label in a column; seeds and rounds are whole numbers."""
    number = label if name == "client" else _as_id(label)
    if number is None:
        raise ValueError(f"expected the column {name} to hold whole numbers of at least 0, got {shown(label)}")
    return number


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"expected contributions to be numbers, got {shown(value)}") from None


def _named(dims: Sequence[str], labels: Sequence[Any]) -> str:
    return ", ".join(f"{name} {label}" for name, label in zip(dims, labels, strict=True))


def _coordinate(table: xr.DataArray, name: str) -> list[Any] | None:
    """The labels along a dimension; None if it has none."""
    if name not in table.coords:
        return None
    labels = np.atleast_1d(table.coords[name].values).tolist()
    if len(set(labels)) < len(labels):
        raise ValueError(
            f"expected different labels of {name}, got {shown(next(e for e in labels if labels.count(e) > 1))} twice"
        )
    return labels


def _places_of_seeds(listed: list[Any] | None, size: int, seeds: Sequence[int]) -> list[int]:
    if listed is None:
        if size != len(seeds):
            raise ValueError(f"expected contributions of {len(seeds)} seeds, got {size}")
        return list(range(size))
    for seed in seeds:
        if seed not in listed:
            raise ValueError(f"expected contributions of the seeds {_some(seeds)}, got none of {seed}")
    return [listed.index(seed) for seed in seeds]


def _places_of_rounds(rows: list[Any] | None, size: int, rounds: int | None) -> np.ndarray:
    """The row of each round: the last one that is not later. Rounds after the last row are left out."""
    if size == 0:
        raise ValueError("expected contributions of at least one round, got none")
    starts = np.asarray(range(size) if rows is None else rows)
    if starts.dtype.kind not in "iu" or starts.min() != 0:
        got = shown(starts.min().item() if starts.dtype.kind in "iuf" else starts[0].item())
        raise ValueError(f"expected rounds to be whole numbers from 0 on, got {got} as the first one")
    order = np.argsort(starts)
    last = int(starts.max()) + 1
    asked = np.arange(last if rounds is None else min(last, max(rounds, 1)))
    return order[np.searchsorted(starts[order], asked, side="right") - 1]


def _places_of_clients(
    labels: list[Any], names: tuple[Any, ...] | None, unseen: tuple[Any, ...] | None, population: int
) -> list[int]:
    """The place in a table of each client by id; labels are names of clients if all of them are, else ids."""
    by_name = {str(name): id for id, name in enumerate(names or ())}
    known = dict.fromkeys(map(str, unseen or ()), _UNSEEN) | by_name
    as_names = [known.get(str(label)) for label in labels]
    as_ids = [None if (id := _as_id(label)) is None or id >= population else id for label in labels]
    if None not in (*as_names, *as_ids) and as_names != as_ids and not any(isinstance(label, str) for label in labels):
        raise ValueError(
            f"expected labels of clients that are names or ids, got {_some(labels)}, which are both and differ; names "
            "can be written as text, and values without the coordinate client are by id"
        )
    ids = as_ids if None in as_names and as_names.count(None) >= as_ids.count(None) else as_names
    if None in ids:
        label = labels[ids.index(None)]
        valid = f"ids from 0 to {population - 1}" + (f" or names ({_some(list(by_name))})" if by_name else "")
        question = did_you_mean(str(label), by_name)
        raise ValueError(f"expected the labels of clients to be {valid}, got {shown(label)}{question}")
    places = {id: place for place, id in enumerate(ids) if id != _UNSEEN}
    for id in range(population):
        if id not in places:
            label = id if names is None else names[id]
            raise ValueError(f"expected contributions of all {population} clients, got none of {shown(label)}")
    return [places[id] for id in range(population)]


def _as_id(label: Any) -> int | None:
    """A label as a whole number of at least 0; None if it is none."""
    if isinstance(label, bool | np.bool_):
        return None
    if isinstance(label, int | np.integer):
        return int(label) if label >= 0 else None
    text = label.strip() if isinstance(label, str) else ""
    return int(text) if text.isascii() and text.isdigit() else None


def _some(labels: Sequence[Any]) -> str:
    return ", ".join(map(str, labels[:5])) + (", ..." if len(labels) > 5 else "")
