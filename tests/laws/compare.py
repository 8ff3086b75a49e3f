"""Comparisons of pytrees, from ``fljax.testing``."""

from fljax.testing.laws import assert_close, assert_finite, assert_same, is_same, shapes

__all__ = ["assert_close", "assert_finite", "assert_same", "is_same", "shapes"]
