"""Models: Tasks from flax modules, and a convolution that is fast when every client has its own kernels."""

from __future__ import annotations

from fljax.models.convolutions import convolution, max_pool
from fljax.models.networks import MODELS, cnn, cnn_a, cnn_b, cnn_c, logistic_regression, mlp, resnet18
from fljax.models.starting import freeze, load_params, params_of, standardise, start_from
from fljax.models.task import correct, cross_entropy, squared_error, task_from_module
from fljax.models.text import bilstm, text_cnn

__all__ = [
    "MODELS",
    "bilstm",
    "cnn",
    "cnn_a",
    "cnn_b",
    "cnn_c",
    "convolution",
    "correct",
    "cross_entropy",
    "freeze",
    "load_params",
    "logistic_regression",
    "max_pool",
    "mlp",
    "params_of",
    "resnet18",
    "squared_error",
    "standardise",
    "start_from",
    "task_from_module",
    "text_cnn",
]
