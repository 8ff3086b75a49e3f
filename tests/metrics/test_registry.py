"""Every name in results is described, and computed from what its description says."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import xarray as xr

from fljax import config as configuration
from fljax.config.reading import load_grid
from fljax.experiments import run, sweep
from fljax.metrics import registry
from fljax.results import sweeps
from tests.toys import configs

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_programs")]

BASE = configs.BASE | {
    "data": configs.BASE["data"] | {"unseen": 4, "valid_fraction": 0.2},
    "metrics": {"opt_out_threshold": 0.03, "extra": list(registry.ON_REQUEST)},
}
THRESHOLD = 0.9
ALGORITHMS = [
    # What it deploys is not the global model, so metrics of the two differ.
    {"name": "fedavg_finetune"},
    {"name": "incfl", "label": "given", "threshold": THRESHOLD},
    {"name": "iafl"},
    {"name": "fedavg", "label": "tuned", "scenarios": [{"name": "finetuned", "steps": 2}]},
    {"name": "fedavg", "label": "probed", "scenarios": [{"name": "backdoor", "target": 0, "fraction": 0.0}]},
]


@pytest.fixture(scope="module")
def metrics() -> xr.Dataset:
    return run.run(configuration.parse(BASE | {"algorithms": ALGORITHMS}, name="tiny")).metrics


def expected(metrics: xr.Dataset, label: str, prefix: str) -> dict[str, np.ndarray]:
    """``[seed, evaluated_round]`` of every metric over clients, from losses and accuracies alone."""
    axis = "unseen" if prefix else "client"
    own = metrics.sel(algorithm=label)

    def values(name: str) -> np.ndarray:
        found = own[prefix + name]
        dims = [dim for dim in ("seed", "evaluated_round", axis) if dim in found.dims]
        return np.asarray(found.transpose(*dims).values, float)

    loss, accuracy = values("test_loss"), values("test_accuracy")
    alone_loss, alone_accuracy = values("standalone_test_loss")[:, None], values("standalone_test_accuracy")[:, None]
    rho = np.full(alone_loss.shape, THRESHOLD)  # of one algorithm in the config, and so of all
    shares = label != "iafl"  # IAFL's clients have models of their own and none in common
    common_loss, common = values("global_test_loss"), values("global_test_accuracy")
    gain = accuracy - np.asarray(
        metrics[prefix + "test_accuracy"]
        .sel(algorithm="fedavg_finetune")
        .transpose("seed", "evaluated_round", axis)
        .values
    )
    better = loss < alone_loss
    rows = values("test_rows")[:, None]
    error = lambda share: np.sqrt(share * (1 - share) / rows)  # noqa: E731
    worse = alone_accuracy - accuracy
    base = accuracy - gain
    of_global = lambda formula: formula if shares else np.full(loss.shape[:2], np.nan)  # noqa: E731
    found = {
        "incentivised_participation_rate": better.mean(-1),
        "global_incentivised_participation_rate": of_global((common_loss < alone_loss).mean(-1)),
        "global_model_appeal": of_global((common_loss < rho).mean(-1)),
        # Only where clients tune what they are given.
        "deployed_model_appeal": (values("train_loss") < rho).mean(-1) if label == "tuned" else loss.mean(-1) * np.nan,
        "average_backdoor_success": values("backdoor_success").mean(-1),
        "ipr_loss": (loss <= alone_loss).mean(-1),
        "ipr_accuracy": (accuracy >= alone_accuracy).mean(-1),
        "preferred_model_accuracy": np.where(better, accuracy, alone_accuracy).mean(-1),
        "preferred_model_accuracy_by_accuracy": np.maximum(accuracy, alone_accuracy).mean(-1),
        "preferred_model_accuracy_by_threshold": of_global(
            np.where(common_loss < rho, common, alone_accuracy).mean(-1)
        ),
        "average_loss": loss.mean(-1),
        "average_accuracy": accuracy.mean(-1),
        "global_average_accuracy": of_global(common.mean(-1)),
        "maximum_accuracy": accuracy.max(-1),
        "accuracy_increase": (accuracy - alone_accuracy).mean(-1),
        "pearson_correlation": correlation(accuracy, alone_accuracy),
        "average_gain": gain.mean(-1),
        "accuracy_spread": accuracy.std(-1),
        "worst_decile_accuracy": accuracy.min(-1),  # a tenth of six or four clients, rounded up
        "jain_index": accuracy.sum(-1) ** 2 / (accuracy.shape[-1] * (accuracy**2).sum(-1)),
        "incentive_margin": np.maximum(alone_loss - loss, 0).sum(-1),
        "appeal_margin": of_global(np.maximum(rho - common_loss, 0).sum(-1)),
        "worse_off_by_noise": ((worse > 0) & (worse <= 2 * (error(accuracy) + error(alone_accuracy)))).mean(-1),
        "opt_outs_by_noise": ((gain < 0.03) & (0.03 - gain <= 2 * (error(accuracy) + error(base)))).sum(-1),
        "opt_outs": (gain < 0.03).sum(-1),
        "participation_rate": (gain >= 0.03).mean(-1),
    }
    if not prefix:  # of rows on which unseen clients are not judged
        valid, alone_valid = values("valid_loss"), values("standalone_valid_loss")[:, None]
        trained = 1 / (1 + np.exp(rho - values("global_train_loss")))
        found["valid_incentivised_participation_rate"] = (valid < alone_valid).mean(-1)
        found["valid_global_model_appeal"] = of_global((values("global_valid_loss") < rho).mean(-1))
        found["objective"] = of_global(trained.mean(-1))
    return {prefix + name: value for name, value in found.items()}


def correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = np.broadcast_arrays(a, b)
    found = np.full(a.shape[:2], np.nan)
    for at in np.ndindex(*found.shape):
        if np.ptp(a[at]) and np.ptp(b[at]):
            found[at] = np.corrcoef(a[at], b[at])[0, 1]
    return found


def test_every_name_in_results_is_described(metrics):
    found = {str(name) for name in metrics.data_vars}
    assert found <= set(registry.METRICS)
    # And what is described is there, but for servers' and clusters' models.
    absent = set(registry.METRICS) - found
    server = {"server_test_loss", "server_test_accuracy", "cluster_loss", "cluster_accuracy"}
    # Only where scenarios decide, and where messages are dropped.
    assert absent == server | {"decision_test_accuracy", "decision_valid_accuracy", "dropped_messages"}


@pytest.mark.parametrize("label", ["fedavg_finetune", "given", "iafl", "tuned", "probed"])
@pytest.mark.parametrize("prefix", ["", "unseen_"])
def test_every_metric_over_clients_is_what_its_description_says(metrics, label, prefix):
    values = expected(metrics, label, prefix)
    assert set(values) == {
        prefix + name for name, metric in registry.OVER_CLIENTS.items() if metric.unseen or not prefix
    }
    for name, value in values.items():
        found = metrics[name].sel(algorithm=label).transpose("seed", "evaluated_round")
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_metrics_of_seen_clients_alone(metrics):
    own = metrics.sel(algorithm="iafl")
    valid = own["valid_accuracy"].transpose("seed", "evaluated_round", "client").values
    np.testing.assert_allclose(own["average_valid_accuracy"], valid.mean(-1), rtol=1e-6)
    valid = own["valid_loss"].transpose("seed", "evaluated_round", "client").values
    np.testing.assert_allclose(own["average_valid_loss"], valid.mean(-1), rtol=1e-6)
    # IAFL's contributions are standalone accuracies, the same in every round.
    alone = own["standalone_test_accuracy"].transpose("seed", "client").values[:, None]
    accuracy = own["test_accuracy"].transpose("seed", "evaluated_round", "client").values
    last = correlation(accuracy, alone)[:, -1]
    np.testing.assert_allclose(own["contribution_correlation"].isel(evaluated_round=-1), last, rtol=1e-4)


def test_costs_are_those_of_the_cohorts(metrics):
    """Three clients of six in each of four rounds, two steps each; who tunes a model does so outside of training."""
    for label in ("fedavg_finetune", "given", "tuned"):
        own = metrics.sel(algorithm=label)
        assert own["gradient_steps"].isel(evaluated_round=-1).values.tolist() == [24, 24]
        np.testing.assert_array_equal(own["client_gradient_steps"].sum("client"), own["gradient_steps"])
    # INCFL's clients also say their loss in the global model.
    assert metrics["forward_passes"].sel(algorithm="given").isel(evaluated_round=-1).values.tolist() == [12, 12]
    assert metrics["forward_passes"].sel(algorithm="fedavg_finetune").isel(evaluated_round=-1).values.tolist() == [0, 0]


def test_the_metrics_can_tell_one_definition_from_another(metrics):
    """Otherwise the tests above would hold for a wrong formula."""
    final = metrics.isel(evaluated_round=-1)
    tuned, given = final.sel(algorithm="fedavg_finetune"), final.sel(algorithm="given")
    name = "incentivised_participation_rate"
    assert (tuned[name] != tuned[f"global_{name}"]).any()
    assert (given["global_model_appeal"] != given[f"global_{name}"]).any()
    appeal = metrics["deployed_model_appeal"].sel(algorithm="tuned")
    assert (appeal != metrics["global_model_appeal"].sel(algorithm="tuned")).any()


def test_a_threshold_of_one_algorithm_is_the_requirement_of_all(metrics):
    assert metrics["required_loss"].dims == ("algorithm", "seed", "client")
    assert (metrics["required_loss"] == np.float32(THRESHOLD)).all()
    assert (metrics["unseen_required_loss"] == np.float32(THRESHOLD)).all()
    # The standalone models are the same for all algorithms.
    assert metrics["threshold"].dims == ("seed", "client")


def test_two_thresholds_in_one_comparison_are_refused():
    appeal = {"name": "appeal_based", "after": 2, "threshold": 0.7}
    entries = [{"name": "fedavg", "scenarios": [appeal]}, {"name": "incfl", "threshold": 0.8}]
    config = configuration.parse(BASE | {"algorithms": entries}, name="tiny")
    sentence = r"got the threshold 0\.7 of appeal_based around fedavg and the threshold 0\.8 of incfl"
    with pytest.raises(ValueError, match=rf"^expected one requirement for all .* of a comparison, {sentence}"):
        run.run(config)


def test_thresholds_of_a_sweep(tmp_path):
    """The cells are comparisons of their own; FedAvg, which reads no threshold, runs once and is judged in each."""
    entries = [{"name": "incfl"}, {"name": "fedavg"}]
    # Not the norm of the gradient, of which the host cannot compute that of another requirement.
    chosen = {"seeds": 1, "rounds": 2, "algorithms": entries, "metrics": {"extra": ["objective"]}}
    config = configuration.parse(BASE | chosen, name="tiny")
    path = tmp_path / "tiny.toml"
    path.write_text(configuration.dumps(config))
    told = []
    grid = load_grid(path, grid=["algorithms.incfl.threshold=0.01,1.0,100.0"])
    outcome = sweep.run(grid, on_event=lambda event: told.append(f"{event.label}: {event.message}"))
    assert "fedavg: 1 different cells in 1 program" in told
    (axis,) = sweeps.axes_of(outcome.metrics)
    for label, value in itertools.product(("incfl", "fedavg"), (0.01, 1.0, 100.0)):
        cell = outcome.metrics.sel(algorithm=label).isel(evaluated_round=-1).sel({axis: value})
        for prefix, axis_of in (("", "client"), ("unseen_", "unseen")):
            assert (cell[f"{prefix}required_loss"] == np.float32(value)).all()
            met = cell[f"{prefix}global_test_loss"] < value
            np.testing.assert_allclose(cell[f"{prefix}global_model_appeal"], met.mean(axis_of))
            chosen = xr.where(met, cell[f"{prefix}global_test_accuracy"], cell[f"{prefix}standalone_test_accuracy"])
            found = cell[f"{prefix}preferred_model_accuracy_by_threshold"]
            np.testing.assert_allclose(found, chosen.mean(axis_of), rtol=1e-6)
        share: Any = (1 + np.tanh((cell["global_train_loss"] - value) / 2)) / 2  # the sigmoid, without overflow
        np.testing.assert_allclose(cell["objective"], share.mean("client"), rtol=1e-5, atol=1e-7)
    assert set(sweep.METRICS) == set(registry.SCALARS)
