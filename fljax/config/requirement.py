"""The table ``[requirement]`` of a config: what each client requires, one for all algorithms.

A comparison has one requirement, with one number or array for each client, so that weights, pool and metrics cannot
differ. ``required_of`` in ``fljax.experiments.inputs.preparation`` adds it to the standalone models before an algorithm
is built. Our GM-Appeal compares losses with it. MaxFL's printed GM-Appeals do not stand beside this metric: those for
unseen clients equal INCFL's IPR, so they stand beside our comparison of test losses
(``global_incentivised_participation_rate``), and those of Table 4 beside the appeal of deployed models.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from fljax.config.forms import Positive, Printable, Table
from fljax.core.names import shown


def _losses(value: Any) -> Any:
    def is_number(number: Any) -> bool:
        return isinstance(number, int | float) and not isinstance(number, bool)

    if is_number(value) and not math.isnan(value):
        return float(value)
    if isinstance(value, list | tuple) and value and all(map(is_number, value)):
        return tuple(map(float, value))
    raise ValueError(f"expected a number or a list of numbers by client, got {shown(value)}")


_Losses = Annotated[
    float | tuple[float, ...], BeforeValidator(_losses), Field(description="number or list of numbers by client")
]


class Requirement(Table):
    """The loss that each client requires, the same for all algorithms, scenarios and metrics: ``fljax.Requirement``.

    It is the loss of the client's standalone model on its ``rows``; or the ``value``; or that of a ``file``, which is
    relative to the config; or what a ``function`` makes of standalone losses. ``factor`` multiplies it. Without this
    table the ``threshold`` of an algorithm or scenario is the requirement of all, or else the standalone training loss.
    """

    rows: Literal["train", "valid", "test"] = "train"
    value: _Losses | None = None
    file: Printable | None = None
    function: Printable | None = None
    factor: Positive = 1.0

    @model_validator(mode="after")
    def _one_source(self) -> Requirement:
        sources = [name for name in ("value", "file", "function") if getattr(self, name) is not None]
        sources = ["rows", *sources] if self.rows != "train" else sources
        if len(sources) > 1:
            raise ValueError(f"expected one of rows, value, file and function, got {' and '.join(sources)}")
        return self
