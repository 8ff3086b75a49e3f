"""Theory that can be run: what the papers prove on problems small enough to solve exactly."""

from fljax.theory.clients import MeanEstimation as MeanEstimation
from fljax.theory.clients import Minima as Minima
from fljax.theory.clients import effective_server_rate as effective_server_rate
from fljax.theory.clients import local_minima as local_minima
from fljax.theory.clients import mean_estimation as mean_estimation
from fljax.theory.clients import objective as objective
from fljax.theory.clients import surrogate_minimum as surrogate_minimum
from fljax.theory.pair import Estimate as Estimate
from fljax.theory.pair import LocalMinimum as LocalMinimum
from fljax.theory.pair import average_is_minimum as average_is_minimum
from fljax.theory.pair import fedavg_ipr as fedavg_ipr
from fljax.theory.pair import fedavg_ipr_bound as fedavg_ipr_bound
from fljax.theory.pair import incfl_ipr as incfl_ipr
from fljax.theory.pair import incfl_ipr_bound as incfl_ipr_bound
from fljax.theory.pair import incfl_ipr_exact as incfl_ipr_exact
from fljax.theory.pair import local_minimum as local_minimum
from fljax.theory.pair import separation_point as separation_point
