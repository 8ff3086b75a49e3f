"""Checks for algorithms of one's own: ``check_algorithm(build)`` runs the laws that all algorithms of fljax obey.

Also the tiny federation and the task that they are checked on. Nothing here needs pytest.
"""

from fljax.testing.checking import LAWS, Checked, Law, check_algorithm
from fljax.testing.federation import logistic_regression, tiny_federation

__all__ = ["LAWS", "Checked", "Law", "check_algorithm", "logistic_regression", "tiny_federation"]
