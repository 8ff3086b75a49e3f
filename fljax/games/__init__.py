"""Games of clients: every coalition retrained from scratch, and what each client is worth in the table of values.

``coalitions`` retrains, as runs of one compiled program. Functions of its ``CoalitionTable`` say what clients are worth
(``shapley``, ``banzhaf``, ``leave_one_out`` and others), with the arithmetic of ``fljax.contributions``; ``worth`` says
it all at once. ``fljax worth CONFIG`` does so for the algorithms of a config.

``payoffs`` plays profiles of strategies, such as every client that deviates in turn. A ``PayoffTable`` has what clients
get in each. ``certificate`` says whether deviating pays, and ``certify`` does both, with an attack and positive
controls; ``fljax certify CONFIG`` does so for the algorithms of a config. ``split_payoffs`` plays clients that join as
several. ``pure_equilibria``, ``best_response_graph``,
``correlated_equilibria`` and ``mixed_equilibria`` say where play may end.
``design`` searches the numbers of a mechanism under which lying does not pay, and judges it on federations that it
never saw.
``blocking_coalitions`` and ``core_stable_partitions`` say which groups would leave, out of a ``CoalitionTable``.
"""

from fljax.core.lazy import exported as _exported
from fljax.games.comparing import coalitions as coalitions
from fljax.games.comparing import compare_algorithms as compare_algorithms
from fljax.games.comparing import compare_estimators as compare_estimators
from fljax.games.mechanisms.designing import Baseline as Baseline
from fljax.games.mechanisms.designing import Design as Design
from fljax.games.mechanisms.designing import design as design
from fljax.games.mechanisms.searching import Around as Around
from fljax.games.mechanisms.searching import Interval as Interval
from fljax.games.mechanisms.tables import design_dataset as design_dataset
from fljax.games.solutions import Blocking as Blocking
from fljax.games.solutions import banzhaf as banzhaf
from fljax.games.solutions import beta_shapley as beta_shapley
from fljax.games.solutions import blocking_coalitions as blocking_coalitions
from fljax.games.solutions import coalitions_of as coalitions_of
from fljax.games.solutions import convexity as convexity
from fljax.games.solutions import core_stable_partitions as core_stable_partitions
from fljax.games.solutions import join_or_leave as join_or_leave
from fljax.games.solutions import least_core as least_core
from fljax.games.solutions import leave_one_out as leave_one_out
from fljax.games.solutions import monotonicity as monotonicity
from fljax.games.solutions import shapley as shapley
from fljax.games.solutions import superadditivity as superadditivity
from fljax.games.solutions import worth as worth
from fljax.games.strategic.certificates import SavedCertificates as SavedCertificates
from fljax.games.strategic.certificates import certificate_dataset as certificate_dataset
from fljax.games.strategic.certificates import certificate_of as certificate_of
from fljax.games.strategic.certificates import certify as certify
from fljax.games.strategic.certificates import load_certificates as load_certificates
from fljax.games.strategic.certificates import response_dataset as response_dataset
from fljax.games.strategic.certificates import save_certificates as save_certificates
from fljax.games.strategic.equilibria import BestResponseGraph as BestResponseGraph
from fljax.games.strategic.equilibria import CorrelatedEquilibria as CorrelatedEquilibria
from fljax.games.strategic.equilibria import MixedEquilibria as MixedEquilibria
from fljax.games.strategic.equilibria import Potential as Potential
from fljax.games.strategic.equilibria import PureEquilibria as PureEquilibria
from fljax.games.strategic.equilibria import best_response_graph as best_response_graph
from fljax.games.strategic.equilibria import correlated_equilibria as correlated_equilibria
from fljax.games.strategic.equilibria import exact_potential as exact_potential
from fljax.games.strategic.equilibria import mixed_equilibria as mixed_equilibria
from fljax.games.strategic.equilibria import mixed_regret as mixed_regret
from fljax.games.strategic.equilibria import payoff_half_width as payoff_half_width
from fljax.games.strategic.equilibria import pure_equilibria as pure_equilibria
from fljax.games.strategic.gains import Attack as Attack
from fljax.games.strategic.gains import Certificate as Certificate
from fljax.games.strategic.gains import Confirmed as Confirmed
from fljax.games.strategic.gains import Control as Control
from fljax.games.strategic.gains import ExPost as ExPost
from fljax.games.strategic.gains import Gains as Gains
from fljax.games.strategic.gains import Harmful as Harmful
from fljax.games.strategic.gains import PairCertificate as PairCertificate
from fljax.games.strategic.gains import PayoffTable as PayoffTable
from fljax.games.strategic.gains import Rationality as Rationality
from fljax.games.strategic.gains import certificate as certificate
from fljax.games.strategic.gains import diverged_cells as diverged_cells
from fljax.games.strategic.gains import ex_post as ex_post
from fljax.games.strategic.gains import individual_rationality as individual_rationality
from fljax.games.strategic.gains import pair_certificate as pair_certificate
from fljax.games.strategic.gains import replace_diverged as replace_diverged
from fljax.games.strategic.gains import unilateral_gains as unilateral_gains
from fljax.games.strategic.playing import messages_of as messages_of
from fljax.games.strategic.playing import payoffs as payoffs
from fljax.games.strategic.playing import usual_deviations as usual_deviations
from fljax.games.strategic.splitting import split_payoffs as split_payoffs
from fljax.games.strategic.utilities import Prices as Prices
from fljax.games.strategic.utilities import Utility as Utility
from fljax.games.strategic.utilities import price_of_anarchy as price_of_anarchy
from fljax.games.strategic.utilities import price_of_gaming as price_of_gaming
from fljax.games.strategic.utilities import price_of_stability as price_of_stability
from fljax.games.strategic.utilities import prices_of as prices_of
from fljax.games.strategic.utilities import welfare as welfare
from fljax.games.tables import CoalitionTable as CoalitionTable
from fljax.games.tables import Cost as Cost
from fljax.games.tables import SavedTables as SavedTables
from fljax.games.tables import by_code as by_code
from fljax.games.tables import divergences as divergences
from fljax.games.tables import from_dataset as from_dataset
from fljax.games.tables import is_complete as is_complete
from fljax.games.tables import load as load
from fljax.games.tables import save as save
from fljax.games.tables import to_dataset as to_dataset
from fljax.games.tables import value_of as value_of
from fljax.games.values import estimate as estimate

__all__ = _exported(globals())  # pyright: ignore[reportUnsupportedDunderAll]
