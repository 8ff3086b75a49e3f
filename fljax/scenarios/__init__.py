"""Scenarios: wrappers of any algorithm that change the behaviour of clients, or what a server makes of updates."""

from fljax.core.lazy import exported as _exported
from fljax.scenarios.absence import availability as availability
from fljax.scenarios.absence import dropout as dropout
from fljax.scenarios.adaptive_effort import adaptive_effort as adaptive_effort
from fljax.scenarios.appeal_based import appeal_based as appeal_based
from fljax.scenarios.backdoor import backdoor as backdoor
from fljax.scenarios.byzantine import byzantine as byzantine
from fljax.scenarios.clipped import clipped as clipped
from fljax.scenarios.colluding import colluding as colluding
from fljax.scenarios.common import Entry as Entry
from fljax.scenarios.drift import drift as drift
from fljax.scenarios.effort import effort as effort
from fljax.scenarios.finetuned import finetuned as finetuned
from fljax.scenarios.free_riding import free_riding as free_riding
from fljax.scenarios.heterogeneous_training import heterogeneous_training as heterogeneous_training
from fljax.scenarios.median_clipped import median_clipped as median_clipped
from fljax.scenarios.misreporting import misreporting as misreporting
from fljax.scenarios.opting_out import opting_out as opting_out
from fljax.scenarios.registry import REGISTRY as REGISTRY
from fljax.scenarios.robust import robust as robust
from fljax.scenarios.sampling import client_sampling as client_sampling
from fljax.scenarios.strategic import ByReport as ByReport
from fljax.scenarios.strategic import Deviation as Deviation
from fljax.scenarios.strategic import Knowledge as Knowledge
from fljax.scenarios.strategic import Strategy as Strategy
from fljax.scenarios.strategic import strategic as strategic

__all__ = _exported(globals())  # pyright: ignore[reportUnsupportedDunderAll]
