"""Games of clients: every coalition retrained from scratch, and what each client is worth in the table of values.

``coalitions`` retrains, as runs of one compiled program. Functions of its ``CoalitionTable`` say what clients are worth
(``shapley``, ``banzhaf``, ``leave_one_out`` and others), with the arithmetic of ``fljax.contributions``; ``worth`` says
it all at once. ``fljax worth CONFIG`` does so for the algorithms of a config.

``payoffs`` plays profiles of strategies, such as every client that deviates in turn. A ``PayoffTable`` has what clients
get in each. ``certificate`` says whether deviating pays, and ``certify`` does both, with an attack and positive
controls; ``fljax certify CONFIG`` does so for the algorithms of a config. ``split_payoffs`` plays clients that join as
several. ``pure_equilibria``, ``best_response_graph``,
``correlated_equilibria`` and ``mixed_equilibria`` say where play may end.
``blocking_coalitions`` and ``core_stable_partitions`` say which groups would leave, out of a ``CoalitionTable``.
"""

from fljax.games.blocking import Blocking, blocking_coalitions, coalitions_of, core_stable_partitions, join_or_leave
from fljax.games.comparing import compare_algorithms, compare_estimators
from fljax.games.costs import estimate
from fljax.games.retraining import coalitions
from fljax.games.solutions import (
    banzhaf,
    beta_shapley,
    convexity,
    least_core,
    leave_one_out,
    monotonicity,
    shapley,
    superadditivity,
    worth,
)
from fljax.games.strategic.certificates import (
    SavedCertificates,
    certificate_dataset,
    certificate_of,
    load_certificates,
    response_dataset,
    save_certificates,
)
from fljax.games.strategic.certifying import certify
from fljax.games.strategic.deviations import messages_of, usual_deviations
from fljax.games.strategic.equilibria import (
    BestResponseGraph,
    CorrelatedEquilibria,
    MixedEquilibria,
    Potential,
    PureEquilibria,
    best_response_graph,
    correlated_equilibria,
    exact_potential,
    mixed_equilibria,
    mixed_regret,
    payoff_half_width,
    pure_equilibria,
)
from fljax.games.strategic.gains import (
    Attack,
    Certificate,
    Confirmed,
    Control,
    ExPost,
    Gains,
    Harmful,
    Rationality,
    certificate,
    diverged_cells,
    ex_post,
    individual_rationality,
    replace_diverged,
    unilateral_gains,
)
from fljax.games.strategic.pairs import PairCertificate, pair_certificate
from fljax.games.strategic.payoff_tables import PayoffTable
from fljax.games.strategic.playing import payoffs
from fljax.games.strategic.prices import (
    Prices,
    price_of_anarchy,
    price_of_gaming,
    price_of_stability,
    prices_of,
    welfare,
)
from fljax.games.strategic.splitting import split_payoffs
from fljax.games.strategic.utilities import Utility
from fljax.games.tables import (
    CoalitionTable,
    Cost,
    SavedTables,
    by_code,
    divergences,
    from_dataset,
    is_complete,
    load,
    save,
    to_dataset,
    value_of,
)

__all__ = [
    "Attack",
    "BestResponseGraph",
    "Blocking",
    "Certificate",
    "CoalitionTable",
    "Confirmed",
    "Control",
    "CorrelatedEquilibria",
    "Cost",
    "ExPost",
    "Gains",
    "Harmful",
    "MixedEquilibria",
    "PairCertificate",
    "PayoffTable",
    "Potential",
    "Prices",
    "PureEquilibria",
    "Rationality",
    "SavedCertificates",
    "SavedTables",
    "Utility",
    "banzhaf",
    "best_response_graph",
    "beta_shapley",
    "blocking_coalitions",
    "by_code",
    "certificate",
    "certificate_dataset",
    "certificate_of",
    "certify",
    "coalitions",
    "coalitions_of",
    "compare_algorithms",
    "compare_estimators",
    "convexity",
    "core_stable_partitions",
    "correlated_equilibria",
    "diverged_cells",
    "divergences",
    "estimate",
    "ex_post",
    "exact_potential",
    "from_dataset",
    "individual_rationality",
    "is_complete",
    "join_or_leave",
    "least_core",
    "leave_one_out",
    "load",
    "load_certificates",
    "messages_of",
    "mixed_equilibria",
    "mixed_regret",
    "monotonicity",
    "pair_certificate",
    "payoff_half_width",
    "payoffs",
    "price_of_anarchy",
    "price_of_gaming",
    "price_of_stability",
    "prices_of",
    "pure_equilibria",
    "replace_diverged",
    "response_dataset",
    "save",
    "save_certificates",
    "shapley",
    "split_payoffs",
    "superadditivity",
    "to_dataset",
    "unilateral_gains",
    "usual_deviations",
    "value_of",
    "welfare",
    "worth",
]
