"""A game whose values are expensive: each coalition is valued once, and only as many as a budget allows.

It lives on the host. The value of a coalition is a training, but for the empty one, whose value is that of the model
before training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from fljax.contributions.coalitions import Numbers, clients_of, members_of
from fljax.contributions.estimators.rounds import Cost
from fljax.core import users


class CachedGame:
    """Values of coalitions by code, asked for in groups."""

    def __init__(
        self,
        value: Callable[[Any], Any],
        clients: int,
        *,
        budget: int | None = None,
        together: bool = False,
    ) -> None:
        """A game of N clients.

        Args:
          value: ``members -> number``, where ``members`` are N bools of NumPy; with ``together``
            ``[M, N] -> [M]``: M different coalitions at once, which may be trained side by side.
          clients: N.
          budget: the largest number of trainings; None: any.
          together: see ``value``.

        Raises:
          ValueError: if there is no client, or the budget is negative.
        """
        if clients < 1 or (budget is not None and budget < 0):
            raise ValueError(f"expected at least 1 client and a budget of at least 0, got {clients} and {budget}")
        self.clients, self.budget = clients, budget
        self.known: dict[int, float] = {}
        self._value, self._together = value, together

    @classmethod
    def of_table(cls, values: Numbers, *, budget: int | None = None) -> CachedGame:
        """A game from a table ``[2^N]``, to try an estimator on values that are known.

        Raises:
          ValueError: if the table has not 2^N entries.
        """
        table = np.asarray(values, float)
        clients = clients_of(table)
        if table.ndim != 1:
            raise ValueError(f"expected a table [2^N] of one game, got shape {table.shape}")
        codes = 1 << np.arange(clients)
        return cls(lambda members: table[members @ codes], clients, budget=budget, together=True)

    @property
    def cost(self) -> Cost:
        """Trainings and evaluations until now."""
        return Cost(trainings=len(self.known) - (0 in self.known), evaluations=len(self.known))

    def affords(self, groups: Iterable[Bool[np.ndarray, "M N"]]) -> int:
        """The number of leading groups of coalitions whose values the budget still allows."""
        new: set[int] = set()
        count = 0
        for group in groups:
            new |= {code for code in _codes(group) if code and code not in self.known}
            if self.budget is not None and self.cost.trainings + len(new) > self.budget:
                return count
            count += 1
        return count

    def values(self, members: Bool[np.ndarray, "*M N"]) -> Float[np.ndarray, " *M"]:
        """The values of coalitions ``[..., N]``; new ones are asked for together.

        After an error of ``value`` the same call goes on with those in ``known``.

        Raises:
          ValueError: if the budget is too small, or ``value`` returns something else.
          AlgorithmError: if ``value`` raises an exception.
        """
        rows = np.asarray(members, bool).reshape(-1, self.clients)
        codes = _codes(rows)
        new = {code: row for code, row in zip(codes, rows, strict=True) if code not in self.known}
        if not self.affords([rows]):
            trainings = self.cost.trainings + len(new) - (0 in new)
            raise ValueError(f"expected a budget of at least {trainings} trainings, got {self.budget}")
        if new and self._together:
            wanted, rows = f"a value for each of {len(new)} coalitions", np.stack(list(new.values()))
            self.known.update(zip(new, self._called(rows, wanted, (len(new),)).tolist(), strict=True))
        else:
            for code, row in new.items():
                self.known[code] = float(self._called(row, "one number for a coalition", ()))
        return np.array([self.known[code] for code in codes]).reshape(np.shape(members)[:-1])

    def _called(self, members: Any, wanted: str, shape: tuple[int, ...]) -> Any:
        found = users.call("value", "(members)", self._value, members)
        return users.numbers("value", self._value, wanted, found, shape, np.asarray)

    def table(self) -> Float[np.ndarray, " coalitions"]:
        """The values of all coalitions by code, for at most 16 clients."""
        return self.values(members_of(self.clients))


def _codes(members: np.ndarray) -> list[int]:
    """Codes as Python's whole numbers, which have no largest one."""
    if members.shape[1] < 63:
        return (members @ (1 << np.arange(members.shape[1]))).tolist()
    return [sum(1 << int(i) for i in np.flatnonzero(row)) for row in members]
