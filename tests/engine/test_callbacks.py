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
    | {"server_test_loss": np.array([3.0, 4.0]), "average_accuracy": np.array([0.5, 1.0])},
    state=None,  # type: ignore[arg-type]
    seconds=2.0,
    diverged=(),
)


def test_progress_is_one_line():
    lines: list[str] = []
    callback = print_progress(lines.append)
    callback(BLOCK)
    callback(BLOCK._replace(round=8))
    assert lines[0] == "round 4 of 8: accuracy 0.750, 2.0 rounds/s, 2 s left"
    assert lines[1].endswith("2.0 rounds/s")


def test_progress_begins_with_the_metric_that_matters():
    lines: list[str] = []
    more = {"incentivised_participation_rate": np.array([0.25, 0.5])}
    more["unseen_incentivised_participation_rate"] = np.array([np.nan, np.nan])
    print_progress(lines.append)(BLOCK._replace(metrics=BLOCK.metrics | more))
    assert lines == ["round 4 of 8: IPR 0.375, IPR unseen none, accuracy 0.750, 2.0 rounds/s, 2 s left"]
    print_progress(lines.append)(BLOCK._replace(metrics={"test_loss": BLOCK.metrics["test_loss"]}))
    assert lines[1] == "round 4 of 8: loss 1.000, 2.0 rounds/s, 2 s left"


def test_the_log_is_json_where_there_are_no_numbers(tmp_path):
    odd = {"test_loss": np.array([[np.inf, 1.0], [np.nan, np.nan]]), "pearson_correlation": np.array([np.nan, 0.5])}
    log_to(tmp_path / "log.jsonl")(BLOCK._replace(metrics=odd))

    def refuse(constant):
        raise AssertionError(constant)

    line = json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=refuse)
    assert (line["test_loss"], line["pearson_correlation"]) == ([None, None], [None, 0.5])


def test_the_log_has_one_json_line_per_block(tmp_path):
    path = tmp_path / "log.jsonl"
    callback = log_to(path)
    callback(BLOCK)
    callback(BLOCK)
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first, first["test_loss"], first["test_accuracy"]) == (second, [1.5, 0.5], [0.5, 1.0])
    assert first["server_test_loss"] == [3.0, 4.0]


def test_stopping():
    callback = stop_when(lambda block: block.round >= 8)
    assert callback(BLOCK) is False
    assert callback(BLOCK._replace(round=8)) is True


def test_lines_say_the_algorithm_of_a_comparison(tmp_path):
    lines: list[str] = []
    for label in ("fedavg", "incfl"):
        print_progress(lines.append)(BLOCK._replace(label=label))
        log_to(tmp_path / "log.jsonl")(BLOCK._replace(label=label))
    assert [line.partition(":")[0] for line in lines] == ["fedavg", "incfl"]
    logged = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] for line in logged] == ["fedavg", "incfl"]
