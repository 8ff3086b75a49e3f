"""A game in which clients choose how much to contribute under a reward rule, and its equilibria.

Client i contributes ``p_i >= 0`` at a cost ``c_i`` per unit. In return it receives a share ``s_i`` of the others'
contributions. Its utility is ``u_i = g(p_i + s_i sum_{j != i} p_j) - c_i p_i`` with an increasing and concave benefit
g. In plain federated learning ``s_i = 1``. IAFL's equation (1) has ``s_i = min(p_i / p_ceil, 1)^(1 - kappa)``. The
relative rule, which IAFL's proposition 3 warns of, has ``p_ceil = max_j p_j`` and kappa = 0.
``fljax.aggregators.iafl_rates`` computes both.

With these rules ``u_i`` is concave in ``p_i``, with a kink at the ceiling or at the largest of the others'
contributions.

Source: "Incentive-aware federated learning with training-time model rewards" (IAFL), sections 3, 4.1 and B.
Contributions and costs are plain numbers: only ``c p`` and ``g`` give them a scale.

The game's equilibria are Nash equilibria by best responses, and symmetric ones in closed form (IAFL, section 4.1 and
propositions 1 and 3). The results differ from proposition 3 in one respect. The relative rule has many symmetric
equilibria (``relative_equilibria``): every total contribution x with ``g'(x)`` between ``c`` and ``c / N`` is one. At a
tie, a client that contributes less loses reward, and a client that contributes more gains none. The proposition
constructs the lowest equilibrium, ``g'(p*) = c``. Clients that start at zero and raise their contributions together in
small steps stop there; other paths end at higher totals. Under equation (1) the equilibrium does not depend on the
path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int

from fljax.core.names import plain
from fljax.core.values import floats_of

POINTS = 257  # size of the grid that brackets a best response
HALVINGS = 60  # bisection steps: enough for double precision


def saturating(amount: ArrayLike) -> Array:
    """``g(x) = 1 - exp(-x)``: the benefit of x units of contribution, in [0, 1), concave."""
    return -jnp.expm1(-jnp.asarray(plain(amount)))


class Game(NamedTuple):
    """A reward rule, the clients' costs and their benefit.

    rates: the rule, a function from contributions ``[N]`` to rates ``[N]`` that is differentiable almost everywhere,
      e.g. ``functools.partial(fljax.aggregators.iafl_rates, ceiling=1.0, kappa=0.5)``; ``jnp.ones_like`` gives plain
      federated learning.
    cost: ``c``, the cost per unit of contribution, above 0; ``[N]``, or one number for all.
    benefit: g, any increasing concave function that JAX can differentiate.
    upper: upper limit of the search for a client's contribution.
    """

    rates: Callable[[Array], Array]
    cost: ArrayLike
    benefit: Callable[[Array], Array] = saturating
    upper: float = 10.0


def plain_game(game: Game) -> Game:
    """The same game under plain federated learning: every client has rate ``s_i = 1``."""
    return game._replace(rates=jnp.ones_like)


def rewards(game: Game, contribution: ArrayLike) -> Array:
    """``g(p_i + s_i sum_{j != i} p_j)``, ``[N]``.

    A reward is never below ``g(p_i)``, client i's benefit alone (individual rationality, IAFL's definition 1 and remark
    1). It equals ``g(p_i)`` if ``s_i = 0``.

    Args:
      game: rule and benefit.
      contribution: ``p``, ``[N]``.
    """
    p = _vector(contribution)
    return game.benefit(p + game.rates(p) * (p.sum() - p))


def utilities(game: Game, contribution: ArrayLike) -> Array:
    """``rewards - c p``, ``[N]``; arguments as for ``rewards``."""
    p = _vector(contribution)
    return rewards(game, p) - floats_of(game.cost, p.dtype) * p


def best_responses(game: Game, contribution: ArrayLike) -> Array:
    """``argmax_x u_i(x, p_-i)`` for every client, ``[N]``: each client's best contribution, given the others'.

    A grid on ``[0, upper]`` brackets the highest utility; bisection on the sign of the slope refines it. Bisection
    finds smooth optima and kinks to rounding precision. (Comparing utilities would give only half the digits.) If
    several optima differ by less than rounding, any of them may be returned. If a utility is not concave, the grid of
    257 points must separate its maxima.

    Args:
      game: the game.
      contribution: ``p``, ``[N]``; client i's own entry does not affect its response.
    """
    p = _vector(contribution)
    return jax.vmap(lambda player: best_response(game, p, player))(jnp.arange(len(p)))


def best_response(game: Game, contribution: Array, player: ArrayLike) -> Array:
    """The best response of the client at position ``player``, which may be traced."""
    utility = _of(game, contribution, player)
    grid = jnp.linspace(0, game.upper, POINTS, dtype=contribution.dtype)
    best = jnp.argmax(jax.vmap(utility)(grid))
    low, high = grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, POINTS - 1)]
    # Forward mode: an infinite derivative of another client's rate (at a contribution of 0) stays with that client.
    return descent(lambda amount: jax.jvp(utility, (amount,), (jnp.ones_like(amount),))[1], low, high)


def descent(slope: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The point where ``slope`` falls below 0, by bisection; exactly ``low`` if it is nowhere above 0."""

    def halve(_: int | Int[Array, ""], ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        rising = slope(middle) > 0
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    return jax.lax.fori_loop(0, HALVINGS, halve, (low, high))[0]


def solo_contribution(game: Game) -> Array:
    """``p*`` with ``g'(p*) = c``: the contribution of a client without a federation; in the shape of ``cost``.

    It is ``-log(c)`` for the default benefit, and 0 if ``c >= g'(0)``.
    """
    cost = floats_of(game.cost)
    return contribution_at(game.benefit, cost, game.upper)


def contribution_at(benefit: Callable[[Array], Array], price: ArrayLike, upper: ArrayLike) -> Array:
    """The x in ``[0, upper]`` with ``benefit'(x) = price``, in the shape of ``price``; an end if there is none."""
    price = floats_of(price)
    slope = jax.vmap(jax.grad(benefit))
    flat = price.reshape(-1)
    ends = jnp.zeros_like(flat), jnp.broadcast_to(jnp.asarray(upper, flat.dtype), flat.shape)
    return descent(lambda x: slope(x) - flat, *ends).reshape(price.shape)


def deviation_gains(game: Game, contribution: ArrayLike, *, points: int = 1001) -> Array:
    """The utility that each client could gain by changing its own contribution alone, ``[N]``, at least 0.

    The maximum is taken over a grid on ``[0, upper]`` and over ``best_responses``, so it does not rely on either alone.

    Args:
      game: the game.
      contribution: ``p``, ``[N]``.
      points: number of grid points.
    """
    p = _vector(contribution)
    now = utilities(game, p)
    grid = jnp.linspace(0, game.upper, points, dtype=p.dtype)

    def gain(player: Array, response: Array) -> Array:
        utility = _of(game, p, player)
        tried = jnp.concatenate([grid, response[None], p[player][None]])
        return jax.vmap(utility)(tried).max() - now[player]

    return jnp.maximum(jax.vmap(gain)(jnp.arange(len(p)), best_responses(game, p)), 0)


def is_equilibrium(game: Game, contribution: ArrayLike, *, tolerance: float = 1e-5, points: int = 1001) -> Array:
    """Whether no client gains more than ``tolerance`` by deviating alone: a Nash equilibrium to the grid's resolution.

    Args:
      game: the game.
      contribution: ``p``, ``[N]``.
      tolerance: in units of utility; single precision resolves utilities of about 1 to 1e-7.
      points: see ``deviation_gains``.

    Returns:
      A boolean scalar.
    """
    return deviation_gains(game, contribution, points=points).max() <= tolerance


def _of(game: Game, contribution: Array, player: ArrayLike) -> Callable[[Array], Array]:
    """The utility of one client as a function of its own contribution."""
    return lambda amount: utilities(game, contribution.at[player].set(amount))[player]


def _vector(contribution: ArrayLike) -> Array:
    p = floats_of(contribution)
    if p.ndim != 1 or not p.size:
        raise ValueError(f"expected contributions of shape [clients], got {p.shape}")
    return p


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
    first, damping = _vector(start), plain(damping)

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
    c, top, keep = floats_of(cost), floats_of(ceiling), 1 - floats_of(kappa)
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
    price = floats_of(cost)
    return contribution_at(benefit, price, clients * upper), contribution_at(benefit, price / clients, clients * upper)
