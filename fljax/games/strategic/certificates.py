"""Certificates as labelled arrays and on the disk, and graphs of best responses as labelled arrays."""

from __future__ import annotations

import pathlib
from typing import Any, Final, NamedTuple

import numpy as np
import xarray as xr

from fljax.contributions import Bounds, simultaneous_bounds
from fljax.core.files import write
from fljax.core.sameness.record import FORCED, forced_in
from fljax.games.strategic.equilibria import BestResponseGraph
from fljax.games.strategic.gains import Attack, Certificate, Control, Gains, concluded, ex_post
from fljax.results import net_cdf

_BOUNDS = ("mean", "error", "low", "high")
_NEEDED = ("payoff", "honest", "diverged", "honest_diverged", "deviator", "deviation", *_BOUNDS)
_SETTINGS = ("tolerance", "confidence", "critical", "method")
# Beside them, what ``certificate_of`` reads; the rest follows from these.
_OPTIONAL = ("outside", "attack_", "control_", "left_out")
# Where labels and certificates stand in a file.
_IN_FILE: Final = {"listed": "certificates", "group": "certificate"}
_OF_ATTACK = ("client", "candidates", "searched", "mean", "low", "high")


def certificate_dataset(certificate: Certificate) -> xr.Dataset:
    """The certificate as labelled arrays over ``seed``, ``cell`` and ``client``.

    Returns:
      By cell: ``deviator``, ``deviation``, ``verdict_of_cell``, and ``mean``, ``error``, ``low`` and ``high`` of the
      gain. By seed, too: ``gain``, ``loss`` (the mean loss of another client), ``welfare`` (its change) and, with
      outside options, ``participation``; of each of these three ``..._low`` and ``..._high`` by cell, Bonferroni's
      bounds that hold for all cells at once. ``payoff`` is by client, too. ``honest`` and ``outside`` are payoffs by
      seed and client, and ``outside_is`` says of what; ``name`` has the names of clients. Single numbers: ``verdict``,
      ``epsilon_low``, ``epsilon_high``, ``worst``, ``seeds_needed`` (NaN: none), ``confirmed_...``, ``harmful_...`` if
      the others lose in some cell, and with outside options ``irrational``, the share of clients with less than theirs,
      with ``irrational_low``, ``irrational_high``, and ``surplus`` by client with ``surplus_low``, ``surplus_high``.
      For single seeds (``ex_post``): ``quantile`` by ``level`` and cell, ``largest_quantile`` by level, ``above`` by
      cell, ``violated_seeds`` and ``violated_seeds_high``. With an attack ``attack_...``, with its numbers by
      ``attack_field``; with controls ``control_...`` by ``control``; ``left_out_name`` and
      ``left_out_reason`` of deviations that were not played.
    """
    gains, cells = certificate.gains, ("seed", "cell")
    single, harmful = ex_post(certificate), certificate.harmful
    variables: dict[str, Any] = {
        "gain": (cells, gains.gains),
        "loss": (cells, gains.losses),
        "welfare": (cells, gains.welfare),
        "payoff": ((*cells, "client"), gains.payoffs),
        "honest": (("seed", "client"), gains.honest),
        "outside_is": ((), gains.outside_is),
        "diverged": (cells, gains.diverged.astype(np.int8)),
        "honest_diverged": ("seed", gains.honest_diverged.astype(np.int8)),
        "verdict_of_cell": ("cell", np.asarray(certificate.verdicts, dtype=str)),
        **{name: ("cell", getattr(certificate.bounds, name)) for name in _BOUNDS},
        "critical": ((), certificate.bounds.critical),
        **{name: ((), getattr(certificate, name)) for name in ("verdict", "epsilon_low", "epsilon_high", "worst")},
        "seeds_needed": ((), np.nan if certificate.seeds_needed is None else float(certificate.seeds_needed)),
        **{f"confirmed_{name}": ((), value) for name, value in certificate.confirmed._asdict().items()},
        **({} if harmful is None else {f"harmful_{name}": ((), value) for name, value in harmful._asdict().items()}),
        **{name: ((), getattr(certificate, name)) for name in ("tolerance", "confidence", "method")},
        "quantile": (("level", "cell"), single.quantiles),
        "largest_quantile": ("level", single.largest),
        "above": ("cell", single.above),
        "violated_seeds": ((), single.violated),
        "violated_seeds_high": ((), single.violated_high),
        **_bounds_of_others(certificate),
        **_evidence(certificate),
    }
    if gains.outside is not None:
        variables["outside"] = ("seed", "client"), gains.outside
        variables["participation"] = cells, gains.participation
    if certificate.rationality is not None:
        rationality = certificate.rationality
        shares = {"": rationality.share, "_low": rationality.low, "_high": rationality.high}
        variables |= {f"irrational{end}": ((), value) for end, value in shares.items()}
        surplus = {"": rationality.surplus.mean, "_low": rationality.surplus.low, "_high": rationality.surplus.high}
        variables |= {f"surplus{end}": ("client", values) for end, values in surplus.items()}
    coordinates = {
        "seed": list(gains.seeds),
        "client": np.arange(gains.honest.shape[1]),
        "name": ("client", np.asarray(gains.names or np.arange(gains.honest.shape[1]), dtype=str)),
        "level": list(single.levels),
        "deviator": ("cell", gains.clients),
        "deviation": ("cell", np.asarray(gains.deviations, dtype=str)),
    }
    return xr.Dataset(variables, coordinates, {FORCED: certificate.forced} if certificate.forced else {})


def _bounds_of_others(certificate: Certificate) -> dict[str, Any]:
    """Bounds by cell of what a deviation does beside the gain."""
    gains, variables = certificate.gains, dict[str, Any]()
    changes = {"loss": gains.losses, "welfare": gains.welfare, "participation": gains.participation}
    for name, values in changes.items():
        if values is not None:
            bounds = simultaneous_bounds(values, certificate.confidence)
            variables |= {f"{name}_low": ("cell", bounds.low), f"{name}_high": ("cell", bounds.high)}
    return variables


def _evidence(certificate: Certificate) -> dict[str, Any]:
    """The attack, the controls, and what was not played; what there is none of has no variables."""
    variables: dict[str, Any] = {}
    if certificate.attack is not None:
        fields, numbers = zip(*certificate.attack.strategy, strict=True)
        variables |= {f"attack_{name}": ((), getattr(certificate.attack, name)) for name in _OF_ATTACK}
        variables |= {"attack_field": ("attack_field", np.asarray(fields, dtype=str))}
        variables |= {"attack_number": ("attack_field", np.asarray(numbers, float))}
    if certificate.controls:
        columns = zip(Control._fields, zip(*certificate.controls, strict=True), strict=True)
        variables |= {f"control_{name}": ("control", np.asarray(values)) for name, values in columns}
    if certificate.left_out:
        names, reasons = zip(*certificate.left_out, strict=True)
        variables |= {"left_out_name": ("left_out", np.asarray(names, dtype=str))}
        variables |= {"left_out_reason": ("left_out", np.asarray(reasons, dtype=str))}
    return variables


def certificate_of(dataset: xr.Dataset) -> Certificate:
    """The certificate of labelled arrays, the inverse of ``certificate_dataset``.

    Raises:
      ValueError: if the dataset is no certificate.
    """
    lacking = [name for name in (*_NEEDED, *_SETTINGS) if name not in dataset.variables]
    if lacking:
        raise ValueError(f"expected a certificate, got a dataset without {', '.join(lacking)}")
    arrays = dataset.transpose("seed", "cell", "client", ...)
    gains = Gains(
        payoffs=np.asarray(arrays["payoff"].values, float),
        clients=np.asarray(arrays["deviator"].values, int),
        deviations=tuple(map(str, arrays["deviation"].values.tolist())),
        honest=np.asarray(arrays["honest"].values, float),
        outside=np.asarray(arrays["outside"].values, float) if "outside" in arrays else None,
        diverged=arrays["diverged"].values.astype(bool),
        honest_diverged=arrays["honest_diverged"].values.astype(bool),
        seeds=tuple(arrays["seed"].values.tolist()),
        # Older files have neither: there a client alone has the mechanism with one member, and ids are names.
        outside_is=str(arrays["outside_is"].values) if "outside_is" in arrays else "mechanism",
        names=_names_of(arrays),
    )
    bounds = Bounds(*(np.asarray(arrays[name].values, float) for name in _BOUNDS), critical=float(arrays["critical"]))
    result = concluded(
        gains,
        bounds,
        tolerance=float(arrays["tolerance"]),
        confidence=float(arrays["confidence"]),
        method=str(arrays["method"].values),
        attack=_attack_of(arrays),
        controls=_controls_of(arrays),
    )
    result = result._replace(forced=forced_in(dataset))
    if "left_out_name" not in arrays:
        return result
    columns = (map(str, arrays[f"left_out_{part}"].values.tolist()) for part in ("name", "reason"))
    return result._replace(left_out=tuple(zip(*columns, strict=True)))


def _names_of(arrays: xr.Dataset) -> tuple[str, ...]:
    names = tuple(map(str, arrays["name"].values.tolist() if "name" in arrays.coords else ()))
    return () if names == tuple(map(str, range(arrays.sizes["client"]))) else names


def _attack_of(arrays: xr.Dataset) -> Attack | None:
    if "attack_client" not in arrays:
        return None
    fields, numbers = arrays["attack_field"].values.tolist(), arrays["attack_number"].values.tolist()
    ends = [float(arrays[f"attack_{name}"]) for name in ("searched", "mean", "low", "high")]
    strategy = tuple(zip(map(str, fields), map(float, numbers), strict=True))
    return Attack(int(arrays["attack_client"]), strategy, int(arrays["attack_candidates"]), *ends)


def _controls_of(arrays: xr.Dataset) -> tuple[Control, ...]:
    if "control_name" not in arrays:
        return ()
    columns = [arrays[f"control_{name}"].values.tolist() for name in Control._fields]
    return tuple(
        Control(str(name), str(expected), str(verdict), *map(float, numbers))
        for name, expected, verdict, *numbers in zip(*columns, strict=True)
    )


def response_dataset(graph: BestResponseGraph) -> xr.Dataset:
    """The graph as labelled arrays over ``edge``, ``profile`` and ``client``.

    Returns:
      By edge: ``source``, ``target``, ``mover`` and ``gain``. By profile: ``sink``, ``in_cycle``, whether one of the
      cycles goes through it, and ``choice`` by client, too. ``strategy`` has the names of strategies.
    """
    in_cycle = np.zeros(len(graph.sinks), np.int8)
    in_cycle[[place for cycle in graph.cycles for place in cycle]] = 1
    return xr.Dataset(
        {
            "source": ("edge", graph.source),
            "target": ("edge", graph.target),
            "mover": ("edge", graph.client),
            "gain": ("edge", graph.gain),
            "sink": ("profile", graph.sinks.astype(np.int8)),
            "in_cycle": ("profile", in_cycle),
            "choice": (("profile", "client"), graph.choices),
        },
        {"client": np.arange(graph.choices.shape[1]), "strategy": np.asarray(graph.strategies, dtype=str)},
    )


class SavedCertificates(NamedTuple):
    """The content of a file of certificates.

    Attributes:
      certificates: by label, for example of the algorithm.
      config: the text of the config that they are of; "" without one.
      fljax: the version that wrote them.
      question: what was asked, as text; "" if it is not known.
      data: a checksum of the data that they are of; "" if it is not known.
      record: of settings and code, as JSON; "" of an older fljax.
    """

    certificates: dict[str, Certificate]
    config: str
    fljax: str
    question: str = ""
    data: str = ""
    record: str = ""


def save_certificates(
    path: str | pathlib.Path,
    certificates: dict[str, Certificate],
    config: str = "",
    *,
    question: str = "",
    data: str = "",
) -> None:
    """Writes certificates into one netCDF file, atomically, each in a group of its own.

    A group has what ``certificate_of`` reads of a ``certificate_dataset``, and not what follows from it.

    Args:
      path: the file.
      certificates: by label, for example of the algorithm.
      config: the text of the config that they are of.
      question: what was asked, as text.
      data: a checksum of the data.

    Raises:
      OSError: if the disk has no room, or the folder does not exist.
    """
    root = net_cdf.origin(config).assign(question=((), question), data=((), data))
    datasets = {label: _necessary(entry) for label, entry in certificates.items()}
    write(pathlib.Path(path), net_cdf.encoded_by_label(root, datasets, **_IN_FILE))


def _necessary(certificate: Certificate) -> xr.Dataset:
    """The variables that are saved: writing all of them takes three times as long."""
    dataset = certificate_dataset(certificate)
    names = [str(name) for name in dataset.data_vars]
    return dataset[[name for name in names if name in (*_NEEDED, *_SETTINGS) or name.startswith(_OPTIONAL)]]


def load_certificates(path: str | pathlib.Path) -> SavedCertificates:
    """Reads the certificates of a file that ``save_certificates`` wrote.

    Raises:
      ValueError: if the file cannot be read, is damaged, or has no certificates.
    """
    root, datasets = net_cdf.read_by_label(pathlib.Path(path), "certificates", **_IN_FILE)
    certificates = {label: certificate_of(dataset) for label, dataset in datasets.items()}
    texts = {name: str(root[name].values) if name in root else "" for name in SavedCertificates._fields[1:]}
    return SavedCertificates(certificates, **texts)
