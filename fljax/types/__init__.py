"""The types of fljax: data, tasks, and the protocol of every algorithm.

Floor 0: imports JAX and jaxtyping only. All of these types are pytrees and may cross ``jit``, ``vmap`` and
``lax.scan``. ``Seat.known`` and ``Seat.first`` are static, and so are whole ``Algorithm`` values: they have no leaves,
and equal values share a program. The leaves of a ``Task`` are the arrays that its functions hold
(``fljax.models.freeze``).
"""

from fljax.types.arrays import AnyArray, NumpyArray
from fljax.types.data import ClientData, Examples, Federation, Held, LocalData, Names, Rows, Subset, Vectors
from fljax.types.lists import IndexList, Spans
from fljax.types.protocol import (
    Aggregate,
    Algorithm,
    Applied,
    Ask,
    Common,
    Counts,
    InitClient,
    InitServer,
    Judged,
    Models,
    Personal,
    Poll,
    Select,
    Send,
    Train,
)
from fljax.types.rounds import (
    Available,
    Census,
    Cohort,
    Info,
    Labelled,
    PerClient,
    Seat,
    along,
    rows_of,
    seen_from,
    unlabelled,
    with_rows,
)
from fljax.types.task import Role, Task, TrainingBatch, TrainingKey

__all__ = [
    "Aggregate",
    "Algorithm",
    "AnyArray",
    "Applied",
    "Ask",
    "Available",
    "Census",
    "ClientData",
    "Cohort",
    "Common",
    "Counts",
    "Examples",
    "Federation",
    "Held",
    "IndexList",
    "Info",
    "InitClient",
    "InitServer",
    "Judged",
    "Labelled",
    "LocalData",
    "Models",
    "Names",
    "NumpyArray",
    "PerClient",
    "Personal",
    "Poll",
    "Role",
    "Rows",
    "Seat",
    "Select",
    "Send",
    "Spans",
    "Subset",
    "Task",
    "Train",
    "TrainingBatch",
    "TrainingKey",
    "Vectors",
    "along",
    "rows_of",
    "seen_from",
    "unlabelled",
    "with_rows",
]
