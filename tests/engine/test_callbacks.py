"""Ready-made callbacks."""

from __future__ import annotations

import json

import numpy as np

from fljax.engine import Block, log_to, print_progress, stop_when

BLOCK = Block(
    round=4,
    rounds=8,
    ran=4,
    metrics={"test_accuracy": np.array([[0.5, np.nan], [1.0, 1.0]]), "test_loss": np.array([[2.0, 1.0], [0.0, 1.0]])}
    | {"server_test_loss": np.array([3.0, 4.0])},
    state=None,  # type: ignore[arg-type]
    seconds=2.0,
    diverged=(),
)


def test_progress_is_one_line():
    lines: list[str] = []
    callback = print_progress(lines.append)
    callback(BLOCK)
    callback(BLOCK._replace(round=8))
    assert lines[0] == "round 4 of 8: accuracy 0.833, 2.0 rounds/s"
    assert lines[1].endswith("2.0 rounds/s")


def test_the_log_has_one_json_line_per_block(tmp_path):
    path = tmp_path / "log.jsonl"
    callback = log_to(path)
    callback(BLOCK)
    callback(BLOCK)
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == second
    assert first["test_loss"] == [1.5, 0.5]
    assert first["test_accuracy"] == [0.5, 1.0]
    assert first["server_test_loss"] == [3.0, 4.0]


def test_stopping():
    callback = stop_when(lambda block: block.round >= 8)
    assert callback(BLOCK) is False
    assert callback(BLOCK._replace(round=8)) is True
