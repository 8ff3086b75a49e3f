"""The numbers of one evaluation."""

from __future__ import annotations

import numpy as np

from fljax.engine.callbacks import scalars_of
from tests.engine.callbacks.blocks import block


def test_one_number_for_each_run():
    found = scalars_of(block({"average_accuracy": [0.1, np.nan], "average_loss": [np.inf, 2.0]}, seeds=(3, 5)))
    assert (found.seeds, found.values) == ((3, 5), {"average_accuracy": [0.1, None], "average_loss": [None, 2.0]})


def test_float32_is_written_with_seven_digits():
    found = scalars_of(block({"average_accuracy": np.array([0.1, 1 / 3], np.float32)}))
    assert found.values["average_accuracy"] == [0.1, 0.3333333]


def test_metrics_of_single_clients_are_left_out():
    assert scalars_of(block({"test_loss": [[1.0, 2.0], [3.0, 4.0]]})).values == {}


def test_names_of_means_and_seeds():
    scalars = scalars_of(block({"ipr_loss": [0.25, 0.75]}, seeds=(0, 7)))
    assert list(scalars.named("incfl")) == [
        ("incfl/mean", "ipr_loss", 0.5),
        ("incfl/seed_0", "ipr_loss", 0.25),
        ("incfl/seed_7", "ipr_loss", 0.75),
    ]
    assert [whose for whose, _, _ in scalars.named()] == ["mean", "seed_0", "seed_7"]


def test_what_has_no_value_is_not_named():
    scalars = scalars_of(block({"ipr_loss": [np.nan, 0.75], "ipr_accuracy": [np.nan, np.nan]}))
    assert list(scalars.named()) == [("mean", "ipr_loss", 0.75), ("seed_1", "ipr_loss", 0.75)]


def test_cells_of_a_sweep():
    scalars = scalars_of(block({"ipr_loss": [0.0, 1.0, 0.2, 0.4]}, seeds=(0, 1, 0, 1)))
    assert scalars.cells == 2
    named = {whose: value for whose, _, value in scalars.named("a", cells=(4, 9))}
    assert (named["a/cell_4/mean"], named["a/cell_9/seed_1"]) == (0.5, 0.4)
