"""The payoff of a client in a run (the metric of its model, minus its cost, plus its tokens), and prices of anarchy.

These are the costs for all clients if each looks after itself, by the welfare ``W = sum_i u_i`` if it is positive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, PyTree

from fljax.core import users
from fljax.core.names import check_unlabelled, plain
from fljax.core.sameness import code_of
from fljax.core.values import as_number
from fljax.engine import Plan, State
from fljax.engine.whole_runs.running import local_of, steps_of
from fljax.games.strategic.gains import Certificate, PayoffTable, as_precise_as, name_of_cell, replace_diverged
from fljax.protocol import Algorithm, Federation, Labelled
from fljax.scenarios import Strategy
from fljax.scenarios.effort import rows_used
from fljax.scenarios.strategic import HONEST, StrategicClient


class Prices(NamedTuple):
    """Prices of a table.

    Attributes:
      anarchy: ``max W / min_{equilibria} W``; NaN without equilibria.
      stability: ``max W / max_{equilibria} W``; NaN without equilibria.
      gaming: ``(W(honest) - W(gaming)) / W(honest)``; NaN if the table has no honest profile.
      gaming_of: what "gaming" is: "the worst equilibrium", or the worst cell of a certificate; "" if there is neither.
    """

    anarchy: float
    stability: float
    gaming: float
    gaming_of: str


def welfare(table: PayoffTable) -> Float[np.ndarray, "seed profile"]:
    """``[R, P]``: ``sum_i u_i`` of each run; a diverged run counts as the worst utility (``replace_diverged``)."""
    return replace_diverged(table).payoffs.sum(axis=2)


def price_of_anarchy(total: Float[np.ndarray, " profile"], equilibria: Bool[np.ndarray, " profile"]) -> float:
    """``max W / min_{equilibria} W``: how much better than the worst equilibrium the best profile is.

    Args:
      total: ``[P]``, the welfare W of each profile.
      equilibria: ``[P]``, which profiles are equilibria.

    Returns:
      At least 1; NaN without an equilibrium, if some W is negative, or if that of the equilibrium is 0.

    Source: Koutsoupias and Papadimitriou, "Worst-case equilibria" (STACS 1999).
    """
    return _ratio(plain(total), total[plain(equilibria)].min(initial=np.inf))


def price_of_stability(total: Float[np.ndarray, " profile"], equilibria: Bool[np.ndarray, " profile"]) -> float:
    """``max W / max_{equilibria} W``: how much better than the best equilibrium the best profile is.

    Args:
      total: ``[P]``, the welfare W of each profile.
      equilibria: ``[P]``, which profiles are equilibria.

    Returns:
      At least 1; NaN without an equilibrium, if some W is negative, or if that of the equilibrium is 0.

    Source: Anshelevich et al., "The price of stability for network design with fair cost allocation" (FOCS 2004).
    """
    return _ratio(plain(total), total[plain(equilibria)].max(initial=-np.inf))


def price_of_gaming(honest: float, gaming: float) -> float:
    """``(W(honest) - W(gaming)) / W(honest)``: the share of welfare that strategic clients cost; NaN if W(honest) <= 0.

    It is negative if gaming helps all clients together.
    """
    return (honest - gaming) / honest if honest > 0 else float("nan")


def _ratio(total: np.ndarray, welfare_of_equilibrium: float) -> float:
    """The largest welfare over that of an equilibrium, which is infinite if there is none."""
    known = np.isfinite(welfare_of_equilibrium) and welfare_of_equilibrium > 0 and total.min() >= 0
    return float(total.max() / welfare_of_equilibrium) if known else float("nan")


def prices_of(
    table: PayoffTable, equilibria: Bool[np.ndarray, " profile"], *, certificate: Certificate | None = None
) -> Prices:
    """The prices of the mean welfare over seeds.

    Args:
      table: of payoffs.
      equilibria: ``[P]``, which profiles are equilibria, for example ``pure_equilibria(table).possible``.
      certificate: "gaming" is its worst cell, where no profile is an equilibrium.

    Raises:
      ValueError: as ``replace_diverged``, or if ``equilibria`` has another length.
    """
    total = welfare(table).mean(axis=0)
    if equilibria.shape != total.shape:
        raise ValueError(f"expected equilibria by profile, {len(total)} of them, got shape {equilibria.shape}")
    rows = np.flatnonzero((table.choices == 0).all(axis=1))
    honest, gaming, words = float(total[rows[0]]) if len(rows) else float("nan"), float("nan"), ""
    if equilibria.any():
        gaming, words = float(total[equilibria].min()), "the worst equilibrium"
    elif certificate is not None:
        gains, cell = certificate.gains, certificate.worst
        honest, change = float(gains.honest.sum(axis=1).mean()), float(gains.welfare[:, cell].mean())
        gaming, words = honest + change, name_of_cell(gains, cell)
    return Prices(
        price_of_anarchy(total, equilibria),
        price_of_stability(total, equilibria),
        price_of_gaming(honest, gaming),
        words,
    )


# ``(algorithm, state, scores) -> [N]``, traced: the state after the last round, and the scores of all clients by name.
UtilityFunction = Callable[[Algorithm, State, Mapping[str, Labelled]], Array]
# Names of measures.
EARNED, TOKENS, TRAINED = "earned", "tokens", "trained"


class Utility(NamedTuple):
    """``u_i = metric_i - cost_i effort_i + price tokens_i min(1, budget / sum_j max(tokens_j, 0))``.

    Attributes:
      metric: of the model that a client would use, on its own test rows; "test_loss" is negated. None: "test_accuracy",
        or "test_loss" if the task has no score.
      cost: ``c_i``, of the local steps of an honest client that trains in every round (``efforts_of``): one number, or
        one per client id ``[N]``.
      price: of a token that a client has at the end, for algorithms whose server keeps tokens.
      budget: of tokens that are paid to all clients together; debts (negative tokens) are owed in full. None: no bound.
    """

    metric: Literal["test_accuracy", "test_loss"] | None = None
    cost: float | Sequence[float] | Float[np.ndarray, " N"] = 0.0
    price: float = 0.0
    budget: float | None = None


class Earnings(NamedTuple):
    """What is kept of a run: the scores of each client and its tokens, or a utility of one's own."""

    # It is equal for equal functions, so that runs share a program. Utilities with other costs need no other runs.

    function: UtilityFunction | None = None
    code: str = ""  # of the function, by which saved runs of an older body are told from those of this one

    def __call__(self, algorithm: Algorithm, state: State, scores: Mapping[str, Labelled]) -> dict[str, Labelled]:
        """``{name: array}`` for the engine's runs."""
        if self.function is not None:
            found = users.call("the utility", "(algorithm, state, scores)", self.function, algorithm, state, scores)
            clients = scores["test_loss"].values.shape
            wanted = f"one number of each client {list(clients)}"
            earned = users.numbers("the utility", self.function, wanted, found, clients)
            return {EARNED: Labelled(earned, ("client",))}
        tokens = tokens_of(state.server)
        judged = {name: scores[name] for name in ("test_loss", "test_accuracy") if name in scores}
        if isinstance(state.clients, StrategicClient):
            judged[TRAINED] = Labelled(state.clients.rounds, ("client",))
        return judged if tokens is None else {**judged, TOKENS: Labelled(tokens, ("client",))}


def utilities_of(
    earned: Float[np.ndarray, "... N"],
    effort: Float[np.ndarray, "... N"] | float,
    tokens: Float[np.ndarray, "... N"] | None,
    utility: Utility,
) -> Float[np.ndarray, "... N"]:
    """The equation of ``Utility``; Blum et al. (ICML 2021) have such costs."""
    net = earned - np.asarray(utility.cost, float) * effort
    return net if tokens is None else net + utility.price * paid_tokens(tokens, utility.budget)


def paid_tokens(tokens: Float[np.ndarray, "... N"], budget: float | None) -> Float[np.ndarray, "... N"]:
    """``min(tokens_i, 0) + max(tokens_i, 0) min(1, budget / sum_j max(tokens_j, 0))``."""
    if budget is None:
        return tokens
    due = np.maximum(tokens, 0).sum(axis=-1, keepdims=True)
    share = np.divide(budget, due, out=np.ones(due.shape), where=due > budget)
    return np.where(tokens > 0, tokens * share, tokens)


def tokens_of(server: PyTree) -> Any:
    """The field ``tokens`` ``[N]`` of a Server, also inside of its parts; None: it has none."""
    if not hasattr(server, "_fields"):
        return None
    found = [server.tokens] if hasattr(server, "tokens") else [tokens_of(part) for part in server]
    return next((part for part in found if part is not None), None)


def steps_of_round(
    plan: Algorithm | Plan, federation: Federation, played: Strategy = HONEST, own_models: bool = False
) -> Float[np.ndarray, "seed run N"]:
    """Local steps that clients pay for in a round of training; shares of rows where ``local`` is unknown."""
    # A client that sends nothing of its own (``own`` and ``stale`` are 0) needs none, unless it uses its own model.
    order = np.argsort(np.asarray(federation.clients.id), axis=-1)
    size = np.take_along_axis(np.asarray(federation.clients.train.size), order, axis=-1)[..., None, :]
    share = np.ones((1, 1)) if played.effort is None else np.asarray(played.effort)
    used = np.asarray(rows_used(*map(jnp.asarray, np.broadcast_arrays(size, share))))
    local = local_of(plan)
    steps = used / np.maximum(size, 1) if local is None else steps_of(local, used)
    sends = np.asarray(1.0 if played.own is None else played.own) != 0
    sends = sends | (np.asarray(0.0 if played.stale is None else played.stale) != 0)
    computed = np.where(sends | own_models, steps, 0.0)
    return computed.reshape(-1, *computed.shape[-2:])


def efforts_of(
    steps: Float[np.ndarray, "seed run N"], plan: Algorithm | Plan, federation: Federation, rounds: int
) -> Float[np.ndarray, "seed run N"]:
    """``e_i``: the steps of a client in a whole run, relative to an honest one that trains in every round."""
    whole = np.broadcast_to(rounds * steps_of_round(plan, federation), steps.shape)
    return np.divide(steps, whole, out=np.zeros(steps.shape), where=whole > 0)


def rounds_trained(measured: xr.Dataset) -> Float[np.ndarray, "seed run N"]:
    """In how many rounds each client trained; 0 of runs in which ``Earnings`` does not count them."""
    some = TRAINED if TRAINED in measured else EARNED
    count = measured[some].transpose("seed", "run", "client").values.astype(float)
    return count if some == TRAINED else np.zeros_like(count)


def earnings_of(utility: Utility | UtilityFunction) -> Earnings:
    """What is kept of runs for this utility."""
    return Earnings() if isinstance(utility, Utility) else Earnings(utility, code_of(utility))


def utilities_of_runs(
    measured: xr.Dataset, effort: Float[np.ndarray, "*seed run N"], utility: Utility | UtilityFunction
) -> Float[np.ndarray, "seed run N"]:
    """The utilities of finished runs that ``Earnings`` measured; NaN where a run diverged."""
    values = {
        str(name): array.transpose("seed", "run", "client").values.astype(float)
        for name, array in measured.data_vars.items()
        if name != "diverged"
    }
    if not isinstance(utility, Utility):
        return values[EARNED]
    metric = utility.metric or ("test_accuracy" if "test_accuracy" in values else "test_loss")
    earned = -values[metric] if metric == "test_loss" else values[metric]
    member = measured["member"].values if "member" in measured.coords else True  # of others the tokens are not paid
    net = utilities_of(earned, effort, values[TOKENS] * member if utility.price else None, utility)
    return as_precise_as(net, earned)


def check_utility(utility: Utility | UtilityFunction, algorithm: Algorithm, federation: Federation) -> None:
    """Raises a ValueError if a utility has other fields than it may have, or a client has no test rows to judge by."""
    if not isinstance(utility, Utility):
        if not callable(utility):
            raise ValueError(f"expected a fljax.games.Utility or a function as utility, got {utility!r}")
        return
    if utility.metric not in (None, "test_accuracy", "test_loss"):
        raise ValueError(f'expected the metric "test_accuracy" or "test_loss", got {utility.metric!r}')
    if utility.metric == "test_accuracy" and algorithm.task.score is None:
        raise ValueError('expected the metric "test_loss" for a task without a score, got "test_accuracy"')
    price, clients = as_number(utility.price), federation.clients.id.shape[-1]
    if price is None or not np.isfinite(price):
        raise ValueError(f"expected price to be one finite number, got {utility.price!r}")
    budget = np.inf if utility.budget is None else as_number(utility.budget)
    if budget is None or not 0 <= budget <= np.inf or (utility.budget is not None and not price):
        raise ValueError(f"expected budget to be a number of at least 0 beside a price of tokens, got {utility.budget}")
    check_unlabelled("cost", utility.cost)
    cost = np.asarray(utility.cost)
    if cost.dtype.kind not in "iuf" or cost.shape not in ((), (clients,)) or not np.isfinite(cost).all():
        raise ValueError(
            f"expected cost to be one finite number or one for each of {clients} clients, got {utility.cost!r}"
        )
    ids = np.asarray(federation.clients.id)
    lacking = ids[np.asarray(federation.clients.test.size) == 0]
    if lacking.size:
        raise ValueError(f"expected test rows of every client for its utility, got none of client {lacking.min()}")
