"""How many clients are moved to the devices at a time, and which of their rows."""

from __future__ import annotations

from typing import NamedTuple

from fljax.core import trees
from fljax.engine.devices.layout import Layout
from fljax.engine.offload.host_data import HostData, Population
from fljax.engine.offload.reads import Parts, Reads
from fljax.engine.rounds.states import State

# Bytes of a block of clients, their rows and states, unless the clients that are computed at a time have more. Two
# blocks are on the devices at a time.
BLOCK = 2**26


class Move(NamedTuple):
    """The blocks of clients that one kind of program gets.

    Attributes:
      parts: the parts of their data that are moved.
      clients: the number of clients of a block.
      capacity: the number of rows that a block has room for; 0 if the examples are on the devices.
      kept: whether their states are needed.
      unseen: whether they are unseen clients.
    """

    parts: Parts
    clients: int
    capacity: int
    kept: bool = True
    unseen: bool = False


class Moves(NamedTuple):
    """The blocks before round 0, of a poll, of a round and of evaluations; ``judge_once`` is one client."""

    begin: Move
    poll: Move
    train: Move
    judge_seen: Move
    judge_unseen: Move
    judge_once: Move

    @classmethod
    def of(
        cls, reads: Reads, layout: Layout, data: HostData | None, state: State, cohort: int, clients: int, unseen: int
    ) -> Moves:
        """For a run with ``clients`` seen clients, ``unseen`` unseen ones and a ``cohort`` of so many rows."""
        seen, others = (None, None) if data is None else (data.seen, data.unseen)
        row = 0 if data is None else data.row_bytes
        kept = trees.bytes_of(state.clients) // max(clients, 1) if layout.client_states == "host" else 0

        def move(
            parts: Parts, people: Population | None, count: int, lanes: int, kept: int, unseen: bool = False
        ) -> Move:
            return block_of(parts, people, count, lanes * layout.devices, row, kept)._replace(unseen=unseen)

        lanes = layout.evaluation
        return cls(
            move(reads.begin, seen, clients, lanes, 0),
            move(reads.poll, seen, clients, lanes, kept),
            move(reads.train, seen, cohort, layout.clients, kept),
            move(reads.judge_seen, seen, clients, lanes, kept),
            move(reads.judge_unseen, others, unseen, lanes, 0, True),
            Move(("test",), 1, _capacity(seen, ("test",), 1), bool(kept)),
        )


def block_of(parts: Parts, people: Population | None, count: int, at_once: int, row: int, kept: int) -> Move:
    """Blocks of ``count`` clients: as many as fit ``BLOCK``, a multiple of those that the devices compute at a time.

    A block has at most half of all clients, so that one half moves while the other is computed.

    Args:
      parts: the parts of their data that are read.
      people: the clients; None: their examples are on the devices.
      count: the number of clients.
      at_once: clients that the devices compute at a time.
      row: bytes of an example.
      kept: bytes of a client's state on the host; 0 if it is not moved.
    """
    at_once = max(1, min(count, at_once))
    times = 1
    while 4 * times * at_once <= count + at_once:
        clients = 2 * times * at_once
        if _capacity(people, parts, clients) * row + clients * kept > BLOCK:
            break
        times *= 2
    return Move(parts, times * at_once, _capacity(people, parts, times * at_once), bool(kept))


def _capacity(people: Population | None, parts: Parts, clients: int) -> int:
    return 0 if people is None else people.most(parts, clients)
