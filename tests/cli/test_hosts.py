"""``fljax run|sweep --distributed`` in two processes: what is written, and what happens if one of them dies."""

from __future__ import annotations

import pathlib
import re
import signal
import socket
import subprocess
import time
from typing import Any

import pytest
import xarray as xr

from fljax.core import processes as hosts
from fljax.results import folders
from tests.processes import command, ended, free_port
from tests.processes import start as start_script
from tests.toys.configs import BLOBS, config_text

CONFIG = config_text(
    BLOBS,
    "fedavg",
    "incfl",
    head='name = "tiny"\nrounds = 4\nevaluate_every = 2\nsave_models = "last"',
    standalone=2,
)
# Some seconds between the first checkpoint and the end.
LONG = ["--set", "rounds=600", "--set", "evaluate_every=300", "--set", "local.steps=400", "--checkpoint-every", "0.2"]


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "tiny.toml").write_text(CONFIG)
    return tmp_path


ONE_DEVICE = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}


def start(place: pathlib.Path, *words: str, processes: int = 2) -> list[subprocess.Popen[str]]:
    """Commands that run together, each on one device; a single one runs alone."""
    port = free_port()
    started = []
    for process in range(processes):
        together = ["--coordinator-address", f"127.0.0.1:{port}", "--num-processes", str(processes)]
        more = ["--distributed", *together, "--process-id", str(process)] if processes > 1 else []
        started.append(command(place, *words, *more, variables=ONE_DEVICE))
    return started


def assert_close(one: pathlib.Path, other: pathlib.Path) -> None:
    for mine, theirs in zip(folders.load_results(one), folders.load_results(other), strict=True):
        odd = [name for name in mine if str(name).startswith(("seconds_", "execution_"))]
        xr.testing.assert_allclose(mine.drop_vars(odd), theirs.drop_vars(odd), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_process_0_writes(place: pathlib.Path) -> None:
    """The folder has the files of one process, and JSON is all that stands on stdout."""
    first, second = ended(start(place, "run", "tiny.toml", "--out", "two", "--json", "--no-report"))
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert first[1].startswith("{\n")
    assert second[1] == ""
    ((code, _, err),) = ended(start(place, "run", "tiny.toml", "--out", "one", "--no-report", processes=1))
    assert code == 0, err
    names = [
        sorted(path.relative_to(place / run).as_posix() for path in (place / run).rglob("*")) for run in ("one", "two")
    ]
    assert names[0] == names[1]
    assert_close(place / "two", place / "one")


@pytest.mark.thorough
def test_a_sweep(place: pathlib.Path) -> None:
    words = ["sweep", "tiny.toml", "--grid", "local.learning_rate=0.1,0.2", "--no-report", "--set", "save_models=none"]
    found = ended(start(place, *words, "--out", "two"))
    assert [code for code, _, _ in found] == [0, 0], found
    assert "Results: two" in found[0][1]
    assert found[1][1] == ""
    assert ended(start(place, *words, "--out", "one", processes=1))[0][0] == 0
    assert_close(place / "two", place / "one")


def started(place: pathlib.Path) -> list[Any]:
    """Two processes after their first checkpoint."""
    running: list[Any] = start(place, "run", "tiny.toml", "--out", "two", "--no-report", *LONG)
    until = time.monotonic() + 240
    while not list(place.glob("two/checkpoints/fedavg/rounds/round_*")):
        assert all(each.poll() is None for each in running), ended(running)
        assert time.monotonic() < until
        time.sleep(0.05)
    return running


def killed(place: pathlib.Path, process: int) -> tuple[float, tuple[int, str, str]]:
    """Kills a process after the first checkpoint; the seconds until the other one ends, and how it ends."""
    running = started(place)
    running[process].kill()
    began = time.monotonic()
    other = running[1 - process]
    _, err = other.communicate(timeout=60)
    return time.monotonic() - began, (other.returncode, err, ended([running[process]])[0][2])


@pytest.mark.thorough
def test_a_process_that_is_killed(place: pathlib.Path) -> None:
    """The other ends with one sentence, and the command that it names goes on in one process."""
    seconds, (code, err, _) = killed(place, 1)
    print(f"{seconds:.1f} s", err)
    assert code == 1
    assert "Traceback" not in err
    (sentence,) = [line for line in err.splitlines() if line.startswith("fljax: ")]
    assert sentence.startswith("fljax: another process of this run has ended or cannot be reached, so process 0 ends")
    again = sentence.rpartition("to go on in one process: fljax ")[2].split()
    assert again == ["run", "tiny.toml", "--no-report", *LONG, "--out", "two", "--resume"]
    ((code, _, err),) = ended(start(place, *again, processes=1))
    assert code == 0, err
    # rich breaks lines
    assert "goes on after round" in " ".join(err.split())
    words = ["run", "tiny.toml", "--no-report", *LONG, "--out", "one"]
    assert ended(start(place, *words, processes=1))[0][0] == 0
    assert_close(place / "two", place / "one")


@pytest.mark.thorough
@pytest.mark.parametrize("process", [0, 1])
def test_a_signal_to_one_process_stops_both(place: pathlib.Path, process: int) -> None:
    """After a checkpoint, with the exit code of the signal; both name the command that goes on."""
    running = started(place)
    running[process].send_signal(signal.SIGTERM)
    for code, _, err in ended(running):
        assert code == 143, err
        assert "Traceback" not in err
        assert "another task died" not in err
        (sentence,) = [line for line in err.splitlines() if line.startswith("fljax: ")]
        assert re.match(r"fljax: interrupted; saved after round \d+ of 600; to go on: fljax run tiny.toml", sentence)


@pytest.mark.thorough
def test_process_0_is_killed(place: pathlib.Path) -> None:
    """The other ends as well: by its sentence, or by JAX, which may be faster and has words of its own."""
    seconds, (code, err, _) = killed(place, 0)
    print(f"{seconds:.1f} s", err)
    assert code in (1, -6)
    assert "Traceback" not in err
    assert ("another process of this run has ended" in err) or ("another task died" in err)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(
            ["--num-processes", "2"],
            "expected --distributed beside --coordinator-address",
            marks=pytest.mark.thorough,
        ),
        (["--distributed"], "expected coordinator_address, num_processes and process_id that fit together"),
    ],
)
def test_bad_numbers_are_one_sentence(place: pathlib.Path, words: list[str], expected: str) -> None:
    ((code, _, err),) = ended(start(place, "run", "tiny.toml", "--out", "two", *words, processes=1))
    assert code == 2
    assert err.startswith(f"fljax: {expected}")
    assert len(err.splitlines()) == 1
    assert not (place / "two").exists()


@pytest.mark.thorough
def test_configs_that_differ_are_named(place: pathlib.Path) -> None:
    (place / "other.toml").write_text(CONFIG.replace('"logistic_regression"', '"mlp"') + 'label = "two"\n')
    port, processes = free_port(), []
    for process, config in enumerate(("tiny.toml", "other.toml")):
        together = ["--distributed", "--coordinator-address", f"127.0.0.1:{port}", "--num-processes", "2"]
        processes.append(command(place, "run", config, "--out", "two", *together, "--process-id", str(process)))
    for code, _, err in ended(processes):
        assert code == 2
        words = [line for line in err.splitlines() if line.startswith("fljax: ")][-1]
        assert words.startswith("fljax: expected the same call in all processes, got another one in process 1 than in")
        assert "model.name" in words
        assert "label" in words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("127.0.0.1", 2, 0), "expected coordinator_address as 'host:port' with a port from 1 to 65535, .*'127.0.0.1'"),
        (("127.0.0.1:99999", 2, 0), "expected coordinator_address as 'host:port'"),
        (("http://host:1234", 2, 0), "expected coordinator_address as 'host:port'"),
        ((":1234", 2, 0), "expected coordinator_address as 'host:port'"),
        (("", 2, 0), "expected coordinator_address as 'host:port'"),
        pytest.param((1234, 2, 0), "expected coordinator_address as 'host:port'", marks=pytest.mark.unchecked),
        (("host:1234", 0, 0), "expected num_processes to be a whole number of at least 1, got 0"),
        pytest.param(
            ("host:1234", 2.0, 0),
            "expected num_processes to be a whole number of at least 1, got 2.0",
            marks=pytest.mark.unchecked,
        ),
        (("host:1234", 2, -1), "expected process_id to be a whole number of at least 0, got -1"),
        (("host:1234", 2, 2), "expected process_id below num_processes, 2, got 2"),
    ],
)
def test_addresses_are_checked_first(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hosts.distributed(*given)
    assert not hosts.is_joined()


def test_the_time_to_wait_is_a_number() -> None:
    for wrong in (0, -1, float("inf"), float("nan"), True, "5"):
        with pytest.raises(ValueError, match="expected initialization_timeout of more than 0 seconds, got"):
            hosts.distributed("127.0.0.1:1234", 2, 0, initialization_timeout=wrong)


@pytest.mark.thorough
@pytest.mark.parametrize("process", ["0", "1"])
def test_a_process_that_waits_in_vain_says_so(place: pathlib.Path, process: str) -> None:
    at = f"127.0.0.1:{free_port()}"
    together = ["--coordinator-address", at, "--num-processes", "2", "--process-id", process]
    more = ["--distributed", *together, "--initialization-timeout", "2"]
    ((code, _, err),) = ended(start(place, "run", "tiny.toml", "--out", "two", *more, processes=1))
    assert code == 1
    assert f"fljax: expected all processes at {at} within 2 seconds, got fewer" in err
    assert not (place / "two").exists()


LONELY = """
from fljax import data, models
blobs = data.load("blobs")
federation = data.federate(blobs, "iid", clients=4)
task = models.logistic_regression(blobs.x.shape[1:], blobs.classes)
fljax.standalone(task, federation, fljax.Local(0.1, 8, steps=2))
if rank == "1":
    raise RuntimeError("only here")
fljax.standalone(task, federation, fljax.Local(0.1, 8, steps=2))
"""


@pytest.mark.thorough
def test_a_script_that_fails_in_one_process(tmp_path: pathlib.Path) -> None:
    """It does not wait for the other one, which ends with a sentence."""
    (code, _, err), (other, _, trace) = ended(start_script(LONELY, tmp_path))
    assert (code, other) == (1, 1)
    (sentence,) = [line for line in err.splitlines() if line.startswith("fljax: ")]
    assert sentence.startswith("fljax: another process of this run has ended or cannot be reached, so process 0 ends")
    assert "Traceback" not in err
    assert trace.rstrip().endswith("RuntimeError: only here")


EXITING = """
from fljax import data, models
blobs = data.load("blobs")
federation = data.federate(blobs, "iid", clients=4)
task = models.logistic_regression(blobs.x.shape[1:], blobs.classes)
fljax.standalone(task, federation, fljax.Local(0.1, 8, steps=2))
if rank == "0":
    time.sleep(2)
sys.exit(0)
"""


@pytest.mark.thorough
def test_a_script_that_exits_in_all_processes(tmp_path: pathlib.Path) -> None:
    for code, _, err in ended(start_script("import time" + EXITING, tmp_path)):
        assert code == 0, err
        assert "fljax: " not in err


@pytest.mark.thorough
def test_slurm_is_detected(place: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX reads Slurm's variables; the port of process 0 follows from the number of the job."""
    job = next(number for number in range(100, 4000) if is_free(number % 2**12 + 65536 - 2**12))
    told = {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
    }
    processes = []
    for number in ("0", "1"):
        for name, value in (told | {"SLURM_PROCID": number, "SLURM_LOCALID": number}).items():
            monkeypatch.setenv(name, value)
        processes += start(place, "run", "tiny.toml", "--out", "two", "--no-report", "--distributed", processes=1)
    found = ended(processes)
    assert [code for code, _, _ in found] == [0, 0], found
    assert "on each of 2 devices" in " ".join(found[0][2].split())


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0
