"""Scenarios: wrappers of any algorithm that change the behaviour of clients."""

from fljax.scenarios.absence import availability as availability
from fljax.scenarios.absence import dropout as dropout
from fljax.scenarios.appeal_based import appeal_based as appeal_based
from fljax.scenarios.byzantine import byzantine as byzantine
from fljax.scenarios.clipped import clipped as clipped
from fljax.scenarios.common import Entry as Entry
from fljax.scenarios.finetuned import finetuned as finetuned
from fljax.scenarios.free_riding import free_riding as free_riding
from fljax.scenarios.misreporting import misreporting as misreporting
from fljax.scenarios.opting_out import opting_out as opting_out
from fljax.scenarios.registry import REGISTRY as REGISTRY
