"""Pure functions on stacked updates ``[S, ...]``: they need JAX alone and work under jit, vmap, grad and scan."""

from fljax.aggregators.by_loss import incfl_update, incfl_weights, mw_weights, qffl_update, simplex_projection
from fljax.aggregators.clipping import clip, clip_to_median
from fljax.aggregators.clusters import cluster_means, importance_weights, member_weights, shapley_first_order
from fljax.aggregators.linear import mix, weighted_mean, weighted_sum
from fljax.aggregators.reputation import cgsv_normalised, cgsv_reputation, cgsv_rewards, cgsv_shares
from fljax.aggregators.rewards import iafl_rates, iafl_reference, iafl_rewards, iafl_subsets, rank_rewards
from fljax.aggregators.settlement import Ledger, cluster_utility, member_accuracy, settle_tokens
from fljax.aggregators.tokens import (
    SlotRows,
    SlotSchedule,
    affordable,
    bid_preferences,
    exploration_share,
    record_slots,
    schedule,
    slot_rows,
)

__all__ = [
    "Ledger",
    "SlotRows",
    "SlotSchedule",
    "affordable",
    "bid_preferences",
    "cgsv_normalised",
    "cgsv_reputation",
    "cgsv_rewards",
    "cgsv_shares",
    "clip",
    "clip_to_median",
    "cluster_means",
    "cluster_utility",
    "exploration_share",
    "iafl_rates",
    "iafl_reference",
    "iafl_rewards",
    "iafl_subsets",
    "importance_weights",
    "incfl_update",
    "incfl_weights",
    "member_accuracy",
    "member_weights",
    "mix",
    "mw_weights",
    "qffl_update",
    "rank_rewards",
    "record_slots",
    "schedule",
    "settle_tokens",
    "shapley_first_order",
    "simplex_projection",
    "slot_rows",
    "weighted_mean",
    "weighted_sum",
]
