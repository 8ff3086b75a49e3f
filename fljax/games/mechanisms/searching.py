"""Where a search looks for the numbers of a mechanism, and how it goes on from what it found.

Searches see points of a space of their own: an ``Interval`` is from 0 to 1 there, an entry of ``Around`` has the
standard deviation 1. They are functions of a seed and of the scores that they are told, so that a search that is
replayed with saved scores goes on to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

import numpy as np
import optax
from jaxtyping import Float

from fljax.core.values import as_number

Points = Float[np.ndarray, "candidate number"]


class Interval(NamedTuple):
    """A float between two ends, ``low <= x <= high``.

    Attributes:
      low: the lower end.
      high: the upper end.
      log: whether equal ratios are equally far; ``low`` is positive then.
    """

    low: float
    high: float
    log: bool = False


class Around(NamedTuple):
    """An array of floats without bounds: ``start + scale z`` with numbers z of about 1.

    Attributes:
      start: of the array's shape; the first candidate.
      scale: positive, one number or one for each entry.
    """

    start: Any
    scale: Any = 1.0


class Space(NamedTuple):
    """The arguments that are searched; points are vectors with those of all of them, in their order."""

    over: Mapping[str, Interval | Around]

    @property
    def sizes(self) -> list[int]:
        """How many numbers each argument has."""
        return [1 if isinstance(part, Interval) else np.size(part.start) for part in self.over.values()]

    @property
    def bounds(self) -> Float[np.ndarray, "number 2"]:
        """The ends of each number."""
        ends = [(0.0, 1.0) if isinstance(part, Interval) else (-np.inf, np.inf) for part in self.over.values()]
        return np.repeat(np.array(ends).reshape(-1, 2), self.sizes, axis=0)

    @property
    def start(self) -> Float[np.ndarray, " number"]:
        """The middle of intervals, and the starts of arrays."""
        return np.where(np.isfinite(self.bounds[:, 0]), 0.5, 0.0)

    def drawn(self, generator: np.random.Generator, count: int) -> Points:
        """Points that cover the space: uniform in intervals, normal around starts."""
        shape = (count, len(self.bounds))
        return np.where(np.isfinite(self.bounds[:, 0]), generator.uniform(size=shape), generator.normal(size=shape))

    def arguments(self, points: Points) -> dict[str, Float[np.ndarray, "candidate ..."]]:
        """The arguments ``[candidate, ...]`` of points, in single precision."""
        found: dict[str, Float[np.ndarray, "candidate ..."]] = {}
        parts = np.split(points, np.cumsum(self.sizes, dtype=int), axis=1)[:-1]
        for (name, part), values in zip(self.over.items(), parts, strict=True):
            if isinstance(part, Interval):
                share = values[:, 0]
                between = part.low + (part.high - part.low) * share
                values = part.low * (part.high / part.low) ** share if part.log else between
                low, high = np.float32(part.low), np.float32(part.high)  # which may be outside by rounding
                low = np.nextafter(low, high) if float(low) < part.low else low
                high = np.nextafter(high, low) if float(high) > part.high else high
                found[name] = np.minimum(np.maximum(values.astype(np.float32), low), high)
            else:
                scaled = np.broadcast_to(np.asarray(part.scale, float), np.shape(part.start))
                moved = np.asarray(part.start, float) + scaled * values.reshape(-1, *np.shape(part.start))
                found[name] = moved.astype(np.float32)
        return found


def check_space(over: Mapping[str, Interval | Around]) -> Space:
    """The space; raises a ValueError for an interval or an array that is none."""
    if not over:
        raise ValueError("expected at least one argument to search, got none")
    for name, part in over.items():
        if isinstance(part, Interval):
            ends = [as_number(end) for end in (part.low, part.high)]
            if None in ends or not np.isfinite(part.low) or not part.low < part.high < np.inf:
                raise ValueError(f"expected an interval from a lower to a higher end for {name}, got {part}")
            if part.log and part.low <= 0:
                raise ValueError(f"expected a positive lower end for {name}, which is searched by ratios, got {part}")
        elif isinstance(part, Around):
            start, scale = np.asarray(part.start), np.asarray(part.scale)
            if start.dtype.kind not in "iuf" or not np.isfinite(start).all() or not start.size:
                raise ValueError(f"expected finite numbers to start from for {name}, got {part.start!r}")
            if scale.dtype.kind not in "iuf" or scale.shape not in ((), start.shape) or not np.all(scale > 0):
                raise ValueError(f"expected a positive scale, or one for each number of {name}, got {part.scale!r}")
        else:
            raise ValueError(f"expected an Interval or an Around for {name}, got {part!r}")
    return Space(over)


class Proposal(NamedTuple):
    """The candidates of one generation, and the one that the search would take if it ended here."""

    points: Points
    best: Float[np.ndarray, " number"] | None


# It yields proposals, and is sent the scores of their points, of which larger ones are better, and their gradients.
Search = Generator[Proposal, tuple[Float[np.ndarray, " candidate"], Any], None]


def cma(space: Space, seed: int, population: int) -> Search:
    """CMA-ES with restarts: first random points, then from the best of these; from others where it has converged.

    Source: Hansen and Ostermeier, "Completely derandomized self-adaptation in evolution strategies" (2001).
    """
    try:
        from cmaes import CMA
    except ImportError:
        told = "expected cmaes to search by CMA-ES, got none; install it (pip install 'fljax[design]')"
        raise ValueError(told) from None
    generator, bounds, place = np.random.default_rng(seed), space.bounds, 0
    count = len(bounds)
    # The library wants two numbers at least; one that nothing reads changes nothing else.
    wide = bounds if count > 1 else np.concatenate([bounds, [[-np.inf, np.inf]]])
    while True:
        points = space.drawn(generator, population)
        points[0] = space.start if place == 0 else points[0]
        scores, _ = yield Proposal(points, None)
        mean = np.zeros(len(wide))
        mean[:count] = points[int(np.argmax(scores))]
        if place == 0:  # arrays have a start, which is better than random numbers
            mean[:count] = np.where(np.isfinite(bounds[:, 0]), mean[:count], space.start)
        spread = 0.3 if np.isfinite(bounds).all() else 0.5
        strategy = CMA(mean, spread, bounds=wide, seed=seed + place, population_size=population)
        while not strategy.should_stop():
            asked = np.stack([strategy.ask() for _ in range(population)])
            scores, _ = yield Proposal(asked[:, :count], np.clip(strategy.mean[:count], *bounds.T))
            least = np.nan_to_num(scores, neginf=-1e300)  # of candidates that diverge
            strategy.tell([(point, -score) for point, score in zip(asked, least, strict=True)])
        place += 1


def random(space: Space, seed: int, population: int) -> Search:
    """Points drawn independently; the best one so far is among those of the next generation."""
    generator, best = np.random.default_rng(seed), space.start
    while True:
        points = space.drawn(generator, population)
        points[0] = best  # so that all that are compared have the same federations
        scores, _ = yield Proposal(points, best)
        best = points[int(np.argmax(scores))]


def gradient(space: Space, seed: int, population: int) -> Search:
    """Ascents by Adam from several points, in steps that shrink; then from the best of them and from others.

    Source: Kingma and Ba, "Adam: a method for stochastic optimization" (ICLR 2015).
    """
    generator, best = np.random.default_rng(seed), space.start
    adam = optax.adam(optax.exponential_decay(0.1, transition_steps=1, decay_rate=0.9))
    while True:
        points = space.drawn(generator, population)
        points[0], state = best, adam.init(np.zeros(points.shape, np.float32))
        for _ in range(50):
            scores, slopes = yield Proposal(points, best)
            best = points[int(np.argmax(scores))]
            # Where the penalty sets in, slopes are many times those before, which Adam would remember.
            length = np.maximum(np.linalg.norm(slopes, axis=1, keepdims=True), 1e-30)
            step, state = adam.update((-slopes / length).astype(np.float32), state)
            # Runs that diverge have no direction.
            points = np.where(np.isfinite(scores)[:, None], points + np.asarray(step, float), best)
            points = np.clip(points, *space.bounds.T)


class Kind(NamedTuple):
    """A search, and what it takes.

    Attributes:
      of: the search.
      staged: of so many candidates, the best one by its honest runs is played with lies. The others count less.
      times: its usual population, in units of that of CMA-ES.
      slopes: whether it reads gradients.
    """

    of: Callable[[Space, int, int], Search]
    staged: int = 1
    times: int = 1
    slopes: bool = False


SEARCHES = {
    "cma": Kind(cma),
    "random": Kind(random, staged=6, times=6),
    "gradient": Kind(gradient, slopes=True),
}
