"""Deployment rows: clients whose data change after training use them to choose their models, and for nothing else."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from fljax.algorithms import ipfl
from fljax.core.trees import take
from fljax.data import federate, load, row_numbers
from fljax.engine import simulate
from fljax.engine.offload.host_data import HostData, splits_read_by
from fljax.engine.programs.program import Plan, partition_plan
from fljax.engine.programs.shapes import measure
from fljax.engine.rounds.states import by_id, local_data, without_rows
from fljax.experiments import outlines
from fljax.protocol import Algorithm, Federation
from fljax.scenarios import opting_out
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")

LOCAL = Local(0.3, batch_size=2, steps=2)


def _builder(task: Any, local: Any, split: Any = "valid") -> Algorithm:
    return ipfl(task, local, clients_per_cluster=2, importance="accuracy", importance_split=split)


def _market(split: Any = "valid") -> Algorithm:
    return _builder(logistic_regression(), LOCAL, split)


def _changed(federation: Federation) -> Federation:
    """Everybody's deployment rows are its test rows, so that models that use them are those that use test rows."""
    seen, unseen = federation.clients, federation.unseen
    assert unseen is not None
    return federation._replace(
        clients=seen._replace(deployment=seen.test), unseen=unseen._replace(deployment=unseen.test)
    )


def _run(algorithm: Algorithm, federation: Federation) -> Any:
    return simulate(algorithm, federation, rounds=3, seeds=(0,), evaluate_every=3)


def test_a_client_that_uses_its_model_validates_on_them() -> None:
    data = _changed(tiny_federation())
    client = take(data.clients, 0)
    during, after = local_data(data, client), local_data(data, client, deployed=True)
    np.testing.assert_array_equal(during.valid.rows.index, client.valid.index)
    np.testing.assert_array_equal(after.valid.rows.index, client.test.index)
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(after, part).rows.index, getattr(during, part).rows.index)
    same = local_data(tiny_federation(), client._replace(deployment=None), deployed=True)
    np.testing.assert_array_equal(same.valid.rows.index, client.valid.index)


@pytest.mark.thorough
def test_only_the_model_that_test_rows_judge_depends_on_them() -> None:
    data = tiny_federation()
    old, new, leaking = _run(_market(), data), _run(_market(), _changed(data)), _run(_market("test"), data)
    jax.tree.map(np.testing.assert_array_equal, new.state, old.state)
    for name, values in old.records.items():
        np.testing.assert_array_equal(new.records[name], values)
    for name in ("test_loss", "unseen_test_loss"):
        np.testing.assert_allclose(new.metrics[name], leaking.metrics[name], rtol=1e-5)
        assert np.abs(new.metrics[name] - old.metrics[name]).max() > 1e-4
    # The model before the change is judged on the validation rows from before the change.
    np.testing.assert_allclose(new.metrics["valid_loss"], old.metrics["valid_loss"], rtol=1e-5)
    assert np.abs(leaking.metrics["valid_loss"] - old.metrics["valid_loss"]).max() > 1e-4


@pytest.mark.thorough
def test_decisions_during_training_do_not_read_them() -> None:
    data = tiny_federation()
    algorithm = opting_out(_market(), baseline=np.full(5, 0.6, np.float32), every=1)
    old, new = _run(algorithm, data), _run(algorithm, _changed(data))
    jax.tree.map(np.testing.assert_array_equal, new.state, old.state)
    np.testing.assert_array_equal(new.records["gain"], old.records["gain"])
    assert len(set(np.asarray(old.records["gain"])[np.isfinite(old.records["gain"])].tolist())) > 2


@pytest.mark.in_turn
def test_they_are_moved_from_the_host_for_evaluations() -> None:
    spec, inputs = partition_plan(
        Plan(_builder, {"task": logistic_regression(), "local": LOCAL}), by_id(_changed(tiny_federation()))
    )
    reads = splits_read_by(spec, inputs, measure(spec, inputs, 1).state)
    assert (reads.train, reads.poll) == (("train",), ("train", "valid"))
    assert reads.judge_seen == ("train", "valid", "test", "deployment")
    assert reads.judge_unseen == ("train", "test", "deployment")
    data = HostData.of(inputs.federation)
    block = data.block(data.seen, 0, np.array([3, 1]), reads.judge_seen, data.seen.most(reads.judge_seen, 2))
    own, moved = inputs.federation, row_numbers(block, "deployment")
    for client, rows in zip((3, 1), moved, strict=True):
        expected = own.examples.x[row_numbers(own, "deployment")[client]]
        np.testing.assert_array_equal(np.asarray(block.examples.x)[rows], expected)


def test_a_federation_without_rows_keeps_their_numbers(tmp_path: pathlib.Path) -> None:
    made: Any = federate(load("digits"), "mixture", clients=6, complement=True, valid_fraction=0.3, drift_fraction=0.4)
    blank: Any = without_rows(made)
    np.testing.assert_array_equal(blank.clients.deployment.size, made.clients.deployment.size)
    assert not np.asarray(blank.clients.deployment.index.start).any()
    saved = outlines.contents(made, load("digits"), [made.names])
    outlines.save_outline(tmp_path, saved, checksum=1)
    found: Any = outlines.load_outline(tmp_path)
    assert jax.tree.structure(found.federation.clients) == jax.tree.structure(blank.clients)
    for part, rows in made.clients.parts.items():
        np.testing.assert_array_equal(found.federation.clients.parts[part].size, rows.size)
    assert "<td>deployment</td>" in made._repr_html_()
    assert "<td>later</td>" in made._repr_html_()
    assert len(row_numbers(made, "deployment")) == 6
