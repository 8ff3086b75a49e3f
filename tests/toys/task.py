"""The task of ``fljax.testing``."""

from fljax.testing.federation import CLASSES, FEATURES, Linear, logistic_regression

__all__ = ["CLASSES", "FEATURES", "Linear", "logistic_regression"]
