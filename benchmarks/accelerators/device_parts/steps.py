"""Local steps of the models of part 3 and 4, in every form: pure functions, so that a laptop compiles them, too."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import parts

from benchmarks.peers.workloads import CLASSES, LEARNING_RATE, WORKLOADS, Workload, meta_of
from fljax.models import channels_last, resnet, trunk
from fljax.models.task import dot_general

# Whose step each model takes. Examples of parts 3 and 4 are float32, those of the MLP vectors.
WORKS = {
    "logistic": WORKLOADS["W3"],
    "mlp": WORKLOADS["W1a"]._replace(shape=(784,)),
    "lenet": WORKLOADS["W2"],
    "resnet18": WORKLOADS["W4"],
}


def work_of(name: str, small: bool = False) -> Workload:
    """The size of a model's step; small: two examples in a batch, and small images for the ResNet."""
    work = WORKS[name]._replace(pixels=False)
    if not small:
        return work
    return work._replace(batch=2, shape=(8, 8, 3) if name == "resnet18" else work.shape)


def logits_of(name: str, options: dict[str, Any]) -> Callable[[Any, Any], Any]:
    """``(parameters, x) -> logits`` in the form that the options of a cell name."""
    if "convolution" not in options:
        return parts.task(meta_of(WORKS[name])).logits
    convolve = channels_last.CONVOLUTIONS[options["convolution"]]
    pool = channels_last.POOLS[options.get("pooling", "elementwise")]
    return _lenet(convolve, pool) if name == "lenet" else _resnet18(convolve)


def _dense(params: Any, x: Any) -> Any:
    return dot_general(x, params["kernel"], (((1,), (0,)), ((), ()))) + params["bias"][None]


def _lenet(convolve: Any, pool: Any) -> Callable[[Any, Any], Any]:
    form = trunk.Trunk((("VALID",), ("VALID",)))

    def logits(params: Any, x: Any) -> Any:
        layers = [[trunk.Layer(params[name]["kernel"], params[name]["bias"])] for name in ("conv_0", "conv_1")]
        x = trunk.plain(form, layers, x, pool, convolve)
        x = x.reshape(x.shape[0], -1)
        for name in ("dense_0", "dense_1"):
            x = jax.nn.relu(_dense(params[name], x))
        return _dense(params["head"], x)

    return logits


def _resnet18(convolve: Any) -> Callable[[Any, Any], Any]:
    def layer(params: Any) -> trunk.Layer:
        norm = params["norm"]
        return trunk.Layer(params["conv"]["kernel"], params["conv"]["bias"], (norm["scale"], norm["bias"]))

    def block(params: Any) -> resnet.Block:
        shortcut = layer(params["shortcut"]) if "shortcut" in params else None
        return resnet.Block(layer(params["first"]), layer(params["second"]), shortcut)

    strides = [1 if i + j == 0 or j else 2 for i in range(4) for j in range(2)]

    def logits(params: Any, x: Any) -> Any:
        blocks = [block(params[f"block_{place}"]) for place in range(len(strides))]
        return _dense(params["head"], resnet.plain(strides, x, layer(params["stem"]), blocks, convolve))

    return logits


def local_step(logits: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """``(parameters, x, y) -> parameters`` after one step of SGD on the mean cross-entropy, for one client."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], axis=1)
        return -jnp.mean(chosen)

    def step(params: Any, x: Any, y: Any) -> Any:
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, jax.grad(loss)(params, x, y))

    return step


def training(name: str, options: dict[str, Any], turns: int) -> Callable[[Any, Any, Any], Any]:
    """``turns`` local steps of all clients, ``(parameters [S, ...], x [S, b, ...], y [S, b]) -> parameters``.

    The options say how many clients are side by side ("chunk"; all otherwise), and the form of the loop over steps
    ("loop": a scan otherwise).
    """
    step = local_step(logits_of(name, options))

    def one(params: Any, x: Any, y: Any) -> Any:
        return loop(options.get("loop", "scan"), turns, lambda params: step(params, x, y), params)

    chunk = options.get("chunk")
    if chunk is None:
        return jax.vmap(one)
    return lambda params, x, y: jax.lax.map(lambda each: one(*each), (params, x, y), batch_size=chunk)


def loop(form: str, turns: int, body: Callable[[Any], Any], carry: Any) -> Any:
    """``body`` so often, in one of the forms of part 4."""
    if form == "counted while":  # the number of turns is an argument of the loop, as where clients differ in size
        count = jax.lax.optimization_barrier(jnp.int32(turns))
        return jax.lax.fori_loop(0, count, lambda _, carry: body(carry), carry)
    unroll = {"unrolled by 2": 2, "unrolled by 5": 5, "unrolled whole": turns}.get(form, 1)
    return jax.lax.scan(lambda carry, _: (body(carry), None), carry, None, length=turns, unroll=unroll)[0]


def arguments(name: str, clients: int, small: bool = False) -> tuple[Any, Any, Any]:
    """Shapes of the parameters and examples of some clients."""
    work = work_of(name, small)
    params = jax.eval_shape(parts.task(meta_of(WORKS[name])).init, jax.random.key(0))
    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((clients, *leaf.shape), leaf.dtype), params)
    x = jax.ShapeDtypeStruct((clients, work.batch, *work.shape), jnp.float32)
    return stacked, x, jax.ShapeDtypeStruct((clients, work.batch), jnp.int32)


def values(shapes: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Arrays of these shapes: the same random parameters for all clients, random examples and labels.

    They are drawn by NumPy, since a network's own ``init`` would compile many small programs.
    """
    params, x, y = shapes
    generator = np.random.default_rng(0)
    draw = lambda leaf: 0.05 * generator.standard_normal(leaf.shape[1:], np.float32)  # noqa: E731
    clients = x.shape[0]
    spread = jax.jit(lambda tree: jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), tree))
    given = jnp.asarray(generator.random(x.shape, np.float32))
    return spread(jax.tree.map(draw, params)), given, jnp.asarray(generator.integers(0, CLASSES, y.shape, np.int32))
