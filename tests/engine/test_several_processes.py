"""Two processes compute what one process computes, up to rounding."""

from __future__ import annotations

import functools
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

from tests.engine.several import registry, work
from tests.processes import ROOT, ended, given, start

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]

TOOLS = f"""
sys.path.insert(0, {str(ROOT)!r})
from tests.engine.several import checkpointed, numbers_of, registry, work
folder = pathlib.Path(arguments[0])
"""
work_of_one = functools.cache(lambda: work(1))


def assert_same(one: Any, other: Any, tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("devices", [1, 2])
def test_all_calls(tmp_path: pathlib.Path, devices: int) -> None:
    """``simulate``, ``standalone``, ``sweep``, ``predict`` and ``deployed``; both processes have all of it."""
    first, second = given(TOOLS + "give(work('all'))", tmp_path, devices=devices)
    assert_same(first, second, 0.0)
    assert_same(work_of_one(), first, 1e-5)


def test_every_algorithm(tmp_path: pathlib.Path) -> None:
    first, second = given(TOOLS + "give(registry('all'))", tmp_path)
    assert_same(first, second, 0.0)
    assert_same(registry(1), first, 1e-4)


INTERRUPTED = """
whole = numbers_of("", checkpointed(folder / "whole"))
try:
    checkpointed(folder / "part", stop_after=2)
    stopped = None
except fljax.Stopped as stop:
    stopped = (stop.round, stop.rounds, stop.saved)
if rank == "0":
    for name in ("one", "two"):
        shutil.copytree(folder / "part", folder / name)
give((whole, stopped, numbers_of("", checkpointed(folder / "part"))))
"""


IN_ONE = """
give([numbers_of("", checkpointed(folder / name, devices)) for name, devices in (("two", 2), ("one", 1))])
"""


def test_a_run_goes_on_after_its_checkpoint(tmp_path: pathlib.Path) -> None:
    """In two processes and in one with as many devices bit for bit, on one device up to rounding."""
    (whole, *there), (other, *second) = given("import shutil" + TOOLS + INTERRUPTED, tmp_path)
    assert there[0] == second[0] == (2, 6, 2)
    for found in (other, there[1], second[1]):
        assert_same(whole, found, 0.0)
    # In a process of its own, since the tests' checks of annotations are part of an algorithm's functions.
    ((equal, close),) = given(TOOLS + IN_ONE, tmp_path, devices=2, count=1)
    assert_same(whole, equal, 0.0)
    assert_same(whole, close, 1e-5)


DIFFERENT = """
from fljax.core import processes
print(
    processes.gathered(rank),
    processes.agreed(lambda: (rank, b"x" * 3000)) == ("0", b"x" * 3000),
    processes.is_first(),
)
def refuse():
    raise ValueError("no " + rank)
try:
    processes.agreed(refuse)
except ValueError as error:
    print(error)
try:
    processes.check_same(lambda: {"seeds": [1], "rounds": int(rank)})
except ValueError as error:
    print(error)
"""


def test_decisions(tmp_path: pathlib.Path) -> None:
    """Process 0 decides, also what is raised; processes that are called differently are refused."""
    found = ended(start(DIFFERENT, tmp_path))
    for process, (code, out, err) in enumerate(found):
        assert code == 0, err
        assert f"['0', '1'] True {process == 0}\n" in out
        assert "no 0\n" in out
        assert (
            "expected the same call in all processes, got another one in process 1 than in process 0; "
            "different are: rounds\n" in out
        )


DECIDED = """
import warnings
import numpy as np
from fljax.engine.programs import program
from tests.engine.several import toy
task, federation, local = toy()
algorithm = fljax.algorithms.fedavg(task, local, clients_per_round=4)
found = {}
def simulate(**options):
    how = {"rounds": 4, "evaluate_every": 1, "execution": fljax.Execution(clients="vmap")} | options
    return fljax.simulate(algorithm, federation, **how)

# Callbacks are called in process 0, also if the others have other ones; its answer counts.
called = []
def stop(block):
    called.append(block.round)
    return block.round == 2
found["stopped"] = int(simulate(callbacks=[stop]).metrics.rounds_done)
found["called"] = called
def fail(block):
    raise KeyError(f"of process {rank}")
try:
    simulate(callbacks=[fail])
except KeyError as error:
    found["raised"] = str(error)

# A request to stop that only process 1 gets.
request = fljax.StopRequest()
if rank == "1":
    request.make()
try:
    simulate(checkpoint=fljax.Checkpoint(folder / "asked", every=0, stop=request), evaluate_every=None)
except fljax.Stopped as stopped:
    found["asked"] = (stopped.round, stopped.saved)

found["trial"] = int(simulate(execution=fljax.Execution(clients="trial")).metrics.execution_clients)

# Memory that suffices for one client at a time only.
real = program.run_rounds
def limited(spec, layout, *rest):
    if layout.clients > 1:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12345 bytes.")
    return real(spec, layout, *rest)
limited.trace = real.trace
program.run_rounds = limited
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    found["memory"] = int(simulate(checkpoint=folder / "memory").metrics.execution_clients)
program.run_rounds = real

# Each process gives so many of its own devices.
found["devices"] = [
    int(simulate(execution=fljax.Execution(devices=n)).metrics.execution_devices) for n in (1, 2, "all")
]
try:
    simulate(execution=fljax.Execution(devices=3))
except ValueError as error:
    found["too many"] = str(error)
try:
    simulate(rounds=4, evaluate_every=4 + int(rank))
except ValueError as error:
    found["different"] = str(error)

# Callbacks that only process 0 has, and calls that differ between the processes.
found["only 0"] = int(simulate(callbacks=[stop] if rank == "0" else []).metrics.rounds_done)
def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)
first = rank == "0"
found["execution"] = refused(lambda: simulate(execution=fljax.Execution("trial" if first else "auto")))
other = local._replace(steps=2 if first else 42)
found["standalone"] = refused(lambda: fljax.standalone(task, federation, other))
give(found)
"""


def test_what_is_decided_in_a_run(tmp_path: pathlib.Path) -> None:
    first, second = given(TOOLS + DECIDED, tmp_path, devices=2)
    assert (first.pop("called"), second.pop("called")) == ([1, 2, 1, 2], [])
    assert (first, first["stopped"], first["raised"], first["asked"]) == (second, 2, "'of process 0'", (1, 1))
    assert (first["memory"], first["devices"]) == (1, [2, 4, 4])
    assert first["too many"].startswith("expected execution.devices to be at most the 2 that JAX sees, got 3")
    assert first["different"].endswith("different are: evaluate_every")
    assert first["only 0"] == 2
    assert first["execution"].endswith("different are: execution")
    assert "expected the same call in all processes" in first["standalone"]


OTHER_PROGRAMS = """
import optax
from fljax import algorithms, data, models
blobs = data.load("blobs")
federation = data.federate(blobs, "iid", clients=4)
local, shape, first = fljax.Local(0.1, 8, steps=2), blobs.x.shape[1:], rank == "0"
def refused(task, call=None):
    try:
        call() if call else fljax.simulate(algorithms.fedavg(task, local, clients_per_round=2), federation, rounds=2)
    except ValueError as error:
        return str(error)
def net(**options):
    return models.mlp(shape, blobs.classes, hidden=[8], **options)
found = {"dropout": refused(net(dropout=0.1 if first else 0.2))}
found["dtype"] = refused(net(dtype="float32" if first else "bfloat16"))
params = jax.tree.map(lambda leaf: leaf + int(rank), net().init(jax.random.key(0)))
found["start"] = refused(models.start_from(net(), params))
found["standalone"] = refused(None, lambda: fljax.standalone(net(dropout=0.1 if first else 0.2), federation, local))
key = jax.random.key(3)
noisy = net()._replace(init=lambda given: net().init(jax.random.fold_in(key, jax.random.bits(given))))
own = local._replace(optimizer=lambda rate: optax.adam(rate))
found["own"] = refused(None, lambda: fljax.compare(["fedavg"], federation, noisy, own, rounds=2, progress=False))
names = ["fedavg", "incfl"] if first else ["fedavg"]
found["labels"] = refused(None, lambda: fljax.compare(names, federation, net(), local, rounds=2, progress=False))
for name in ("jax_enable_x64", "jax_threefry_partitionable", "jax_random_seed_offset"):
    before = getattr(jax.config, name)
    jax.config.update(name, (not before if isinstance(before, bool) else 7) if first else before)
    found[name] = refused(net())
    jax.config.update(name, before)
def wrap(build):  # the code of own functions
    return (lambda *given: build(*given)) if first else (lambda *given: build(*given[:]))
found["code"] = refused(net()._replace(logits=wrap(net().logits)))
found["same"] = refused(net())
give(found)
"""


def test_calls_that_differ_in_their_programs_are_refused(tmp_path: pathlib.Path) -> None:
    first, second = given(OTHER_PROGRAMS, tmp_path)
    assert first == second
    same = "expected the same call in all processes, got another one in process 1 than in process 0; different are: "
    assert {name: words and words.removeprefix(same) for name, words in first.items()} == {
        **dict.fromkeys(("dropout", "dtype", "start", "standalone"), "model or algorithm"),
        "labels": "labels",
        **{name: name for name in ("jax_enable_x64", "jax_threefry_partitionable", "jax_random_seed_offset")},
        "code": "code of __main__.wrap.<locals>.<lambda>",
        **dict.fromkeys(("own", "same")),
    }


def test_processes_need_equally_many_devices(tmp_path: pathlib.Path) -> None:
    code = (
        "from fljax import algorithms, data, models\n"
        "blobs = data.load('blobs')\n"
        "federation = data.federate(blobs, 'iid', clients=4)\n"
        "task = models.logistic_regression(blobs.x.shape[1:], blobs.classes)\n"
        "try:\n"
        "    fljax.standalone(task, federation, fljax.Local(0.1, 8, steps=2))\n"
        "except ValueError as error:\n"
        "    give(str(error))\n"
    )
    more = "if rank == '1':\n    jax.config.update('jax_num_cpu_devices', 2)\n"
    processes = start(code, tmp_path, before=more)
    for status, out, err in ended(processes):
        assert status == 0, (status, out, err)
    for rank in range(2):
        words = pickle.loads((tmp_path / f"{rank}.pickle").read_bytes())
        assert words == "expected equally many devices in all processes, got 1, 2 in processes 0 to 1"
