"""The table ``[metrics]`` of a config: settings of metrics, and the scores of the task beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from fljax.config.forms import MOST_ENTRIES, Count, NumberOrNumbers, Printable, Table, as_tuple


class ScoreEntry(Table):
    """A score by its name alone, or a table with its name and, for a function of one's own, its direction."""

    name: Printable
    lower: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, raw: Any) -> Any:
        return raw if isinstance(raw, Mapping | ScoreEntry) else {"name": raw}


class Metrics(Table):
    """Settings of metrics, which change no run.

    ``opt_out_threshold`` is IP-FL's delta, the gain in accuracy below which a client counts among ``opt_outs``: one
    number, or one by client id; unseen clients then have 0. Clients leave by ``delta`` of the scenario ``opting_out``.
    ``scores`` are names of ``fljax.metrics.SCORES`` or ``"module:object"``, computed at every ``score_every``-th
    evaluation and at the last one; without ``score_every`` at the last one alone. ``extra`` names metrics that take
    more computation; those of ``stop.metric`` and ``sweep.metric`` need not be named.
    """

    opt_out_threshold: NumberOrNumbers = 0.0
    extra: Annotated[tuple[Printable, ...], BeforeValidator(as_tuple), Field(max_length=MOST_ENTRIES)] = ()
    scores: Annotated[tuple[ScoreEntry, ...], BeforeValidator(as_tuple), Field(max_length=MOST_ENTRIES)] = ()
    score_every: Count | None = None
