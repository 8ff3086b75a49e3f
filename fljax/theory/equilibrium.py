"""Equilibria of the contribution game: Nash equilibria by best responses, and symmetric ones in closed form.

See ``fljax.theory.game`` for the game. Source: IAFL, section 4.1 and propositions 1 and 3.

The results differ from proposition 3 in one respect. The relative rule has many symmetric equilibria
(``relative_equilibria``): every total contribution x with ``g'(x)`` between ``c`` and ``c / N`` is one. At a tie, a
client that contributes less loses reward, and a client that contributes more gains none. The proposition constructs
the lowest equilibrium, ``g'(p*) = c``. Clients that start at zero and raise their contributions together in small steps
stop there; other paths end at higher totals. Under equation (1) the equilibrium does not depend on the path.
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
    """The result of iterated best responses.

    contribution: ``p``, ``[N]``.
    total: the sum of contributions.
    utility: ``[N]``.
    gain: the largest utility that any client could gain by deviating alone (``deviation_gains``).
    sweeps: how often all clients responded.
    converged: whether no client moved by more than the tolerance in the last sweep.
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
    """Iterates best responses until no client moves; ``contribution`` is then a Nash equilibrium.

    The iteration need not converge, and there may be several equilibria: check ``converged`` and ``gain``. The function
    works under ``jax.jit`` and ``jax.vmap`` (over starts, costs, ceilings, kappa).

    Args:
      game: the game.
      start: initial contributions, ``[N]``.
      order: "sequential": clients respond one after the other, each to the newest contributions; "simultaneous": all
        clients respond at once.
      damping: damping of simultaneous responses: ``p <- p + damping (response - p)``, in (0, 1]; None: ``1 / N``, with
        which plain federated learning converges at once. Larger values may oscillate for ever, since all clients
        respond to the same contributions.
      sweeps: the largest number of sweeps.
      tolerance: the largest move of a client that counts as converged, in units of contribution.

    Raises:
      ValueError: if ``order`` is not a valid name, or ``start`` is not of shape ``[N]``.
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
    """The contribution of each of N equal clients in the symmetric equilibrium of IAFL's equation (1).

    The equilibrium is the root p of ``g'(x) (1 + (1 - kappa) (N - 1) s) = c`` with ``s = (p / p_ceil)^(1 - kappa)`` and
    ``x = p (1 + (N - 1) s)``. If the left side is still above c at the ceiling, the equilibrium is the ceiling, since
    only ``g'(x)`` remains beyond it. If ``g'(x)`` is above c there too, the equilibrium is the p above the ceiling with
    ``g'(N p) = c``: such a low ceiling is no incentive. For c of ``g'(0)`` or more, zero is an equilibrium too, and
    either one may be returned.

    Args:
      clients: N.
      cost: c, below ``g'(0)``.
      ceiling: ``p_ceil``, above 0.
      kappa: in [0, 1]; 1 gives plain federated learning, with the total ``p*`` of one client alone.
      benefit: g; the left side must cross c exactly once, as with the default.
      upper: upper limit of the search for a client's contribution.

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

    The lowest has ``g'(total) = c``, the contribution of one client alone (IAFL, proposition 3); the highest has
    ``g'(total) = c / N``. For the default benefit they are ``-log(c)`` and ``-log(c) + log(N)``. Every total between
    them, evenly divided, is an equilibrium: at a tie the slope of a client's utility is ``N g'(total) - c >= 0`` below
    and ``g'(total) - c <= 0`` above.

    Args:
      clients: N.
      cost: c, any shape.
      benefit: g.
      upper: upper limit of the search for a client's contribution.

    Returns:
      Two arrays of the shape of ``cost``.
    """
    price = jnp.asarray(cost, float)
    return contribution_at(benefit, price, clients * upper), contribution_at(benefit, price / clients, clients * upper)
