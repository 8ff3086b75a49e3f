"""Numbers that no model can be built from are refused before anything is traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fljax import models
from fljax.protocol import Rows, Subset
from fljax.training import Local
from fljax.training.batches import draw

IMAGE = (8, 8, 1)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("mlp", {"hidden": [0]}, "expected hidden of whole numbers from 1 to 2147483647, got 0"),
        ("mlp", {"hidden": [-4]}, "expected hidden of whole numbers .* got -4"),
        ("mlp", {"hidden": [10**18]}, "expected hidden of whole numbers .* got 1000000000000000000"),
        (
            "mlp",
            {"hidden": [10**9]},
            r"expected parameters of at most 2147483647 entries each, got .*\[64, 1000000000\]",
        ),
        ("mlp", {"dropout": 1.0}, "expected dropout to be at least 0 and below 1, got 1.0"),
        ("mlp", {"dropout": -0.5}, "expected dropout to be at least 0 and below 1, got -0.5"),
        ("cnn", {"blocks": []}, r"expected blocks of at least one layer each, got \[\]"),
        ("cnn", {"blocks": [[]]}, r"expected blocks of at least one layer each, got \[\[\]\]"),
        ("cnn", {"blocks": [[0]]}, "expected blocks of whole numbers .* got 0"),
        ("cnn", {"dense": [-1]}, "expected dense of whole numbers .* got -1"),
        ("cnn", {"kernel": 0}, "expected kernel and groups of whole numbers .* got 0"),
        ("cnn", {"kernel": 10**6}, "expected a kernel of at most 15 for images of 8 x 8, got 1000000"),
        ("cnn", {"groups": 0}, "expected kernel and groups of whole numbers .* got 0"),
    ],
)
def test_what_no_model_can_be_built_from(name, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        models.MODELS[name](IMAGE, 10, **options)


@pytest.mark.parametrize("options", [{"hidden": 0}, {"embedding": -1}, {"dense": [0]}, {"dropout": 2.0}])
def test_widths_of_models_of_texts(options):
    with pytest.raises(ValueError, match=r"expected (embedding and hidden|dense|dropout) "):
        models.MODELS["bilstm"]((5,), 2, vocabulary=10, **options)


@pytest.mark.parametrize("count", [{"steps": 2**30}, {"epochs": 2**30}])
def test_more_rows_than_an_array_holds_are_not_drawn(count):
    rows = Rows(jnp.arange(8), jnp.asarray(8))
    with pytest.raises(ValueError, match="expected at most 2147483647 rows drawn by a client in a round"):
        draw(jax.random.key(0), Subset(None, rows), Local(0.1, 4, **count))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [0, True, "", "x", "i4, (", "longdouble", [], {"x": 1}, [[]], object()])
def test_what_is_no_dtype_is_one_sentence(dtype: Any) -> None:
    for name in ("dtype", "compute_dtype"):
        with pytest.raises(ValueError, match="expected a floating dtype for a model"):
            models.logistic_regression((4,), 2, **{name: dtype})
    with pytest.raises(ValueError, match="expected a floating dtype for a model, got int32"):
        models.logistic_regression((4,), 2, compute_dtype="int32")
