"""Small made-up results with data for every kind of figure."""

from __future__ import annotations

import numpy as np
import xarray as xr

from fljax.results.events import Results

LABELS = ("fedavg", "incfl", "iafl")
UNSEEN = 3


def small(labels: tuple[str, ...] = LABELS, seeds: int = 2, clients: int = 5, rounds: int = 6) -> Results:
    """Evaluations after rounds 0, half and all; the last client has no test rows.

    The second label records gaps and weights of INCFL; the last one contributions and reward rates that rise with the
    id of a client, tokens, and polled losses.
    """
    random = np.random.default_rng(0)
    evaluated = np.array([0, rounds // 2, rounds])
    three = ("algorithm", "seed", "evaluated_round")
    shape = (len(labels), seeds, len(evaluated))
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for prefix, dimension, count in (("", "client", clients), ("unseen_", "unseen", UNSEEN)):
        accuracy = random.uniform(0.2, 0.9, (*shape, count))
        loss = random.uniform(0.3, 2.0, (*shape, count))
        if not prefix:
            accuracy[..., -1], loss[..., -1] = np.nan, np.nan
        variables[f"{prefix}test_accuracy"] = ((*three, dimension), accuracy)
        for name in ("test_loss", "global_test_loss"):
            variables[prefix + name] = ((*three, dimension), loss)
        variables[f"{prefix}standalone_test_accuracy"] = (("seed", dimension), random.uniform(0.2, 0.9, (seeds, count)))
        variables[f"{prefix}standalone_test_loss"] = (("seed", dimension), random.uniform(0.3, 2.0, (seeds, count)))
        required = random.uniform(0.3, 2.0, (len(labels), seeds, count))
        variables[f"{prefix}required_loss"] = (("algorithm", "seed", dimension), required)
        for name in ("incentivised_participation_rate", "average_accuracy"):
            variables[prefix + name] = (three, random.uniform(0.2, 0.9, shape))
    counts = random.integers(0, 9, (*shape, clients, 3, 3)) * (np.arange(clients) < clients - 1)[:, None, None]
    variables["score_confusion"] = ((*three, "client", "label", "predicted"), counts.astype(float))
    coordinates = {
        "algorithm": list(labels),
        "seed": np.arange(seeds) + 7,
        "evaluated_round": evaluated,
        "client": np.arange(clients),
        "unseen": np.arange(UNSEEN),
    }
    return Results(xr.Dataset(variables, coordinates), records(labels, seeds, clients, rounds))


def records(labels: tuple[str, ...], seeds: int, clients: int, rounds: int) -> xr.Dataset:
    random = np.random.default_rng(1)
    shape = (len(labels), seeds, rounds)
    gap = np.full((*shape, 2), np.nan)
    gap[1 % len(labels)] = random.normal(0, 2, gap.shape[1:])
    by_client = np.full((*shape, clients), np.nan)
    contribution, tokens = by_client.copy(), by_client.copy()
    rising = (1 + np.arange(clients)) / clients
    contribution[-1] = rising + 0.01 * np.arange(rounds)[:, None]
    tokens[-1] = 100 + np.arange(clients) - np.arange(rounds)[:, None]
    present = random.random((*shape, 2)) < 0.8
    present[..., 0] = True
    row, client = ("algorithm", "seed", "round", "row"), ("algorithm", "seed", "round", "client")
    return xr.Dataset(
        {
            "gap": (row, gap),
            "weight": (row, np.where(np.isnan(gap), 0.5, 1 / (4 * np.cosh(gap / 2) ** 2))),
            "loss": (row, random.uniform(0.3, 2.0, (*shape, 2))),
            "cohort_present": (row, present),
            "contribution": (client, contribution),
            "rate": (client, contribution / 2),
            "tokens": (client, tokens),
            "participation": (client, random.integers(0, 2, (*shape, clients))),
        },
        {"algorithm": list(labels), "seed": np.arange(seeds) + 7, "round": np.arange(rounds)},
    )
