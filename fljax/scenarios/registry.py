"""The one list of scenarios: wrappers Algorithm -> Algorithm. New ones come last: the laws take samples by place."""

from __future__ import annotations

from fljax.scenarios.absence import AVAILABILITY_ENTRY, DROPOUT_ENTRY
from fljax.scenarios.adaptive_effort import ENTRY as adaptive_effort
from fljax.scenarios.appeal_based import ENTRY as appeal_based
from fljax.scenarios.backdoor import ENTRY as backdoor
from fljax.scenarios.byzantine import ENTRY as byzantine
from fljax.scenarios.clipped import ENTRY as clipped
from fljax.scenarios.colluding import ENTRY as colluding
from fljax.scenarios.common import Entry
from fljax.scenarios.drift import ENTRY as drift
from fljax.scenarios.effort import ENTRY as effort
from fljax.scenarios.finetuned import ENTRY as finetuned
from fljax.scenarios.free_riding import ENTRY as free_riding
from fljax.scenarios.heterogeneous_training import ENTRY as heterogeneous_training
from fljax.scenarios.median_clipped import ENTRY as median_clipped
from fljax.scenarios.misreporting import ENTRY as misreporting
from fljax.scenarios.opting_out import ENTRY as opting_out
from fljax.scenarios.robust import ENTRY as robust
from fljax.scenarios.sampling import ENTRY as client_sampling
from fljax.scenarios.strategic import ENTRY as strategic

REGISTRY: dict[str, Entry] = {
    "appeal_based": appeal_based,
    "availability": AVAILABILITY_ENTRY,
    "byzantine": byzantine,
    "clipped": clipped,
    "drift": drift,
    "dropout": DROPOUT_ENTRY,
    "effort": effort,
    "finetuned": finetuned,
    "free_riding": free_riding,
    "median_clipped": median_clipped,
    "misreporting": misreporting,
    "opting_out": opting_out,
    "strategic": strategic,
    "adaptive_effort": adaptive_effort,
    "client_sampling": client_sampling,
    "heterogeneous_training": heterogeneous_training,
    "robust": robust,
    "colluding": colluding,
    "backdoor": backdoor,
}
