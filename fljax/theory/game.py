"""Clients choose how much to contribute: what a reward rule makes of it.

Client i contributes ``p_i >= 0`` at a cost ``c_i`` per unit and is rewarded by a share ``s_i`` of what the others
contribute. Its utility is ``u_i = g(p_i + s_i sum_{j != i} p_j) - c_i p_i`` with a benefit g that is increasing and
concave. In plain federated learning ``s_i = 1``. IAFL's equation (1) has ``s_i = min(p_i / p_ceil, 1)^(1 - kappa)``,
and ``p_ceil = max_j p_j`` with kappa = 0 is the relative rule that its proposition 3 warns of: both are
``fljax.aggregators.iafl_rates``.

With these rules ``u_i`` is concave in ``p_i``, with a kink at the ceiling or at the largest of the others'
contributions.

Source: "Incentive-aware federated learning with training-time model rewards" (IAFL), sections 3, 4.1 and B.
Contributions and costs are plain numbers: only ``c p`` and ``g`` give them a scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

POINTS = 257  # of the grid on which a best response is looked for first
HALVINGS = 60  # of an interval: enough for double precision


def saturating(amount: ArrayLike) -> Array:
    """``g(x) = 1 - exp(-x)``: the benefit of x units of contribution, in [0, 1), concave."""
    return -jnp.expm1(-jnp.asarray(amount))


class Game(NamedTuple):
    """Who pays what, and what it is worth.

    rates: the rule: contributions ``[N]`` to rates ``[N]``, differentiable almost everywhere. E.g.
      ``functools.partial(fljax.aggregators.iafl_rates, ceiling=1.0, kappa=0.5)``, or ``jnp.ones_like``: plain federated
      learning.
    cost: ``c`` of a unit of contribution, above 0; ``[N]``, or one number for all.
    benefit: g, any increasing concave function that JAX can differentiate.
    upper: no contribution above it is considered.
    """

    rates: Callable[[Array], Array]
    cost: ArrayLike
    benefit: Callable[[Array], Array] = saturating
    upper: float = 10.0


def plain_game(game: Game) -> Game:
    """The same clients in plain federated learning: everybody is given everything (``s_i = 1``)."""
    return game._replace(rates=jnp.ones_like)


def rewards(game: Game, contribution: ArrayLike) -> Array:
    """``g(p_i + s_i sum_{j != i} p_j)``, ``[N]``.

    Never below ``g(p_i)``, what client i has alone (individual rationality, IAFL's definition 1 and remark 1), and
    equal to it where its rate is 0.

    Args:
      game: rule and benefit.
      contribution: ``p``, ``[N]``.
    """
    p = _vector(contribution)
    return game.benefit(p + game.rates(p) * (p.sum() - p))


def utilities(game: Game, contribution: ArrayLike) -> Array:
    """``rewards - c p``, ``[N]``; arguments as for ``rewards``."""
    p = _vector(contribution)
    return rewards(game, p) - jnp.asarray(game.cost, p.dtype) * p


def best_responses(game: Game, contribution: ArrayLike) -> Array:
    """``argmax_x u_i(x, p_-i)`` for every client, ``[N]``: what each would contribute, given what the others do.

    A grid on ``[0, upper]`` tells where the highest utility is; there the sign of the slope is bisected. That finds an
    optimum at a kink as well as a smooth one, and its place to rounding, where a comparison of utilities would know it
    to half the digits only. Of several optima that differ by less than rounding any may be returned. For a utility that
    is not concave the grid has to separate its hills: it has 257 points.

    Args:
      game: the game.
      contribution: ``p``, ``[N]``; client i's own entry does not matter to its response.
    """
    p = _vector(contribution)
    return jax.vmap(lambda player: best_response(game, p, player))(jnp.arange(len(p)))


def best_response(game: Game, contribution: Array, player: ArrayLike) -> Array:
    """``best_responses`` of one client, whose position ``player`` may be traced."""
    utility = _of(game, contribution, player)
    grid = jnp.linspace(0, game.upper, POINTS, dtype=contribution.dtype)
    best = jnp.argmax(jax.vmap(utility)(grid))
    low, high = grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, POINTS - 1)]
    # Forwards: a derivative of someone else's rate that is infinite (at a contribution of 0) then stays with its owner.
    return descent(lambda own: jax.jvp(utility, (own,), (jnp.ones_like(own),))[1], low, high)


def descent(slope: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Where ``slope`` falls below 0 between ``low`` and ``high``: at once where it does so at ``low``.

    Exactly ``low`` where no slope inside is above 0, so that an optimum at 0 is 0.
    """

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        rising = slope(middle) > 0
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    return jax.lax.fori_loop(0, HALVINGS, halve, (low, high))[0]


def solo_contribution(game: Game) -> Array:
    """``p*`` with ``g'(p*) = c``: what a client without a federation contributes; of the shape of ``cost``.

    ``-log(c)`` for the default benefit, 0 where ``c >= g'(0)``.
    """
    cost = jnp.asarray(game.cost, float)
    return contribution_at(game.benefit, cost, game.upper)


def contribution_at(benefit: Callable[[Array], Array], price: ArrayLike, upper: ArrayLike) -> Array:
    """The x in ``[0, upper]`` with ``benefit'(x) = price``, of the shape of ``price``; an end where there is none."""
    price = jnp.asarray(price, float)
    slope = jax.vmap(jax.grad(benefit))
    flat = price.reshape(-1)
    ends = jnp.zeros_like(flat), jnp.broadcast_to(jnp.asarray(upper, flat.dtype), flat.shape)
    return descent(lambda x: slope(x) - flat, *ends).reshape(price.shape)


def deviation_gains(game: Game, contribution: ArrayLike, *, points: int = 1001) -> Array:
    """How much utility each client could gain by changing its own contribution alone, ``[N]``, at least 0.

    Over a grid of ``points`` on ``[0, upper]`` and over its ``best_responses``, so that nothing hangs on either.

    Args:
      game: the game.
      contribution: ``p``, ``[N]``.
      points: of the grid.
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
    """Whether nobody gains more than ``tolerance`` by deviating alone: a Nash equilibrium, as far as a grid can tell.

    Args:
      game: the game.
      contribution: ``p``, ``[N]``.
      tolerance: in units of utility; single precision knows utilities of about 1 to 1e-7.
      points: see ``deviation_gains``.

    Returns:
      A boolean scalar.
    """
    return deviation_gains(game, contribution, points=points).max() <= tolerance


def _of(game: Game, contribution: Array, player: ArrayLike) -> Callable[[Array], Array]:
    """The utility of one client as a function of its own contribution."""
    return lambda own: utilities(game, contribution.at[player].set(own))[player]


def _vector(contribution: ArrayLike) -> Array:
    p = jnp.asarray(contribution, float)
    if p.ndim != 1 or not p.size:
        raise ValueError(f"expected contributions of shape [clients], got {p.shape}")
    return p
