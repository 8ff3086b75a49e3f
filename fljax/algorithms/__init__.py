"""Algorithms on the protocol of ``fljax.types``, one file each, and the REGISTRY that names them."""

from fljax.algorithms.common import Entry as Entry
from fljax.algorithms.fedavg import fedavg as fedavg
from fljax.algorithms.incfl import incfl as incfl
from fljax.algorithms.registry import REGISTRY as REGISTRY
from fljax.algorithms.standalone import standalone as standalone
