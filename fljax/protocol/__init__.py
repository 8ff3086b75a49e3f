"""The types of fljax: data, tasks, and the protocol of every algorithm.

All of these types are pytrees and may cross ``jit``, ``vmap`` and
``lax.scan``. ``Seat.known`` and ``Seat.first`` are static, and so are whole ``Algorithm`` values: they have no leaves,
and equal values share a program. The leaves of a ``Task`` are the arrays that its functions hold
(``fljax.models.freeze``).
"""

from fljax.core.lazy import exported as _exported
from fljax.protocol.algorithm import Aggregate as Aggregate
from fljax.protocol.algorithm import Algorithm as Algorithm
from fljax.protocol.algorithm import Applied as Applied
from fljax.protocol.algorithm import Ask as Ask
from fljax.protocol.algorithm import Available as Available
from fljax.protocol.algorithm import Census as Census
from fljax.protocol.algorithm import Cohort as Cohort
from fljax.protocol.algorithm import Common as Common
from fljax.protocol.algorithm import Counts as Counts
from fljax.protocol.algorithm import Exchanged as Exchanged
from fljax.protocol.algorithm import Info as Info
from fljax.protocol.algorithm import InitClient as InitClient
from fljax.protocol.algorithm import InitServer as InitServer
from fljax.protocol.algorithm import Judged as Judged
from fljax.protocol.algorithm import Labelled as Labelled
from fljax.protocol.algorithm import Models as Models
from fljax.protocol.algorithm import Peers as Peers
from fljax.protocol.algorithm import PerClient as PerClient
from fljax.protocol.algorithm import Personal as Personal
from fljax.protocol.algorithm import Poll as Poll
from fljax.protocol.algorithm import Probe as Probe
from fljax.protocol.algorithm import Round as Round
from fljax.protocol.algorithm import Seat as Seat
from fljax.protocol.algorithm import Select as Select
from fljax.protocol.algorithm import Send as Send
from fljax.protocol.algorithm import Train as Train
from fljax.protocol.algorithm import WithPeers as WithPeers
from fljax.protocol.algorithm import along as along
from fljax.protocol.algorithm import is_per_client as is_per_client
from fljax.protocol.algorithm import rows_of as rows_of
from fljax.protocol.algorithm import seen_from as seen_from
from fljax.protocol.algorithm import unlabelled as unlabelled
from fljax.protocol.algorithm import with_rows as with_rows
from fljax.protocol.data import AbsentRows as AbsentRows
from fljax.protocol.data import AnyArray as AnyArray
from fljax.protocol.data import ClientData as ClientData
from fljax.protocol.data import Examples as Examples
from fljax.protocol.data import Features as Features
from fljax.protocol.data import Federation as Federation
from fljax.protocol.data import Held as Held
from fljax.protocol.data import IndexList as IndexList
from fljax.protocol.data import LaterData as LaterData
from fljax.protocol.data import LocalData as LocalData
from fljax.protocol.data import Moments as Moments
from fljax.protocol.data import Names as Names
from fljax.protocol.data import NumpyArray as NumpyArray
from fljax.protocol.data import Rows as Rows
from fljax.protocol.data import RowsAbsent as RowsAbsent
from fljax.protocol.data import Spans as Spans
from fljax.protocol.data import Subset as Subset
from fljax.protocol.data import Vectors as Vectors
from fljax.protocol.roles import Role as Role
from fljax.protocol.roles import Task as Task
from fljax.protocol.roles import TrainingBatch as TrainingBatch
from fljax.protocol.roles import TrainingKey as TrainingKey

__all__ = _exported(globals())  # pyright: ignore[reportUnsupportedDunderAll]
