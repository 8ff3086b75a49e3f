"""Games of clients: every coalition retrained from scratch, and what each client is worth in the table of values.

``coalitions`` retrains, as runs of one compiled program. Functions of its ``CoalitionTable`` say what clients are worth
(``shapley``, ``banzhaf``, ``leave_one_out`` and others), with the arithmetic of ``fljax.contributions``; ``worth`` says
it all at once. ``fljax worth CONFIG`` does so for the algorithms of a config.
"""

from fljax.games.comparing import compare_algorithms, compare_estimators
from fljax.games.estimates import estimate
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

__all__ = [
    "CoalitionTable",
    "Cost",
    "SavedTables",
    "banzhaf",
    "beta_shapley",
    "by_code",
    "coalitions",
    "compare_algorithms",
    "compare_estimators",
    "convexity",
    "divergences",
    "estimate",
    "from_dataset",
    "is_complete",
    "least_core",
    "leave_one_out",
    "load",
    "monotonicity",
    "save",
    "shapley",
    "superadditivity",
    "to_dataset",
    "value_of",
    "worth",
]
