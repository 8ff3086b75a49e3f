"""Designs as labelled arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from fljax.games.mechanisms.designing import DESIGNED, Design
from fljax.games.mechanisms.steps import Found
from fljax.games.strategic.gains import Certificate

STAGES = ("searched", "validated", "fresh")
_CERTIFIED = ("verdict", "epsilon_low", "epsilon_high")
_BARS = ("mean", "low", "high")


def design_dataset(design: Design) -> xr.Dataset:
    """The design as labelled arrays over ``mechanism``, ``epsilon`` (tolerances) and ``place`` (fresh federations).

    Returns:
      By ``stage`` (searched, validated, fresh), mechanism and epsilon: the ``objective``, the ``regret`` with its
      ``error``, the ``lie`` that has it, and ``worse_off``. By mechanism and epsilon: ``verdict``, ``epsilon_low``
      and ``epsilon_high`` of certificates ("" and NaN without one), ``certified_from``, the least tolerance with which
      they say CERTIFIED, and ``price_mean``, ``price_low``, ``price_high``
      of ``Design.price`` (0 of the designed mechanism). ``fresh_objective`` is by place, too. By ``number``:
      ``argument`` and ``argument_before`` with the coordinates ``of_mechanism``, ``of_epsilon``, ``name`` and, for
      arrays, ``entry`` (else -1); ``worth_mean``, ``worth_low`` and ``worth_high`` are those of its whole argument.
      ``runs`` is one number.
    """
    labels, rows = list(design.chosen), list(design.chosen.values())
    by = ("mechanism", "epsilon")
    variables: dict[str, Any] = {
        name: (("stage", *by), np.array([[[getattr(getattr(one, stage), name) for one in row] for row in rows]
        for stage in STAGES]))
        for name in Found._fields
    }  # fmt: skip
    tolerances = [chosen.tolerance for chosen in rows[0]]
    prices = [[design.price(tolerance, label) for tolerance in tolerances] for label in labels if label != DESIGNED]
    for name in _BARS:
        others = [[float(getattr(price, name)) for price in row] for row in prices]
        variables[f"price_{name}"] = by, np.array([[0.0] * len(tolerances), *others])
    certificates = [[one.certificate for one in row] for row in rows]
    for name, absent in zip(_CERTIFIED, ("", np.nan, np.nan), strict=True):
        variables[name] = by, np.array([[getattr(one, name, absent) for one in row] for row in certificates])
    variables["certified_from"] = by, np.array([[_certified_from(one) for one in row] for row in certificates])
    variables["fresh_objective"] = (*by, "place"), np.array([[one.objective for one in row] for row in rows])
    numbers = [
        (label, one.tolerance, name, entry if np.ndim(value) else -1, found, was, worth.mean, worth.low, worth.high)
        for label, row in design.chosen.items()
        for one in row
        for name, value in one.arguments.items()
        for worth in [one.worth[name]]
        for entry, (found, was) in enumerate(zip(np.ravel(value), np.ravel(one.before[name]), strict=True))
    ]
    names = ("of_mechanism", "of_epsilon", "name", "entry", "argument", "argument_before")
    names += tuple(f"worth_{bar}" for bar in _BARS)
    columns = list(zip(*numbers, strict=True)) or [()] * len(names)
    table = {name: ("number", np.array(values)) for name, values in zip(names, columns, strict=True)}
    coordinates = {"stage": list(STAGES), "mechanism": labels, "epsilon": tolerances}
    return xr.Dataset({**variables, **table, "runs": design.runs}, coordinates).set_coords(names[:4])


def _certified_from(certificate: Certificate | None) -> float:
    if certificate is None or "NO EFFECT SEEN" in certificate.verdicts:
        return np.nan
    return max(0.0, certificate.epsilon_high, 0.0 if certificate.attack is None else certificate.attack.high)
