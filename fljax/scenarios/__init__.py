"""Scenarios: wrappers of any algorithm that change the behaviour of clients, or what a server makes of updates."""

from fljax.scenarios.absence import availability, dropout
from fljax.scenarios.adaptive_effort import adaptive_effort
from fljax.scenarios.appeal_based import appeal_based
from fljax.scenarios.byzantine import byzantine
from fljax.scenarios.clipped import clipped
from fljax.scenarios.common import Entry
from fljax.scenarios.drift import drift
from fljax.scenarios.effort import effort
from fljax.scenarios.finetuned import finetuned
from fljax.scenarios.free_riding import free_riding
from fljax.scenarios.median_clipped import median_clipped
from fljax.scenarios.misreporting import misreporting
from fljax.scenarios.opting_out import opting_out
from fljax.scenarios.registry import REGISTRY
from fljax.scenarios.strategic import ByReport, Deviation, Knowledge, Strategy, strategic

__all__ = [
    "REGISTRY",
    "ByReport",
    "Deviation",
    "Entry",
    "Knowledge",
    "Strategy",
    "adaptive_effort",
    "appeal_based",
    "availability",
    "byzantine",
    "clipped",
    "drift",
    "dropout",
    "effort",
    "finetuned",
    "free_riding",
    "median_clipped",
    "misreporting",
    "opting_out",
    "strategic",
]
