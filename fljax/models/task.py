"""Tasks from flax modules: pure functions on plain pytrees of parameters, with losses and scores by sample.

Built-in networks (``@network``) have options, checks of sizes, layers of ``planes`` and initial parameters in common.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import errors
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax.core import platforms, trees, users
from fljax.core.errors import during
from fljax.core.keywords import shows
from fljax.core.names import name_of
from fljax.core.values import kind_of
from fljax.models.modules import Functions, linen_functions, random_in_training_only
from fljax.models.starting import checked_dtype, named_augmentation, pixels_to_floats
from fljax.protocol import AnyArray, Role, Task, TrainingBatch, TrainingKey, roles

# JAX indexes arrays with 32-bit integers.
LARGEST_ARRAY = 2**31 - 1


def task_from_module(
    module: nn.Module | Callable[..., Any],
    example_x: Any,
    *,
    classes: int | None = None,
    loss: Callable[[Array, Array], Array] | None = None,
    score: Callable[[Array, Array], Array] | None = None,
    example_y: Any = None,
    prepare: Callable[[Array], Array] | None = None,
    augment: Callable[[Key[Array, ""], Array], Array] | None = None,
    head: Callable[[str], bool] | None = None,
    statistics: Literal["averaged", "frozen"] = "averaged",
    dtype: Any = jnp.float32,
    compute_dtype: Any = None,
) -> Task:
    """Makes a task from a flax module: ``task_from_module(Net(), x_train[:1])`` gives a classification task.

    A ``loss`` gives any other task: ``loss=models.squared_error`` gives a regression.

    A module with dropout reads its mode from a keyword of ``__call__``: ``train``, ``training`` or ``is_training``
    (True in training mode), ``deterministic`` or ``inference`` (the opposite), and a few more
    (``fljax.models.modules``). An nnx module may rely on ``train()`` and ``eval()`` instead. In a training step, a
    linen module gets its random key as the stream ``"dropout"``, and an nnx module gets new keys in all of its streams.
    The running averages of BatchNorm become leaves of params beside its scales and biases, with the role "statistic"
    (``Task.roles``). In training, batches are normalised by their own rows; rows that pad a batch do not count. A last
    batch of one row (``epochs``) has a variance of 0. A module with running averages of its own leaves out padding
    itself.

    A method ``features(x)`` of the module (the input of the last layer) becomes ``Task.features``.

    Args:
      module: a ``flax.linen.Module`` instance, or for ``flax.nnx`` a function from random streams to the module: its
        class, or ``lambda rngs: Net(32, rngs=rngs)``.
      example_x: a batch of stored examples, ``[b, ...]``; only its shape and dtype are read.
      classes: number of classes, compared with the width of the logits; None: not checked. With a ``loss``, the task
        has classes only if ``classes`` is given.
      loss: ``(logits, y) -> [b]``, one number per sample. The module may then return any array ``[b, ...]``, and the
        task has no accuracy without a ``score``. None: the cross-entropy with integer labels.
      score: ``(logits, y) -> [b]``, the correctness of each sample, from 0 to 1; the accuracy is its mean. None: no
        accuracy with a ``loss``; otherwise 1 if the label has the largest logit, else 0.
      example_y: a batch of labels, ``[b, ...]``, for checking the shapes of loss and score; only its shape and dtype
        are read. None: shapes are checked when training starts.
      prepare: maps stored examples to module inputs, e.g. ``standardise(mean, std)``. None: ``uint8`` pixels are
        divided by 255, floats are cast to ``dtype``, other integers (tokens) are kept.
      augment: ``(key, x) -> x`` on a prepared training batch.
      head: maps a parameter's path, such as ``"Dense_2/kernel"``, to whether the parameter belongs to the last layer;
        defines the role "head" in ``Task.roles``.
      statistics: "averaged": clients update the running averages of BatchNorm in every step, and algorithms average
        them (``fljax.algorithms.fedbn`` keeps them with the client). "frozen": BatchNorm uses its running averages in
        training, too, and nothing moves them; ``freeze`` keeps them out of messages.
      dtype: dtype of parameters and of prepared floating examples. Results of ``logits`` and ``features`` are in
        float32 or wider, since losses and scores are.
      compute_dtype: ``logits`` and ``features`` cast parameters and examples to this dtype, and the result back. So
        ``"bfloat16"`` gives bfloat16 activations and products, while parameters, gradients and the loss
        keep ``dtype``. None: ``dtype``.

    Returns:
      A Task. Equal hashable arguments return the same Task, so compiled programs are reused.

    Raises:
      ValueError: if the module keeps state other than parameters and running averages, is not a flax module, has
        dropout that stays off in training, or returns logits not of shape ``[b, classes]``; if no parameter is in the
        head; or if loss or score is not one number per sample.
    """
    for name, example in (("example_x", example_x), ("example_y", example_y)):
        if not hasattr(example, "dtype") and (name == "example_x" or example is not None):
            advice = "; a module of several inputs takes them as one array" if name == "example_x" else ""
            raise ValueError(f"expected {name} to be an array [b, ...], got {kind_of(example)}{advice}")
    arguments = _Arguments(
        module,
        (1, *example_x.shape[1:]),
        jax.dtypes.canonicalize_dtype(example_x.dtype),
        classes,
        loss,
        score,
        None if example_y is None else (tuple(example_y.shape[1:]), jax.dtypes.canonicalize_dtype(example_y.dtype)),
        prepare,
        augment,
        head,
        statistics,
        checked_dtype(dtype),
        checked_dtype(dtype if compute_dtype is None else compute_dtype),
    )
    try:
        hash(arguments)
    except TypeError:
        return _build.__wrapped__(arguments)
    return _build(arguments)


class _Arguments(NamedTuple):
    """Arguments of ``task_from_module``, with shapes and dtypes, not examples; equal ones make equal tasks."""

    module: Any
    shape: tuple[int, ...]  # of one stored example, with a batch axis of 1
    stored: Any
    classes: int | None
    loss: Callable | None
    score: Callable | None
    labels: tuple[tuple[int, ...], Any] | None  # the shape of one label, and its dtype; None: unknown
    prepare: Callable | None
    augment: Callable | None
    head: Callable[[str], bool] | None
    statistics: str
    dtype: Any
    compute: Any


def _is_nnx_module(module: Any) -> bool:
    """Whether it is an instance of a module of nnx; there is none before somebody has imported nnx."""
    return isinstance(module, getattr(sys.modules.get("flax.nnx"), "Module", ()))


@functools.lru_cache(maxsize=256)
def _build(arguments: _Arguments) -> Task:
    module, shape, stored, classes, loss, score, labels, prepare, augment, head, statistics, dtype, compute = arguments
    if statistics not in ("averaged", "frozen"):
        raise ValueError(f"expected statistics to be averaged or frozen, got {statistics!r}")
    prepare = pixels_to_floats(dtype) if prepare is None else prepare

    def prepared(x: Array) -> Array:
        found = users.call("prepare", "(x)", prepare, x)
        return trees.cast(users.numbers("prepare", prepare, f"an array [{len(x)}, ...]", found, (len(x), ...)), dtype)

    x = jax.eval_shape(prepared, jax.ShapeDtypeStruct(shape, stored))
    functions_of = _maker(module)
    with during(f"the module {name_of(module)}"):
        functions = functions_of(module, x, frozen=statistics == "frozen")
    wide = np.promote_types(dtype, np.float32)

    def init(key: Key[Array, ""]) -> PyTree:
        params = functions.init(key)  # a running average changes by less than half precision resolves
        return roles.replace_statistics(bare, trees.cast(params, dtype), trees.cast(params, wide))

    role = _roles(head, functions.statistics, statistics == "frozen")
    bare = Task(init, functions.logits, cross_entropy, roles=role)

    def told(out: Any) -> Any:
        return trees.widened(out if compute == dtype else trees.cast(out, wide))

    def narrow(params: PyTree) -> PyTree:
        # A running average changes by less than a narrow dtype resolves.
        return roles.replace_statistics(bare, trees.cast(params, compute), params)

    def logits(params: PyTree, x: AnyArray, key: TrainingKey | None = None) -> Array:
        found = functions.logits(narrow(params), trees.cast(trees.cast(x, dtype), compute), key)
        return told(users.numbers("the module", module, f"one array [{x.shape[0]}, ...]", found, (x.shape[0], ...)))

    def features(params: PyTree, x: AnyArray) -> Array:
        assert functions.features is not None
        z = told(functions.features(narrow(params), trees.cast(trees.cast(x, dtype), compute)))
        return z.reshape(z.shape[0], -1) if z.ndim != 2 else z

    params = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    _check_parameters(params)
    with during(f"the module {name_of(module)}"), random_in_training_only(module):
        out = jax.eval_shape(logits, params, x)
    if (loss is None or classes is not None) and (len(out.shape) != 2 or classes not in (None, out.shape[1])):
        advice = "" if loss is not None or len(out.shape) == 2 else "; other shapes need a loss of their own"
        raise ValueError(
            f"expected logits of shape [b, {classes or 'classes'}], got {list(out.shape)} for b = 1{advice}"
        )
    if functions.statistics:
        _check_training(logits, params, x, type(module).__name__)
    if loss is None:
        loss, score, classes = cross_entropy, score or correct, out.shape[1]
    z = None if functions.features is None else jax.eval_shape(features, params, x).shape[1]
    if head is not None and "head" not in roles.roles_of(bare, params):
        raise ValueError(
            f"expected some parameter in the head, got none; valid names are {', '.join(trees.paths_of(params))}"
        )
    task = Task(
        init=init,
        logits=logits,
        loss=loss,
        features=None if functions.features is None else features,
        prepare=prepare,
        augment=augment,
        roles=role,
        classes=classes,
        width=z,
        score=score,
    )
    # A batch of two gives two outputs, two losses and two scores.
    out = jax.eval_shape(logits, params, jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype))
    if labels is not None:
        for judge in [task.losses] if score is None else [task.losses, task.scores]:
            jax.eval_shape(judge, out, jax.ShapeDtypeStruct((2, *labels[0]), labels[1]))
    return task


def _maker(module: Any) -> Callable[..., Functions]:
    """What makes pure functions of a module; raises a ValueError if it is none."""
    if isinstance(module, nn.Module):
        return linen_functions
    if _is_nnx_module(module):
        raise ValueError(
            "expected what makes the nnx module, such as lambda rngs: Net(rngs=rngs), so that parameters can be drawn "
            f"anew, got an instance of {type(module).__name__}"
        )
    if callable(module) and not (isinstance(module, type) and issubclass(module, nn.Module)):
        from fljax.models.nnx_modules import nnx_functions  # imported here, since flax.nnx takes long

        return nnx_functions
    raise ValueError(f"expected a flax.linen.Module instance or an nnx constructor, got {module!r}")


def _check_training(logits: Callable[..., Array], params: PyTree, x: jax.ShapeDtypeStruct, name: str) -> None:
    """Raises a ValueError unless a module with running averages can be trained; nothing is computed."""

    def total(params: PyTree, x: Array) -> Array:
        return jnp.sum(logits(params, x, TrainingBatch(jax.random.key(0), jnp.ones(x.shape[0], bool))))

    try:
        jax.eval_shape(jax.grad(total), params, x)
    except (TypeError, errors.ModifyScopeVariableError) as error:
        cause = str(error).split("\n")[0].split(" (http")[0]
        raise ValueError(
            f"expected running averages that a training step can change (with frozen statistics: those of BatchNorm), "
            f"got {name}: {cause}"
        ) from None


def _roles(
    head: Callable[[str], bool] | None, statistics: frozenset[str], frozen: bool
) -> Callable[[PyTree], PyTree] | None:
    """The role of each leaf by its path; None if all leaves are plainly trained."""
    if head is None and not statistics:
        return None

    def role(path: jax.tree_util.KeyPath) -> Role:
        name = trees.path_of(path)
        if name in statistics:
            return "frozen" if frozen else "statistic"
        return "head" if head is not None and users.call("head", "(path)", head, name) else "trained"

    return lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: role(path), tree)


def _check_parameters(params: PyTree) -> None:
    """Raises a ValueError if a parameter array has more entries than JAX can index; only shapes are read."""
    for leaf in jax.tree.leaves(params):
        if math.prod(leaf.shape) > LARGEST_ARRAY:
            shape = list(leaf.shape)
            raise ValueError(f"expected parameters of at most {LARGEST_ARRAY} entries each, got an array of {shape}")


def cross_entropy(
    logits: Float[Array, "b *places classes"], y: Int[Array, " b *places"], *, padding: int | None = None
) -> Float[Array, " b"]:
    """Softmax cross-entropy with integer labels, per sample, in nats; the mean over places, e.g. of a text.

    A label that is not a class gives NaN.

    Args:
      logits: the model's output.
      y: labels.
      padding: places with this label do not count: ``functools.partial(cross_entropy, padding=0)`` is a loss. A sample
        of which all is padding has loss 0.

    Raises:
      ValueError: if labels are not whole numbers, or not one for each vector of logits.
    """
    _check_classes(logits, y)
    real = _real(y, padding)
    # A negative label would index from the end; too large a label gives a visible NaN.
    classes = jnp.where(y < 0, logits.shape[-1], y)
    # What the loss of padding would be must not reach the gradient, even as 0 * NaN.
    classes = classes if real is None else jnp.where(real, classes, 0)
    return _per_sample(optax.softmax_cross_entropy_with_integer_labels(logits, classes), real)


def correct(
    logits: Float[Array, "b *places classes"], y: Int[Array, " b *places"], *, padding: int | None = None
) -> Float[Array, " b"]:
    """1 where the label has the largest logit, else 0; the mean over places, e.g. of a text.

    Args:
      logits: the model's output.
      y: labels.
      padding: as for ``cross_entropy``.

    Raises:
      ValueError: if labels are not whole numbers, or not one for each vector of logits.
    """
    _check_classes(logits, y)
    return _per_sample((jnp.argmax(logits, axis=-1) == y).astype(logits.dtype), _real(y, padding))


def squared_error(prediction: Float[Array, "b ..."], y: Array) -> Float[Array, " b"]:
    """The mean squared difference of each sample; ``y`` may omit a last axis of length 1.

    Raises:
      ValueError: if labels and predictions differ in shape.
    """
    if prediction.shape not in (y.shape, (*y.shape, 1)):
        raise ValueError(
            f"expected labels of the shape of the model's predictions, {list(prediction.shape)}, got {list(y.shape)}"
        )
    return _per_sample(jnp.square(prediction - y.reshape(prediction.shape).astype(prediction.dtype)))


def _real(y: Array, padding: int | None) -> Array | None:
    """Where labels count; None: everywhere."""
    return None if padding is None else y != padding


def _per_sample(values: Array, real: Array | None = None) -> Float[Array, " b"]:
    """The mean of each sample over the places that are ``real``; 0 if there is none."""
    if real is None:
        return values if values.ndim == 1 else jnp.mean(values.reshape(values.shape[0], -1), axis=1)
    values, real = values.reshape(values.shape[0], -1), real.reshape(real.shape[0], -1)
    return jnp.where(real, values, 0).sum(axis=1) / jnp.maximum(real.sum(axis=1), 1).astype(values.dtype)


def _check_classes(logits: Array, y: Array) -> None:
    if y.shape != logits.shape[:-1] or not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(
            f"expected a whole-number label for each vector of logits, of shape {list(logits.shape[:-1])}, got "
            f"{y.dtype} of shape {list(y.shape)}; other labels need a loss and a score of their own"
        )


class Convolution(nn.Module):
    """Kernel ``[size, size, channels, width]`` and bias ``[width]``, named and initialised as in ``nn.Conv``."""

    width: int
    size: int

    @nn.compact
    def __call__(self, channels: int) -> tuple[Array, Array]:
        shape = (self.size, self.size, channels, self.width)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        return kernel, self.param("bias", nn.initializers.zeros_init(), (self.width,))


class GroupNorm(nn.Module):
    """Scale and bias ``[width]``, named and initialised as in ``nn.GroupNorm``."""

    @nn.compact
    def __call__(self, width: int) -> tuple[Array, Array]:
        scale = self.param("scale", nn.initializers.ones_init(), (width,))
        return scale, self.param("bias", nn.initializers.zeros_init(), (width,))


def check_widths(name: str, widths: Sequence[Any]) -> tuple[int, ...]:
    """Returns the widths of layers as a tuple of whole numbers above 0."""
    for width in widths:
        if isinstance(width, bool) or not hasattr(width, "__index__") or not 0 < width.__index__() <= LARGEST_ARRAY:
            raise ValueError(f"expected {name} of whole numbers from 1 to {LARGEST_ARRAY}, got {width!r}")
    return tuple(width.__index__() for width in widths)


def check_blocks(blocks: Sequence[Sequence[Any]]) -> tuple[tuple[int, ...], ...]:
    """Returns blocks of layers; each block is a tuple of widths."""
    if not blocks or not all(blocks):
        raise ValueError(f"expected blocks of at least one layer each, got {[list(block) for block in blocks]}")
    return tuple(check_widths("blocks", block) for block in blocks)


def check_image(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of an image, ``(height, width, channels)`` or ``(height, width)``."""
    sizes = tuple(shape)
    if len(sizes) not in (2, 3):
        raise ValueError(f"expected an input shape (height, width, channels), got {sizes}")
    if len(sizes) == 3 and sizes[0] in (1, 3, 4) and sizes[1] == sizes[2] > 4:
        raise ValueError(
            f"expected an input shape (height, width, channels), got {sizes}, whose channels are first; "
            "numpy.moveaxis(x, 1, -1) moves those of images x to the end"
        )
    return sizes


def check_convolution(shape: Sequence[int], kernel: int, groups: int | None) -> None:
    """Checks the kernel size for images of this shape, and the number of groups of the normalisation."""
    check_widths("kernel and groups", (kernel, 1 if groups is None else groups))
    widest = 2 * min(shape[:2]) - 1
    if kernel > widest:
        raise ValueError(f"expected a kernel of at most {widest} for images of {shape[0]} x {shape[1]}, got {kernel}")


def check_rate(name: str, rate: float) -> float:
    """Returns a dropout rate."""
    if not 0 <= rate < 1:
        raise ValueError(f"expected {name} to be at least 0 and below 1, got {rate!r}")
    return rate


Initialisation = Literal["flax", "framework"]

# What flax calls the products of an LSTM: of the input (i) or of the state (h), for each of four gates.
_GATES = frozenset(first + gate for first in "ih" for gate in "ifgo")


def initialised(task: Task, initialisation: Initialisation) -> Task:
    """The task with initial parameters by the rules of flax, or of PyTorch, the framework of most published code."""
    # Source: PyTorch's documentation of ``torch.nn.Linear``, ``Conv2d``, ``LSTM`` and ``Embedding``.
    if initialisation == "flax":
        return task  # in which kernels of an LSTM's state are drawn as by PyTorch
    if initialisation != "framework":
        raise ValueError(
            f"expected a known initialisation, got {initialisation!r}; valid names are 'flax', 'framework'"
        )
    return task._replace(init=_framework(task.init))


@functools.lru_cache(maxsize=256)
def _framework(init: Callable[..., Any]) -> Callable[..., Any]:
    def framework(key: Key[Array, ""]) -> PyTree:
        return redraw(key, init(key))

    return framework


def redraw(key: Key[Array, ""], params: PyTree) -> PyTree:
    """Parameters as PyTorch draws them (``initialised``), in the structure and dtypes of ``params``."""
    flat: dict[tuple[str, ...], Array] = cast(Any, flatten_dict(params))
    redrawn = dict(flat)
    for number, (path, leaf) in enumerate(sorted(flat.items())):
        leaf_key = jax.random.fold_in(key, number)
        *layer, name = path
        kernel = flat.get((*layer, "kernel"))
        if name == "embedding":
            drawn = jax.random.normal(leaf_key, leaf.shape, jnp.float32)
        elif name in ("kernel", "bias") and kernel is not None:
            gate = layer[-1] in _GATES
            bound = 1 / math.sqrt(kernel.shape[-1] if gate else math.prod(kernel.shape[:-1]))
            times = 2 if gate and name == "bias" else 1  # PyTorch adds two biases of an LSTM, which is their sum here
            drawn = jax.random.uniform(leaf_key, (times, *leaf.shape), jnp.float32, -bound, bound).sum(axis=0)
        else:
            continue
        # As by flax, all dtypes get the same numbers.
        redrawn[path] = drawn.astype(leaf.dtype)
    return unflatten_dict(redrawn)


class Common(TypedDict, total=False):
    """The options of every network, for type checkers; ``network_task`` has their defaults and their meaning."""

    prepare: Callable[[Array], Array] | None
    augment: Literal["crop_flip"] | Callable[..., Array] | None
    dtype: Any
    compute_dtype: Any
    initialisation: Initialisation


def network_task(
    module: nn.Module,
    input_shape: Sequence[int],
    classes: int,
    *,
    prepare: Callable[[Array], Array] | None = None,
    augment: Literal["crop_flip"] | Callable[..., Array] | None = None,
    dtype: Any = jnp.float32,
    compute_dtype: Any = None,
    initialisation: Initialisation = "flax",
    stored: Any = None,
) -> Task:
    """The Task of a flax module whose last layer is called ``head``; builders show the lines of ``Common`` below.

    Args:
      prepare: maps stored examples to model inputs; None: ``uint8`` pixels are divided by 255, tokens cast to int32.
      augment: ``"crop_flip"`` or ``(key, x) -> x`` on prepared training batches; None: no augmentation.
      dtype: dtype of parameters and activations.
      compute_dtype: dtype of activations and products (e.g. ``"bfloat16"``); None: ``dtype``. See ``task_from_module``.
      initialisation: ``"flax"``, or ``"framework"``, as PyTorch: kernels, biases ~ U(-b, b), ``b = fan_in ** -0.5``,
        and embeddings ~ N(0, 1).
      stored: dtype of stored examples, int32 for texts; None: ``dtype``.
    """
    if isinstance(input_shape, str) or not isinstance(input_shape, Iterable):
        raise ValueError(f"expected input_shape to be the shape of one example, such as (28, 28), got {input_shape!r}")
    task = task_from_module(
        module,
        jax.ShapeDtypeStruct((1, *input_shape), checked_dtype(dtype) if stored is None else stored),
        classes=classes,
        prepare=prepare,
        augment=named_augmentation(augment, input_shape, prepare),
        head=_in_head,
        dtype=dtype,
        compute_dtype=compute_dtype,
    )
    return initialised(task, initialisation)


def _in_head(path: str) -> bool:
    return path.startswith("head/")


# Shows the options of ``Common`` in the signature and docstring of a builder, in place of its ``**common``.
network = shows(network_task, after="classes")


def dot_general(
    lhs: Float[Array, "*b k"],
    rhs: Float[Array, "k m"],
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    **rest: Any,
) -> Float[Array, "*b m"]:
    """``lax.dot_general``, whose weight gradient on a CPU first transposes the batch in memory, for dense layers."""
    # XLA's fast product on CPUs takes no transposed left side: with one, the gradient, 784 x 30 times 30 x 64, took 2.5
    # times as long as the forward product of as many operations. ``nn.Dense(64, dot_general=dot_general)`` uses this.
    rest = {name: value for name, value in rest.items() if value is not None}
    plain = (((lhs.ndim - 1,), (0,)), ((), ()))
    dense = jax.tree.map(int, dimension_numbers) == plain and lhs.ndim == rhs.ndim == 2
    if rest or not dense or preferred_element_type is not None:
        return lax.dot_general(
            lhs, rhs, dimension_numbers, precision=precision, preferred_element_type=preferred_element_type, **rest
        )
    return _product(precision)(lhs, rhs)


def _unchanged(x: Array) -> Array:
    return x


def _product(precision: Any) -> Any:
    @jax.custom_jvp
    def product(x: Array, w: Array) -> Array:
        return lax.dot(x, w, precision=precision)

    @product.defjvp
    def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
        (x, w), (dx, dw) = primals, tangents
        # The derivative uses the transposed batch. Its transpose, the weight gradient ``x^T dy``, then has an
        # ordinary left side. On a CPU the barrier keeps XLA from undoing the transposition.
        turned = platforms.choose(x.T, cpu=lax.optimization_barrier, default=_unchanged)
        change = lax.dot_general(turned, dw, (((0,), (0,)), ((), ())), precision=precision)
        return product(x, w), product(dx, w) + change

    return product
