"""The types of fljax: data, tasks, and the protocol of every algorithm.

Floor 0: imports JAX and jaxtyping only. All of these types are pytrees and may cross ``jit``, ``vmap`` and
``lax.scan``. ``Seat.known`` and ``Seat.first`` are static, and so are whole ``Task`` and ``Algorithm`` values: they
have no leaves, and equal values share a program.
"""

from fljax.types.arrays import AnyArray as AnyArray
from fljax.types.arrays import NumpyArray as NumpyArray
from fljax.types.data import ClientData as ClientData
from fljax.types.data import Examples as Examples
from fljax.types.data import Federation as Federation
from fljax.types.data import Held as Held
from fljax.types.data import LocalData as LocalData
from fljax.types.data import Rows as Rows
from fljax.types.data import Subset as Subset
from fljax.types.protocol import Aggregate as Aggregate
from fljax.types.protocol import Algorithm as Algorithm
from fljax.types.protocol import Applied as Applied
from fljax.types.protocol import Ask as Ask
from fljax.types.protocol import Common as Common
from fljax.types.protocol import Counts as Counts
from fljax.types.protocol import InitClient as InitClient
from fljax.types.protocol import InitServer as InitServer
from fljax.types.protocol import Judged as Judged
from fljax.types.protocol import Models as Models
from fljax.types.protocol import Personal as Personal
from fljax.types.protocol import Poll as Poll
from fljax.types.protocol import Select as Select
from fljax.types.protocol import Send as Send
from fljax.types.protocol import Train as Train
from fljax.types.rounds import Available as Available
from fljax.types.rounds import Census as Census
from fljax.types.rounds import Cohort as Cohort
from fljax.types.rounds import Info as Info
from fljax.types.rounds import Labelled as Labelled
from fljax.types.rounds import PerClient as PerClient
from fljax.types.rounds import Seat as Seat
from fljax.types.rounds import along as along
from fljax.types.rounds import seen_from as seen_from
from fljax.types.rounds import unlabelled as unlabelled
from fljax.types.task import Task as Task
