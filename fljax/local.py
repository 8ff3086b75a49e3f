"""The old name of ``fljax.training``; it goes with the next version."""

from __future__ import annotations

from fljax.naming import renamed

_NAMES = {"corrected": "with_correction", "judged": "counted_scores", "shuffled": "shuffle"}
__getattr__ = renamed("fljax.local", "fljax.training", _NAMES, rest=True)
