"""The one list of scenarios: wrappers Algorithm -> Algorithm."""

from __future__ import annotations

from collections.abc import Callable

from fljax.scenarios.finetuned import finetuned
from fljax.types import Algorithm

REGISTRY: dict[str, Callable[..., Algorithm]] = {"finetuned": finetuned}
