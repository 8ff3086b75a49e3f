"""Positive controls: results of the functions of a certificate if the gain of a lie is known.

- Mean estimation: client i has ``F_i(w) = (w - c_i)^2 / 2``, and uniform FedAvg ends at ``w* = sum_i s_i c_i / sum_i
  s_i`` if clients multiply their updates by ``s_i``. With c = (0, 1, 5) the last client gains 63/32 by s = 2, which
  must be flagged; with equal c nobody gains, and no effect must be seen. Both are runs of one small program.
- A fee for honesty beyond all differences between payoffs, in the runs of the certificate itself: every deviation pays.
  If one is not flagged, seeds are too few for its noise.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fljax.algorithms import fedavg
from fljax.contributions import simultaneous_bounds
from fljax.contributions.over_seeds import LEAST_SEEDS
from fljax.engine import Plan
from fljax.games.strategic.gains import UNSEEN, VIOLATED, Control, Gains, certificate, verdict_of, with_rounding
from fljax.games.strategic.playing import payoffs
from fljax.protocol import ClientData, Examples, Federation, Rows, Task
from fljax.scenarios import Strategy
from fljax.training import Local

DIFFERENT, ALIKE = (0.0, 1.0, 5.0), (1.0, 1.0, 1.0)
KNOWN_GAIN = 63 / 32  # (2 - 5)^2 / 2 - (11/4 - 5)^2 / 2
FEE = "a fee for honesty"
_ROUNDS = 60  # the distance to the fixed point is below 1e-6 then
_SLACK = 1e-3


def _initial(key: Key[Array, ""]) -> PyTree:
    return {"w": jnp.zeros(())}


def _predict(params: PyTree, x: Float[Array, "b 1"], key: Key[Array, ""] | None = None) -> Float[Array, " b"]:
    return params["w"] + 0 * x[:, 0]


def _loss(predicted: Float[Array, " b"], y: Float[Array, " b"]) -> Float[Array, " b"]:
    return jnp.square(predicted - y) / 2


def mean_estimation(targets: tuple[float, ...]) -> tuple[Plan, Federation]:
    """Uniform FedAvg with one step of length 1/4 a round, and clients with one row each, their target."""
    # Source: the setting of Dorner et al., "Incentivizing honesty among competitors in collaborative learning and
    # optimization" (NeurIPS 2023), with one sample and without competition.
    count = len(targets)
    rows = Rows(jnp.arange(count, dtype=jnp.int32)[:, None], jnp.ones(count, jnp.int32))
    none = rows._replace(size=jnp.zeros(count, jnp.int32))
    examples = Examples(jnp.zeros((count, 1), jnp.float32), jnp.asarray(targets, jnp.float32))
    federation = Federation(examples, ClientData(jnp.arange(count, dtype=jnp.int32), rows, none, rows))
    local = Local(0.25, 1, steps=1)
    arguments = {
        "task": Task(_initial, _predict, _loss),
        "local": local,
        "clients_per_round": None,
        "weights": "uniform",
    }
    return Plan(fedavg, arguments), federation


def known_mechanisms() -> tuple[Control, ...]:
    """Mean estimation, in which a client doubles its update: with different means it pays, with equal ones not."""
    cases = (("different", DIFFERENT, VIOLATED, KNOWN_GAIN), ("equal", ALIKE, UNSEEN, 0.0))
    return tuple(_mean_estimation_control(*case) for case in cases)


def _mean_estimation_control(words: str, targets: tuple[float, ...], expected: str, known: float) -> Control:
    plan, federation = mean_estimation(targets)
    lie = {"update times 2": Strategy(own=2.0)}
    table = payoffs(plan, federation, rounds=_ROUNDS, seeds=LEAST_SEEDS, deviations=lie, outside=False)
    # Just below the gain that it must flag, and just above the one that it must not.
    tolerance = max(known - _SLACK, _SLACK)
    result = certificate(table, tolerance=tolerance)
    name = f"mean estimation, {words} means, update times 2"
    return Control(name, expected, result.verdict, known, result.epsilon_low, result.epsilon_high)


def fee_for_honesty(gains: Gains, tolerance: float, confidence: float, method: str) -> Control:
    """``g + fee`` of all cells, with ``fee = tolerance + 2 (max u - min u)``: above the tolerance with every seed."""
    # It is flagged if every cell is, so ``low`` is the smallest lower bound.
    most = max(float(gains.payoffs.max()), float(gains.honest.max()))
    least = min(float(gains.payoffs.min()), float(gains.honest.min()))
    fee = tolerance + (2 * (most - least) or 1.0)  # 1 where all payoffs are equal
    bounds = simultaneous_bounds(gains.gains + fee, confidence, method=method)
    low, high = float(bounds.low.min()), float(bounds.high.max())
    verdict = verdict_of(low, high, with_rounding(tolerance, gains))
    return Control(FEE, VIOLATED, verdict, fee - (most - least), low, high)
