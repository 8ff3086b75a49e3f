"""A table of payoffs: of every client in every profile of strategies that was played."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Real

# How far gains are rounded, relative to the largest payoff: runs have payoffs in single precision.
_OF_RUNS, _OF_WHOLE_NUMBERS = 2.0**-22, 2.0**-51


class PayoffTable(NamedTuple):
    """Payoffs by seed, profile and client. A profile says which strategy every client plays.

    All profiles of one seed share data, initial weights and random keys, so that differences within a seed are paired.
    """

    payoffs: Real[np.ndarray, "seed profile client"]
    """NaN where the run diverged."""
    choices: Int[np.ndarray, "profile client"]
    """The strategy of each client, as its place in ``strategies``."""
    strategies: tuple[str, ...]
    """Names of strategies; the honest one is the first."""
    seeds: tuple[int, ...]
    outside: Float[np.ndarray, "seed client"] | None = None
    """What each client gets if it does not join; unknown if None."""
    outside_is: str = "given"
    """Of what it is: "standalone" models, the "mechanism" with one member, or "given" numbers; "" if unknown."""
    names: tuple[str, ...] = ()
    """Names of the clients; empty: they have none but their ids."""

    @property
    def honest(self) -> int:
        """The place of the profile in which all clients are honest.

        Raises:
          ValueError: if no such profile was played.
        """
        places = np.flatnonzero((self.choices == 0).all(axis=1))
        if not len(places):
            raise ValueError("expected the profile in which everybody is honest, got a table without it")
        return int(places[0])

    @property
    def smallest(self) -> float:
        """The smallest payoff or outside option that is known."""
        return min(float(np.nanmin(values)) for values in (self.payoffs, self.outside) if values is not None)


def are_whole(payoffs: Real[np.ndarray, "*shape"]) -> bool:
    """Whether payoffs are whole numbers, as integers or in double precision: these are not rounded. NaN may be one."""
    if payoffs.dtype.kind in "iu":
        return True
    return payoffs.dtype == float and bool(np.all(np.isnan(payoffs) | (payoffs == np.rint(payoffs))))


def precision_of(payoffs: Real[np.ndarray, "*shape"]) -> float:
    """The precision ``eps`` of payoffs: single precision if it holds all of them, whatever their dtype."""
    # Runs compute in single precision by default, and tables have their results in double precision.
    if are_whole(payoffs):
        return float(np.finfo(float).eps)
    single = payoffs.astype(np.float32)
    return float(np.finfo(single.dtype if np.array_equal(single, payoffs, equal_nan=True) else payoffs.dtype).eps)


def rounding_of(*payoffs: Real[np.ndarray, " ..."]) -> float:
    """How much a gain may differ by rounding, if these are all payoffs."""
    relative = _OF_WHOLE_NUMBERS if all(map(are_whole, payoffs)) else _OF_RUNS
    return relative * max(float(np.abs(each).max()) for each in payoffs)


def as_precise_as(
    changed: Real[np.ndarray, "*shape"], payoffs: Real[np.ndarray, "*others"]
) -> Real[np.ndarray, "*shape"]:
    """Payoffs ``changed`` by costs, rounded to single precision if ``payoffs`` are such numbers."""
    single = precision_of(payoffs) == float(np.finfo(np.float32).eps)
    return changed.astype(np.float32).astype(changed.dtype) if single else changed
