"""``check_algorithm``: the laws for an algorithm outside the package, in one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.core.names import name_of, unknown
from fljax.protocol import Algorithm
from fljax.testing import coalitions, laws
from fljax.testing.bench import POPULATION, Bench, Case, federation
from fljax.testing.laws import shapes


class Law(NamedTuple):
    """A law that every algorithm obeys.

    Attributes:
      broken: what is wrong with an algorithm that breaks it.
      check: raises an AssertionError if a ``Bench`` breaks it.
      needed: whether the laws after it mean nothing if it is broken.
    """

    broken: str
    check: Callable[[Bench], None]
    needed: bool = False


def _is_traced(case: Bench) -> None:
    state = jax.eval_shape(case.whole, case.numbers, federation(), jnp.uint32(0), jnp.int32(2))
    laws.require(shapes(state) == shapes(case.start()), "the state of a run differs from its start")


LAWS: Mapping[str, Law] = {
    "shapes": Law("the state must keep structure, shapes and dtypes", laws.keeps_shapes, needed=True),
    "traced numbers": Law("seeds, rounds and floats must be allowed to be traced", _is_traced, needed=True),
    "repeatable": Law(
        "two programs of the same run must agree; numbers must come from keys, not from NumPy's or Python's generators",
        laws.is_repeatable,
        needed=True,
    ),
    "double precision": Law(
        "dtypes must be those of the task, also in double precision", lambda case: laws.keeps_shapes(case, double=True)
    ),
    "compiled": Law("a round op by op must be the compiled round", laws.is_compiled_right),
    "chunks": Law("how many clients train side by side must not matter", laws.maps_clients),
    "seeds": Law("seeds must be independent of each other, and differ", laws.maps_seeds),
    "order": Law("the order of clients and of a cohort's rows must not matter", laws.ignores_order),
    "absent clients": Law("a client that does not come must keep its state", laws.keeps_absent_clients),
    "members": Law(
        "a client that left the federation must keep its row, and must not count (Available.members)",
        laws.leaves_out_who_left,
    ),
    "coalitions": Law(
        "a run on some members must be that of a federation of these alone (Census.members, sizes of 0)",
        coalitions.equals_its_members_alone,
    ),
    "empty rows": Law("rows of a cohort without a client must not count", laws.leaves_out_empty_rows),
    "missing values": Law("padding, and data of absent clients, must not be read", laws.never_reads_nan),
    "empty rounds": Law("a round of nobody must change no model and bring no NaN", laws.survives_empty_rounds),
    "dropped messages": Law(
        "a client whose message is dropped must be as an absent one", laws.drops_what_is_not_finite
    ),
    "messages": Law("nothing sent may have the shape of a client's data", laws.sends_no_rows),
    "strangers": Law("unseen clients must not get what belongs to a seen client", laws.keeps_strangers_apart),
    "peers": Law("peers must be a fixed number of ids of clients", laws.names_peers_by_id),
    "streaming": Law("contribute and finish must agree with a stacked cohort", laws.streams_as_it_stacks),
    "platforms": Law("the round must have a form for CPUs, GPUs and TPUs", laws.lowers_for_every_platform),
    "resuming": Law("a run that is continued must be as one without a break", laws.resumes_and_pickles),
}

# Options for parameters without a default, for five clients.
_EXAMPLES = {"threshold": np.full(POPULATION, 0.5, np.float32), "contribution": (1.0, 0.5, 0.8, 0.2, 0.6)}


class Checked(NamedTuple):
    """The laws that an algorithm obeys."""

    name: str
    laws: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{self.name} obeys {len(self.laws)} laws: {', '.join(self.laws)}"


def check_algorithm(build: Callable[..., Algorithm], /, *, only: str | tuple[str, ...] = (), **options: Any) -> Checked:
    """Checks that an algorithm obeys the laws that all algorithms of fljax obey.

    The algorithm runs a few rounds on a tiny federation of five clients and two unseen ones, with logistic regression.
    This takes about half a minute, most of it for compiling. The laws are the keys of ``fljax.testing.LAWS``.

    An algorithm of one's own, and its check:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import fljax
    >>> from fljax import training, trees
    >>> from fljax.algorithms.single_model import contribute_weighted, mean_update, single_model, with_server_optimizer
    >>> from fljax.protocol.messages import Report, Sent
    >>> def clipped_average(task, local, *, clients_per_round=None, norm=1.0):
    ...     '''FedAvg by size, of updates that are scaled to at most a norm.'''
    ...     def train(key, seat, down, client, data):  # one client
    ...         trained = training.train(key, down, data.train, task=task, local=local, round=seat.round)
    ...         update = trees.subtract(trained.params, down)
    ...         length = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(update)))
    ...         factor = norm / jnp.maximum(length, norm)
    ...         return Sent(trees.scale(update, factor), Report(size=data.train.rows.size)), client
    ...
    ...     contribute = contribute_weighted(lambda up: up.report.size)  # what one client adds to the sums
    ...     server = with_server_optimizer(task, contribute, mean_update, 1.0, "sgd")
    ...     return single_model(task, clients_per_round=clients_per_round, train=train, **server)
    >>> fljax.testing.check_algorithm(clipped_average, norm=0.5, only=("shapes", "empty rounds"))
    clipped_average obeys 2 laws: shapes, empty rounds

    Args:
      build: ``build(task, local, **options) -> Algorithm``. ``threshold`` and ``contribution`` get examples for five
        clients, and ``clients_per_round`` is 4, unless options give them.
      only: names of laws; empty: all.
      **options: of the builder. Arrays by client are of five clients.

    Returns:
      The laws that were checked.

    Raises:
      AssertionError: if laws are broken, with one sentence for each.
      ValueError: if ``only`` has an unknown name; and what the builder itself raises.
    """
    only = (only,) if isinstance(only, str) else only
    for law_name in only:
        if law_name not in LAWS:
            raise ValueError(unknown("law", law_name, LAWS))
    parameters = inspect.signature(build).parameters
    arguments = {name: value for name, value in _EXAMPLES.items() if name in parameters} | options
    if "clients_per_round" in parameters:
        arguments.setdefault("clients_per_round", 4)  # so that somebody is left out
    name, broken, cause = name_of(build), list[str](), None
    chosen = {law_name: law for law_name, law in LAWS.items() if not only or law_name in only}
    bench = Bench(Case(build, arguments))
    for law_name, law in chosen.items():
        try:
            law.check(bench)
        except AssertionError as error:
            broken.append(f"{law_name}: {law.broken}; {error}")
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            broken.append(f"{law_name}: {law.broken}; {type(error).__name__}: {first}")
            cause = cause or error
        if broken and law.needed:
            break
    if broken:
        kind = "a law" if len(broken) == 1 else f"{len(broken)} laws"
        raise AssertionError("\n".join([f"{name} breaks {kind} of algorithms", *broken])) from cause
    return Checked(name, tuple(chosen))
