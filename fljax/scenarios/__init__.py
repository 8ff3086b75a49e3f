"""Scenarios wrap any algorithm: what clients do besides training."""

from fljax.scenarios.finetuned import finetuned as finetuned
from fljax.scenarios.registry import REGISTRY as REGISTRY
