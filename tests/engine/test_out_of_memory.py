"""A run whose memory does not suffice goes on with fewer clients side by side; the faults are injected."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from fljax import engine
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.devices.layout import Layout, is_out_of_memory, smaller
from fljax.engine.programs import program
from fljax.protocol import Federation
from tests.engine.test_checkpoints import _plan, _simulate
from tests.toys.runs import assert_same_results


def _full(monkeypatch: pytest.MonkeyPatch, name: str, most: int, after: int = 0) -> list[int]:
    """Lets a program run out of memory if more than ``most`` clients are side by side, from its call ``after`` on."""
    real, asked = getattr(program, name), list[int]()

    def limited(spec: Any, layout: Layout, *rest: Any) -> Any:
        width = layout.clients if name == "run_rounds" else layout.evaluation
        asked.append(width)
        if width > most and len(asked) > after:
            for leaf in jax.tree.leaves(rest[-3 if name == "run_rounds" else -2]):
                if isinstance(leaf, jax.Array):  # evaluation also gets arrays of NumPy
                    leaf.delete()  # as donated arguments are
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12345 bytes.")
        return real(spec, layout, *rest)

    limited.trace = real.trace
    monkeypatch.setattr(program, name, limited)
    return asked


ALL = engine.Execution(clients="vmap", seeds="vmap", evaluation="vmap", devices=1)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "most", "widths"), [("run_rounds", 1, [3, 1, 1, 1]), ("evaluate_runs", 2, [5, 2, 2, 2, 2])]
)
def test_a_run_goes_on_with_fewer_side_by_side(federation, monkeypatch, name, most, widths):
    expected = _simulate(federation, execution=ALL)
    asked = _full(monkeypatch, name, most)
    with pytest.warns(RuntimeWarning, match=r"memory did not suffice; the run goes on after round 0 with fewer"):
        found = _simulate(federation, execution=ALL)
    assert asked == widths
    assert int(found.metrics.execution_clients) == 1
    np.testing.assert_allclose(found.metrics.test_loss, expected.metrics.test_loss, rtol=1e-5)
    assert found.metrics.evaluated_round.values.tolist() == [0, 3, 6, 7]
    assert found.records["round"].values.tolist() == list(range(7))


@pytest.mark.in_turn
def test_with_checkpoints_it_goes_on_after_the_newest(federation, tmp_path, monkeypatch):
    """Memory that others take meanwhile; the same bits come out if nothing is side by side anyway."""
    asked = _full(monkeypatch, "run_rounds", 1, after=4)
    notes: list[str] = []
    settings = Checkpoint(tmp_path, every=0, note=notes.append)
    found = _simulate(federation, execution=ALL, checkpoint=settings)
    assert asked == [3] * 5 + [1] * 3
    assert notes == [
        "goes on after round 4 of 7, from a checkpoint",
        "memory did not suffice; the run goes on after round 4 with fewer side by side: clients in training 1, clients "
        "in evaluation 2, runs 1",
    ]
    monkeypatch.undo()
    expected = _simulate(federation, execution=ALL)
    np.testing.assert_allclose(found.metrics.test_loss, expected.metrics.test_loss, rtol=1e-5)
    again = _simulate(federation, execution=ALL, checkpoint=settings)
    assert_same_results(again, found)


@pytest.mark.in_turn
def test_one_client_that_does_not_fit_is_an_error(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    _full(monkeypatch, "run_rounds", 0)
    with pytest.warns(RuntimeWarning), pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        _simulate(federation, execution=ALL)


@pytest.mark.in_turn
def test_other_errors_are_raised(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(program, "evaluate_runs", broken)
    broken.trace = program.start.trace  # type: ignore[attr-defined]
    with pytest.raises((jax.errors.JaxRuntimeError, TypeError, ValueError)):
        engine.simulate(_plan(), federation, rounds=1)


def test_which_errors_are_of_memory() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: x"))
    assert not is_out_of_memory(jax.errors.JaxRuntimeError("INTERNAL: x"))
    assert not is_out_of_memory(ValueError("out of memory"))
    assert smaller(Layout(1, 1, 1)) is None
    assert smaller(Layout(5, 1, 9)) == Layout(2, 1, 4)
