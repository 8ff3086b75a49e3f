"""Pure functions on stacked updates ``[S, ...]``: they need JAX alone and work under jit, vmap, grad and scan."""

from fljax.aggregators.fairness import mw_weights as mw_weights
from fljax.aggregators.fairness import qffl_update as qffl_update
from fljax.aggregators.fairness import simplex_projection as simplex_projection
from fljax.aggregators.incfl import incfl_update as incfl_update
from fljax.aggregators.incfl import incfl_weights as incfl_weights
from fljax.aggregators.linear import mix as mix
from fljax.aggregators.linear import weighted_mean as weighted_mean
from fljax.aggregators.linear import weighted_sum as weighted_sum
from fljax.aggregators.reputation import cgsv_normalised as cgsv_normalised
from fljax.aggregators.reputation import cgsv_reputation as cgsv_reputation
from fljax.aggregators.reputation import cgsv_rewards as cgsv_rewards
from fljax.aggregators.reputation import cgsv_shares as cgsv_shares
from fljax.aggregators.rewards import iafl_rates as iafl_rates
from fljax.aggregators.rewards import iafl_reference as iafl_reference
from fljax.aggregators.rewards import iafl_rewards as iafl_rewards
from fljax.aggregators.rewards import iafl_subsets as iafl_subsets
from fljax.aggregators.rewards import rank_rewards as rank_rewards
