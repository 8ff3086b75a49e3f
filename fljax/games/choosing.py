"""Which estimators can be compared with a table of coalitions, known before anything trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax.algorithms.measuring import has_head
from fljax.contributions import ESTIMATORS
from fljax.core.names import unknown
from fljax.engine import Plan
from fljax.games.recording import record_runs
from fljax.games.values import algorithm_of
from fljax.protocol import Federation

ROWS = "validation"  # of the server, by which models are judged
# Options that are taken from the task and the federation, where these have them.
_OFFERED = {"shapfed": "head", "fedce": "client_metric"}


class Asked(NamedTuple):
    """What estimators get, as for ``compare_estimators``.

    Attributes:
      plan: what the table is, or will be, of.
      federation: the same.
      metric: by which coalitions are judged.
      rows: the name of the server's rows.
      options: of estimators, by name.
      budget: the largest number of trainings; None: a quarter of all coalitions, and at least 2 N.
    """

    plan: Plan
    federation: Federation
    metric: str
    rows: str = ROWS
    options: Mapping[str, Mapping[str, Any]] = {}
    budget: int | None = None

    @property
    def trainings(self) -> int:
        """The budget as a number."""
        clients = self.federation.clients.id.shape[-1]
        return max(2**clients // 4, 2 * clients) if self.budget is None else self.budget

    @property
    def by_accuracy(self) -> bool:
        """Whether estimators that look at rounds judge models by accuracy."""
        return "loss" not in self.metric and algorithm_of(self.plan).task.score is not None

    def split(self, names: Sequence[str] | None) -> tuple[list[str], str]:
        """The estimators that can run, and in one line which are left out and why; empty: none. Nothing is computed.

        Args:
          names: those that must run; None: all that can.
        """
        for name in (*(names or ()), *self.options):
            if name not in ESTIMATORS:
                raise ValueError(unknown("estimator", name, ESTIMATORS))
        if names is None and self.rows != ROWS:
            self._check_rows()
        lacking = self._lacking(list(ESTIMATORS if names is None else names))
        if names is None:
            return [name for name in ESTIMATORS if name not in lacking], _in_words(lacking)
        for name, reason in lacking.items():
            raise ValueError(f"{reason} (for the estimator {name!r})")
        return list(dict.fromkeys(names)), ""

    def _lacking(self, names: Sequence[str]) -> dict[str, str]:
        """Why some of the estimators cannot run: what was expected and what there is."""
        task, valid = algorithm_of(self.plan).task, self.federation.clients.valid.size
        clients, reasons = self.federation.clients.id.shape[-1], dict[str, str]()
        validated = bool(np.all(np.asarray(valid) > 0)) and task.score is not None
        needs = {
            "shapfed": (has_head(task), "a task with a head of classes, or the option head"),
            "fedce": (validated, "validation rows and an accuracy of all clients, or the option client_metric"),
            "cffl_reputation": (self.by_accuracy, "a table of accuracies"),
        }
        blind = self._blind() if any(not ESTIMATORS[name].on_host for name in names) else ""
        for name in names:
            options, least = self.options.get(name, {}), ESTIMATORS[name].least
            has, words = needs.get(name, (True, ""))
            if not has and _OFFERED.get(name) not in options:
                reasons[name] = f"expected {words}, got none"
            elif blind and not ESTIMATORS[name].on_host:
                reasons[name] = blind
            elif least is not None and (trainings := least(clients, **options)) > self.trainings:
                reasons[name] = f"expected a budget of at least {trainings} trainings, got {self.trainings}"
        return reasons

    def _blind(self) -> str:
        """Why nothing can be seen of the rounds of a run; empty: they can be seen."""
        by_seed = {name: jax.tree.map(lambda rows: rows[:1], values) for name, values in self.plan.by_seed.items()}
        try:
            self._check_rows()
            jax.eval_shape(
                lambda: record_runs(self.plan._replace(by_seed=by_seed), self.federation, rounds=1, seeds=(0,))
            )
        except ValueError as error:
            return str(error)
        return ""

    def _check_rows(self) -> None:
        """Raises a ValueError if the server lacks the rows."""
        if self.rows not in self.federation.held:
            held = self.federation.held
            valid = f"valid names are {', '.join(held)}" if held else "the server has none"
            raise ValueError(
                f"expected rows of the server, got {self.rows!r}; {valid} (held_fraction above 0 gives it rows)"
            )


def _in_words(reasons: Mapping[str, str]) -> str:
    """Which estimators are left out and why, in one line."""
    told = [
        f"{', '.join(name for name in reasons if reasons[name] == reason)} ({reason})"
        for reason in dict.fromkeys(reasons.values())
    ]
    return f"estimators left out: {'; '.join(told)}" if told else ""
