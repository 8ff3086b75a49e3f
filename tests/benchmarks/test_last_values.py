"""Numbers of runs after their last round."""

from __future__ import annotations

import numpy as np
import xarray as xr

from benchmarks.papers.last_values import lines_of


def test_metrics_clusters_and_tokens():
    accuracy = np.array([[[[0.1, 0.9], [0.7, 0.2]]], [[[0.8, 0.3], [0.4, 0.6]]]])  # [seed, evaluation, cluster, source]
    metrics = xr.Dataset(
        {
            "average_accuracy": (("algorithm", "seed", "evaluated_round"), [[[0.2], [0.4]]]),
            "average_loss": (("algorithm", "seed", "evaluated_round"), [[[np.nan], [np.nan]]]),
            "cluster_accuracy": (("algorithm", "seed", "evaluated_round", "cluster", "distribution"), accuracy[None]),
        },
        {"algorithm": ["ipfl"], "seed": [0, 1], "evaluated_round": [5]},
    )
    paid = np.array([[[[1, 2], [0, 0]], [[3, 3], [1, 0]]]])
    records = xr.Dataset({"paid": (("algorithm", "seed", "round", "client"), paid)}, {"algorithm": ["ipfl"]})
    lines = {line.metric: line for line in lines_of("run", metrics, records)}
    assert set(lines) == {
        "average_accuracy",
        *(f"cluster_accuracy[{name}]" for name in ("0 on 0", "0 on 1", "1 on 0", "1 on 1", "own")),
        "paid",
    }
    np.testing.assert_allclose(lines["average_accuracy"][3:], (0.3, float(np.std([0.2, 0.4], ddof=1)), 2))
    np.testing.assert_allclose(lines["cluster_accuracy[0 on 0]"].mean, (0.7 + 0.8) / 2)  # numbered by what they fit
    np.testing.assert_allclose(lines["cluster_accuracy[0 on 1]"].mean, (0.2 + 0.3) / 2)
    np.testing.assert_allclose(lines["cluster_accuracy[own]"].mean, ((0.7 + 0.9) / 2 + (0.8 + 0.6) / 2) / 2)
    np.testing.assert_allclose(lines["paid"][3:5], (5, float(np.std([3, 7], ddof=1))))
