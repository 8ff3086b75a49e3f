"""Where clients who respond to each other come to rest, and what they contribute there.

See ``fljax.theory.game`` for the game. Source: IAFL, section 4.1 and propositions 1 and 3.

What comes out differs from what proposition 3 suggests in one respect. The relative rule has more than one symmetric
equilibrium: every total contribution from ``p*`` with ``g'(p*) = c`` (the one that the proposition constructs) to the
one with ``g'(.) = c / N`` is one, since at a tie contributing less costs reward and contributing more earns none
(``relative_equilibria``). Clients who raise their contributions together in small steps, from nothing, stop at the
lowest; others end higher. Under equation (1) the place of rest does not depend on the way there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax.theory.game import (
    Game,
    best_response,
    best_responses,
    contribution_at,
    descent,
    deviation_gains,
    saturating,
    utilities,
)

ORDERS = ("sequential", "simultaneous")


class Equilibrium(NamedTuple):
    """Where iterated best responses ended.

    contribution: ``p``, ``[N]``.
    total: the sum of contributions.
    utility: ``[N]``.
    gain: the largest utility that anybody could gain by deviating alone (``deviation_gains``).
    sweeps: how often all clients responded.
    converged: whether the last responses moved nobody by more than the tolerance.
    """

    contribution: Array
    total: Array
    utility: Array
    gain: Array
    sweeps: Array
    converged: Array


def nash(
    game: Game,
    start: ArrayLike,
    *,
    order: str = "sequential",
    damping: ArrayLike | None = None,
    sweeps: int = 500,
    tolerance: float = 1e-6,
) -> Equilibrium:
    """Iterates best responses until nobody moves: then ``contribution`` is a Nash equilibrium.

    It need not converge, and there may be several equilibria: read ``converged`` and ``gain``. Runs under ``jax.jit``
    and ``jax.vmap`` (over starts, costs, ceilings, kappa).

    Args:
      game: the game.
      start: contributions to begin with, ``[N]``.
      order: "sequential": one client after the other, each knowing what those before it did; "simultaneous": all
        at once.
      damping: of simultaneous responses: ``p <- p + damping (response - p)``, in (0, 1]; None: ``1 / N``, with which
        plain federated learning settles at once. More may overshoot back and forth for ever, since all see at the
        same time that the others do much, or little.
      sweeps: at most so many.
      tolerance: of a client's last move, in units of contribution.

    Raises:
      ValueError: for another order, or contributions that are not of shape ``[N]``.
    """
    if order not in ORDERS:
        raise ValueError(f"expected an order, got {order!r}; valid names are {', '.join(ORDERS)}")
    first = jnp.asarray(start, float)
    if first.ndim != 1 or not first.size:
        raise ValueError(f"expected contributions of shape [clients], got {first.shape}")

    def one_by_one(p: Array) -> Array:
        return jax.lax.fori_loop(0, len(p), lambda i, p: p.at[i].set(best_response(game, p, i)), p)

    def together(p: Array) -> Array:
        step = jnp.asarray(1 / len(p) if damping is None else damping, p.dtype)
        return p + step * (best_responses(game, p) - p)

    respond: Callable[[Array], Array] = one_by_one if order == "sequential" else together

    def unsettled(state: tuple[Array, Array, Array]) -> Array:
        _, moved, count = state
        return (moved > tolerance) & (count < sweeps)

    def sweep(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        p, _, count = state
        after = respond(p)
        return after, jnp.abs(after - p).max(), count + 1

    begin = (first, jnp.asarray(jnp.inf, first.dtype), jnp.int32(0))
    p, moved, count = jax.lax.while_loop(unsettled, sweep, begin)
    gain = deviation_gains(game, p).max()
    return Equilibrium(p, p.sum(), utilities(game, p), gain, count, moved <= tolerance)


def symmetric_equilibrium(
    clients: int,
    *,
    cost: ArrayLike,
    ceiling: ArrayLike,
    kappa: ArrayLike = 0.0,
    benefit: Callable[[Array], Array] = saturating,
    upper: float = 10.0,
) -> Array:
    """What each of N equal clients contributes in the symmetric equilibrium of IAFL's equation (1).

    The root p of ``g'(x) (1 + (1 - kappa) (N - 1) s) = c`` with ``s = (p / p_ceil)^(1 - kappa)`` and ``x = p (1 + (N -
    1) s)``. Where the left side is still above c at the ceiling, the ceiling itself, since beyond it only ``g'(x)``
    counts; and where that is above c as well, the p above the ceiling with ``g'(N p) = c``: a ceiling that low is no
    incentive. For c of ``g'(0)`` or more, contributing nothing is an equilibrium too, and the one that is returned may
    be either.

    Args:
      clients: N.
      cost: c, below ``g'(0)``.
      ceiling: ``p_ceil``, above 0.
      kappa: in [0, 1]; 1 is plain federated learning with the total ``p*`` of one client alone.
      benefit: g; the left side must fall to c once, as it does for the default.
      upper: no contribution above it is considered.

    Returns:
      A scalar; ``jax.vmap`` it over costs, ceilings or kappa.
    """
    c, top, keep = (jnp.asarray(value, float) for value in (cost, ceiling, 1 - jnp.asarray(kappa)))
    slope = jax.grad(benefit)
    others = clients - 1

    def below(p: Array) -> Array:
        s = (p / top) ** keep
        return slope(p * (1 + others * s)) * (1 + keep * others * s) - c

    below_ceiling = descent(below, jnp.zeros_like(c), top)
    beyond = contribution_at(benefit, c, clients * upper) / clients
    return jnp.where(below(top) > 0, jnp.maximum(top, beyond), below_ceiling)


def relative_equilibria(
    clients: int, *, cost: ArrayLike, benefit: Callable[[Array], Array] = saturating, upper: float = 10.0
) -> tuple[Array, Array]:
    """The lowest and the highest total contribution of N equal clients in a symmetric equilibrium of the relative rule.

    ``g'(total) = c``: what one client alone contributes (IAFL, proposition 3), ``-log(c)`` for the default benefit; and
    ``g'(total) = c / N``, ``-log(c) + log(N)``. Every total between them, evenly divided, is an equilibrium: at a tie
    the slope of a client's utility is ``N g'(total) - c >= 0`` below and ``g'(total) - c <= 0`` above.

    Args:
      clients: N.
      cost: c, any shape.
      benefit: g.
      upper: no contribution of a client above it is considered.

    Returns:
      Two arrays of the shape of ``cost``.
    """
    price = jnp.asarray(cost, float)
    return contribution_at(benefit, price, clients * upper), contribution_at(benefit, price / clients, clients * upper)
