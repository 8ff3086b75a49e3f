"""FedJAX: its own federated averaging with the ``jit`` backend; rows lie in the order of round 0's batches."""

# pyright: reportMissingImports=false
from __future__ import annotations

from protocol import Driver, arguments, read, serve_run

driver = Driver()
options = arguments()

from typing import Any  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

jax.tree_map = jax.tree.map  # type: ignore[attr-defined]  # removed from JAX after FedJAX's last release
import fedjax  # noqa: E402

work = read(options.workload)
meta = work.meta
layers = {name.rpartition("/")[0] for name in work.parameters}
convolutions = sum(name.startswith("conv") for name in layers)
denses = sum(name.startswith("dense") for name in layers)
pooled = work.pooled(convolutions)
floats = work.floats()
floats = floats if convolutions else floats.reshape(len(floats), -1)


def logits(p: dict[str, Any], x: Any) -> Any:
    """The forward pass of the dense models and the LeNets."""
    if convolutions:
        x = x if x.ndim == 4 else x[..., None]
        for layer in range(convolutions):
            kernel, bias = p[f"conv_{layer}/kernel"], p[f"conv_{layer}/bias"]
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x + bias)
            if pooled[layer]:
                b, h, w, c = x.shape
                x = x.reshape(b, h // 2, 2, w // 2, 2, c).max(axis=(2, 4))
        x = x.reshape(len(x), -1)
    for layer in range(denses):
        x = jax.nn.relu(x @ p[f"dense_{layer}/kernel"] + p[f"dense_{layer}/bias"])
    return x @ p["head/kernel"] + p["head/bias"]


def loss(p: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Mean cross-entropy."""
    likely = jax.nn.log_softmax(logits(p, batch["x"]))
    return -jnp.mean(jnp.take_along_axis(likely, batch["y"][:, None], axis=1))


class Run:
    """The algorithm, its state and the cohort."""

    def __init__(self) -> None:
        hyper = fedjax.ShuffleRepeatBatchHParams(batch_size=meta["batch"], num_epochs=1, skip_shuffle=True)
        fedjax.set_for_each_client_backend("jit")
        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            jax.jit(lambda p, batch, key: jax.grad(loss)(p, batch)),
            fedjax.optimizers.sgd(meta["learning_rate"]),
            fedjax.optimizers.sgd(1.0),
            hyper,
        )
        self.state = self.algorithm.init({name: jnp.asarray(leaf) for name, leaf in work.parameters.items()})
        rows = work.batches().reshape(meta["cohort"], -1)
        keys = jax.random.split(jax.random.PRNGKey(0), meta["cohort"])
        self.clients = [
            (str(i), fedjax.ClientDataset({"x": floats[own], "y": work.y[own]}), keys[i]) for i, own in enumerate(rows)
        ]

    def go(self, rounds: int) -> None:
        """So many rounds with the same cohort."""
        for _ in range(rounds):
            self.state, _ = self.algorithm.apply(self.state, self.clients)
        jax.block_until_ready(self.state.params)

    def parameters(self) -> dict[str, np.ndarray]:
        """The server's model."""
        return {name: np.asarray(leaf) for name, leaf in self.state.params.items()}


run = Run()
serve_run(driver, ("fedjax", "jax", "jaxlib"), lambda: run)
