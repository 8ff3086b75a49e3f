"""Examples and states of clients on the host: only the cohort is moved; law 24 has the results of all algorithms."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import algorithms, data, engine
from fljax.engine import Execution
from fljax.engine.offload import host_data
from fljax.engine.offload.host_data import HostData, splits_read_by
from fljax.engine.programs.program import Plan, partition_plan
from fljax.engine.programs.shapes import Sizes, measure, resolve
from fljax.engine.rounds.states import by_id
from fljax.testing.federation import client_rows, spoil_client, tiny_federation, with_lists
from tests.laws.cases import bench, federation
from tests.laws.compare import assert_close
from tests.toys.runs import assert_close_results

BOTH: dict[str, Any] = {"examples": "host", "client_states": "host"}


def task_and_local() -> dict[str, Any]:
    return {"task": fljax.models.logistic_regression((4,), 3), "local": fljax.Local(0.1, 4, epochs=2)}


def plan(build: Any = algorithms.fedavg, **arguments: Any) -> Plan:
    return Plan(build, task_and_local() | arguments)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("partition", "options"),
    [
        pytest.param(
            "dirichlet", {"beta": 0.3, "valid_fraction": 0.3, "held_fraction": 0.2}, marks=pytest.mark.thorough
        ),
        pytest.param("noise", {"sigma": 2.0}, marks=pytest.mark.thorough),
        pytest.param("iid", {"test": "global"}, marks=pytest.mark.thorough),
    ],
)
def test_federations_of_every_kind(partition: str, options: dict[str, Any]) -> None:
    blobs = data.load("blobs")
    how = {"clients": 7, "unseen": 3, "seeds": (1, 2)} | options
    there = data.stack(data.federations(blobs, partition, **how))
    here = data.stack(data.federations(blobs, partition, examples="host", **how))
    assert isinstance(here.examples.x, np.ndarray)
    options = {"rounds": 3, "seeds": (1, 2), "evaluate_every": 1}
    given = plan(clients_per_round=4)
    found = engine.simulate(given, here, execution=Execution(2, examples="host"), **options)
    expected = engine.simulate(given, there, execution=Execution(2), **options)
    assert_close_results(found, expected)
    rows = blobs.x[:5]
    assert_close(found.predict(2, rows, seed=1), expected.predict(2, rows, seed=1))
    assert_close(found.predict(1, rows, unseen=True), expected.predict(1, rows, unseen=True))
    alone = [
        fljax.standalone(**task_and_local(), federation=each, seeds=(1, 2), keep_models=True, execution=execution)
        for each, execution in ((here, Execution(2, examples="host")), (there, Execution(2)))
    ]
    assert_close(alone[0], alone[1])


@pytest.mark.in_turn
def test_a_mapped_file_stays_one(tmp_path: pathlib.Path) -> None:
    blobs = data.load("blobs")
    np.save(tmp_path / "x.npy", blobs.x)
    np.save(tmp_path / "y.npy", blobs.y)
    np.save(tmp_path / "owner.npy", np.arange(len(blobs.y)) % 5)
    loaded = data.load(str(tmp_path / "x.npy"), client="owner.npy", standardise=False)
    mapped = data.federate(loaded, "natural")
    assert mapped.examples.is_mapped
    assert data.federate(loaded, "natural", examples="device").examples.is_mapped is False
    owners = np.arange(len(blobs.y)) % 5
    usual = data.from_arrays(np.asarray(blobs.x), np.asarray(blobs.y), owners)
    sizes = measure(*partition_plan(plan(), by_id(mapped)), 1).sizes
    assert sizes.mapped
    assert resolve(Execution(), sizes).examples == "host"
    assert_close_results(
        fljax.simulate(plan(), mapped, rounds=2, evaluate_every=2),
        fljax.simulate(plan(), usual, rounds=2, evaluate_every=2),
    )
    (tmp_path / "y.npy").write_text("no")
    with pytest.raises(ValueError, match=r"expected an array of numpy\.save in y\.npy"):
        data.load(str(tmp_path / "x.npy"))


def test_a_block_has_the_rows_of_its_clients_and_no_others() -> None:
    whole = by_id(with_lists(tiny_federation(), 0))
    there = HostData.of(whole._replace(examples=whole.examples._replace(x=np.asarray(whole.examples.x))))
    clients, parts = np.array([3, 1, 1]), ("train", "test")
    block = there.block(there.seen, 0, clients, parts, there.seen.most(parts, 3))
    for place, client in enumerate(clients.tolist()):
        for part in parts:
            x, y = client_rows(whole, client, part)
            found = client_rows(block._replace(clients=block.clients._replace(id=np.arange(3))), place, part)  # type: ignore[arg-type]
            np.testing.assert_array_equal(found[0], x)
            np.testing.assert_array_equal(found[1], y)
    assert len(block.examples.x) == 9 + 7 + 5 + 6 + 6 + 5  # the three largest of each part


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "train", "judge"),
    [
        ("fedavg", ("train",), ("test",)),
        ("incfl", ("train",), ("test",)),
        ("fedfomo", ("train", "valid"), ("test",)),
        ("ipfl", ("train",), ("train", "valid", "test")),  # training rows where there are none for validation
    ],
)
def test_only_the_parts_that_are_read_are_moved(name: str, train: tuple[str, ...], judge: tuple[str, ...]) -> None:
    spec, inputs = partition_plan(bench(name).plan, by_id(federation()))
    reads = splits_read_by(spec._replace(valid=False), inputs, measure(spec, inputs, 1).state)
    assert (reads.train, reads.judge_seen, reads.begin) == (train, judge, ())


@pytest.mark.thorough
def test_a_run_does_not_write_into_the_state_that_it_is_given() -> None:
    options: dict[str, Any] = {"rounds": 2, "seeds": (0, 3), "evaluate_every": 2, "execution": Execution(2, **BOTH)}
    whole = engine.simulate(bench("ditto").plan, federation(), **{**options, "rounds": 4})
    first = engine.simulate(bench("ditto").plan, federation(), **options)
    kept = jax.tree.map(np.array, first.state.clients)
    further = engine.simulate(bench("ditto").plan, federation(), initial=first.state, **options)
    assert_close(further.state.clients, whole.state.clients)
    assert_close(first.state.clients, kept)


@pytest.mark.thorough
def test_who_diverged_is_found(tmp_path: pathlib.Path) -> None:

    spoiled = spoil_client(federation(), 2)
    for mode in ("freeze", "drop"):
        given, options = bench("scaffold").plan, {"rounds": 3, "evaluate_every": 1, "non_finite": mode}
        there = engine.simulate(given, spoiled, execution=Execution(2), **options)
        here = engine.simulate(given, spoiled, execution=Execution(2, **BOTH), **options)
        assert here.divergences == there.divergences
        assert_close_results(here, there)
    with pytest.raises(fljax.results.non_finite.NotFinite, match="client 2"):
        engine.simulate(given, spoiled, rounds=3, evaluate_every=3, execution=Execution(2, **BOTH), non_finite="stop")


def test_blocks_are_small_and_a_multiple_of_what_is_computed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    find = lambda count, at_once, row=0: host_data.block_size((), None, count, at_once, row, 100).clients  # noqa: E731
    assert find(100, 4) == 32  # at most half of the clients
    assert find(3, 4) == 3
    monkeypatch.setattr(host_data, "BLOCK", 1000)
    assert find(100, 4) == 8


def test_auto_keeps_on_the_host_what_an_accelerator_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from fljax.engine.programs import shapes

    monkeypatch.setattr(shapes, "_memory", lambda: 1000)
    sizes = Sizes(10, 100, 1, 10, 10, 10)

    def places(platform: str, asked: Execution | None = None, **found: Any) -> tuple[str, str]:
        layout = resolve(asked or Execution(), sizes._replace(**found), platform)
        return layout.examples, layout.client_states

    assert places("gpu", examples=500, client_states=250) == ("device", "device")
    assert places("gpu", examples=501, client_states=750) == ("host", "device")
    assert places("gpu", examples=500, client_states=251) == ("device", "host")
    assert places("cpu", examples=5000, client_states=5000) == ("device", "device")
    assert places("cpu", Execution(client_states="host")) == ("device", "host")
    assert places("gpu", Execution(examples="device"), examples=5000) == ("device", "device")
    with pytest.raises(ValueError, match=r"expected execution\.examples to be auto, device or host, got 'disk'"):
        resolve(Execution(examples="disk"), sizes, "cpu")  # type: ignore[arg-type]


@pytest.mark.thorough
def test_the_memory_of_a_run_is_told_before_it(tmp_path: pathlib.Path) -> None:
    told: list[engine.Memory] = []
    given, execution = bench("ditto").plan, Execution(2, **BOTH)
    engine.simulate(given, federation(), rounds=1, execution=execution, on_memory=told.append)
    estimated = engine.estimate(given, federation(), engine.Schedule(1, execution=execution))
    usual = engine.estimate(given, federation(), engine.Schedule(1, execution=Execution(2)))
    assert told[0].clients == estimated.clients == 0 < usual.clients
    assert told[0].peak is not None
    assert jnp.isfinite(told[0].peak)


def test_what_stays_on_the_devices() -> None:
    """Random keys of clients, and all data where NaN shall raise."""
    sizes = Sizes(10, 100, 1, 10, 10, 10, keyed=True, mapped=True)
    assert resolve(Execution(), sizes, "cpu").client_states == "device"
    with pytest.raises(ValueError, match=r"expected execution\.client_states to be auto or device, since clients"):
        resolve(Execution(client_states="host"), sizes, "cpu")
    with jax.debug_nans(True):
        assert not resolve(Execution(examples="host"), sizes, "cpu").is_offloaded


def test_a_block_of_an_array_in_another_order_copies_only_its_rows() -> None:
    import tracemalloc

    wide = np.zeros((4000, 500), np.float32, order="F")
    owners = np.arange(4000) % 100
    there = HostData.of(data.from_arrays(wide, owners % 2, owners, examples="host"))
    tracemalloc.start()
    there.block(there.seen, 0, np.arange(2), ("train",), there.seen.most(("train",), 2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < wide.nbytes / 10


@pytest.mark.in_turn
def test_where_data_were_is_told() -> None:
    result = engine.simulate(bench("fedavg").plan, federation(), rounds=1, execution=Execution(2, **BOTH))
    told = result.metrics["execution_devices"].attrs
    assert (told["examples"], told["client_states"]) == ("host", "host")
