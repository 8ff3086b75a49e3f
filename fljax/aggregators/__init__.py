"""Pure functions on stacked updates ``[S, ...]``: they need JAX alone and work under jit, vmap, grad and scan."""

from fljax.aggregators.fairness import mw_weights as mw_weights
from fljax.aggregators.fairness import qffl_update as qffl_update
from fljax.aggregators.fairness import simplex_projection as simplex_projection
from fljax.aggregators.incfl import incfl_update as incfl_update
from fljax.aggregators.incfl import incfl_weights as incfl_weights
from fljax.aggregators.linear import mix as mix
from fljax.aggregators.linear import weighted_mean as weighted_mean
from fljax.aggregators.linear import weighted_sum as weighted_sum
