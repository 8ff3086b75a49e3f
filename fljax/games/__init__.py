"""Games of clients: every coalition retrained from scratch, and what each client is worth in the table of values.

``coalitions`` retrains, as runs of one compiled program. Functions of its ``CoalitionTable`` say what clients are worth
(``shapley``, ``banzhaf``, ``leave_one_out`` and others), with the arithmetic of ``fljax.contributions``; ``worth`` says
it all at once. ``fljax worth CONFIG`` does so for the algorithms of a config.

``payoffs`` plays profiles of strategies, such as every client that deviates in turn, and gives a ``PayoffTable``.
"""

from fljax.games.comparing import compare_estimators
from fljax.games.deviations import messages_of, usual_deviations
from fljax.games.estimates import estimate
from fljax.games.payoff_tables import PayoffTable
from fljax.games.playing import payoffs
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
from fljax.games.utilities import Utility

__all__ = [
    "CoalitionTable",
    "Cost",
    "PayoffTable",
    "SavedTables",
    "Utility",
    "banzhaf",
    "beta_shapley",
    "by_code",
    "coalitions",
    "compare_estimators",
    "convexity",
    "divergences",
    "estimate",
    "from_dataset",
    "is_complete",
    "least_core",
    "leave_one_out",
    "load",
    "messages_of",
    "monotonicity",
    "payoffs",
    "save",
    "shapley",
    "superadditivity",
    "to_dataset",
    "usual_deviations",
    "value_of",
    "worth",
]
