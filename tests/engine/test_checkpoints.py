"""``simulate(checkpoint=...)``: a run that was interrupted anywhere ends as one that was not."""

from __future__ import annotations

import contextlib
import pathlib
import re
import shutil
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg, incfl, scaffold
from fljax.engine.checkpoints import Checkpoint, Stopped, StopRequest
from fljax.engine.loop.checkpointing import check_identity, function_name
from fljax.protocol import Federation
from fljax.results.non_finite import NotFinite
from fljax.training import Local, RateSchedule
from tests.toys.not_finite import breaks, sends_nan
from tests.toys.runs import Killed, assert_same_results, kill_at
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.in_turn

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)
ROUNDS = 7


def _plan(build: Any = incfl, **options: Any) -> engine.Plan:
    own = {"threshold": 0.5} if build is incfl else {}
    return engine.Plan(build, {"task": TASK, "local": LOCAL, "clients_per_round": 3, **own, **options})


def _simulate(federation: Federation, plan: Any = None, **arguments: Any) -> Any:
    arguments = {"rounds": ROUNDS, "seeds": (5, 9), "evaluate_every": 3} | arguments
    return engine.simulate(plan or _plan(), federation, **arguments)


def _killed(federation: Federation, settings: Any, round: int, plan: Any = None, **arguments: Any) -> None:
    """A run that dies at an evaluation; given a folder, it has checkpoints after every round there."""
    if isinstance(settings, pathlib.Path):
        settings = Checkpoint(settings, every=0)
    with pytest.raises(Killed):
        _simulate(federation, plan, checkpoint=settings, callbacks=[kill_at(round)], **arguments)


def _stops_itself(task: Any, local: Any, round: int) -> Any:
    """FedAvg in which no message of this round is finite."""
    return sends_nan(fedavg(task, local, clients_per_round=3), np.ones(5, bool), np.arange(9) == round)


def test_a_run_goes_on_after_its_checkpoint(federation: Federation, tmp_path: pathlib.Path) -> None:
    """Killed after every evaluation; the checkpoints in between are after every round. Law 24 has other algorithms."""
    plan, notes = _plan(scaffold), list[str]()
    expected = _simulate(federation, plan)
    settings = Checkpoint(tmp_path / "at", every=0, note=notes.append)
    for round in (3, 6):
        _killed(federation, settings, round, plan)
    found = _simulate(federation, plan, checkpoint=settings)
    assert_same_results(found, expected)
    # The evaluation of the block in which it was killed had not been saved, its rounds but the last had.
    assert notes == [f"goes on after round {round} of 7, from a checkpoint" for round in (2, 5)]
    np.testing.assert_array_equal(found.predict(1, jnp.ones((2, 4))), expected.predict(1, jnp.ones((2, 4))))
    # Once more: nothing is computed.
    blocks: list[engine.Block] = []
    assert_same_results(_simulate(federation, plan, checkpoint=settings, callbacks=[blocks.append]), expected)
    assert blocks == []


def test_checkpoints_change_nothing(federation: Federation, tmp_path: pathlib.Path) -> None:
    expected = _simulate(federation)
    for every in (0, 30.0):
        folder = tmp_path / str(every)
        assert_same_results(_simulate(federation, checkpoint=Checkpoint(folder, every)), expected)
        assert sorted(each.name for each in (folder / "rounds").glob("round_*"))[-1] == "round_7"
    assert_same_results(_simulate(federation, checkpoint=str(tmp_path / "plain")), expected)
    assert [each.name for each in (tmp_path / "plain/rounds").glob("round_*")] == ["round_7"]


def test_a_request_stops_after_the_rounds_that_are_computed(federation: Federation, tmp_path: pathlib.Path) -> None:
    stop = StopRequest()

    def ask(block: engine.Block) -> None:
        assert stop.heard
        if block.round == 3:
            stop.make()

    settings = Checkpoint(tmp_path / "at", stop=stop)
    with pytest.raises(Stopped) as stopped:
        _simulate(federation, checkpoint=settings, callbacks=[ask])
    assert (stopped.value.round, stopped.value.rounds, stopped.value.saved) == (3, ROUNDS, 3)
    assert not stop.heard
    assert_same_results(_simulate(federation, checkpoint=tmp_path / "at"), _simulate(federation))


@pytest.mark.quick
def test_a_run_that_a_callback_has_stopped_stays_stopped(federation: Federation, tmp_path: pathlib.Path) -> None:
    stop = lambda block: block.round >= 3  # noqa: E731
    expected = _simulate(federation, callbacks=[stop])
    assert expected.metrics.evaluated_round.values.tolist() == [0, 3]
    for _ in range(2):
        assert_same_results(_simulate(federation, callbacks=[stop], checkpoint=tmp_path / "at"), expected)


def test_a_diverged_seed_stays_frozen(federation: Federation, tmp_path: pathlib.Path) -> None:
    def build(task: Any, local: Any, broken: Any) -> Any:
        return breaks(fedavg(task, local, clients_per_round=3), broken)

    plan = engine.Plan(build, {"task": TASK, "local": LOCAL}, {"broken": jnp.asarray([1, -1])})
    expected = _simulate(federation, plan)
    assert expected.diverged == ((5, 1),)
    _killed(federation, tmp_path, 3, plan)
    assert_same_results(_simulate(federation, plan, checkpoint=tmp_path), expected)


def test_continued_runs_have_checkpoints_too(federation: Federation, tmp_path: pathlib.Path) -> None:
    before = _simulate(federation, rounds=2, evaluate_every=2)
    expected = _simulate(federation, initial=before.state)
    _killed(federation, tmp_path, 8, initial=before.state)
    found = _simulate(federation, initial=before.state, checkpoint=tmp_path)
    assert_same_results(found, expected)
    assert found.metrics.evaluated_round.values.tolist() == [2, 5, 8, 9]


@pytest.mark.parametrize("later", [None, RateSchedule("exponential_decay", (("decay_rate", 0.5),))])
def test_another_schedule_is_another_run(later: RateSchedule | None, federation: Federation, tmp_path: Any) -> None:
    how = {"transition_steps": 2, "decay_rate": 0.9}
    scheduled = LOCAL._replace(schedule=RateSchedule("exponential_decay", tuple(how.items())))
    arguments: dict[str, Any] = {"rounds": 2, "seeds": (5,), "checkpoint": tmp_path}
    plan = lambda local: engine.Plan(fedavg, {"task": TASK, "local": local})  # noqa: E731
    engine.simulate(plan(scheduled), federation, **arguments)
    with pytest.raises(ValueError, match="schedule"):
        engine.simulate(plan(scheduled._replace(schedule=later)), federation, **arguments)


def test_sweeps_have_checkpoints(federation: Federation, tmp_path: pathlib.Path) -> None:
    plans = [_plan(eps=eps) for eps in (0.1, 1.0)]
    arguments: dict[str, Any] = {"rounds": 4, "seeds": (5, 9), "evaluate_every": 2}
    expected = engine.sweep(plans, federation, **arguments)
    settings = Checkpoint(tmp_path, every=0)
    with pytest.raises(Killed):
        engine.sweep(plans, federation, checkpoint=settings, callbacks=[kill_at(4)], **arguments)
    for one, other in zip(engine.sweep(plans, federation, checkpoint=settings, **arguments), expected, strict=True):
        assert_same_results(one, other)
    with pytest.raises(ValueError, match="numbers of the algorithm differ"):
        engine.sweep([_plan(eps=eps) for eps in (0.1, 2.0)], federation, checkpoint=settings, **arguments)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("there", "here", "same"),
    [
        (
            "fljax.scenarios.older.with_behaviour.<locals>.send",
            "fljax.scenarios.common.with_behaviour.<locals>.send",
            True,
        ),
        ("fljax.a.b.build, fljax.a.d.Kind.call.<locals>.f", "fljax.a.c.build, fljax.a.d.e.Kind.call.<locals>.f", True),
        ("fljax.a.b.build", "fljax.a.b.built", False),
        ("fljax.a.b.build", "fljax.c.b.build", False),
        ("fljax.a.b.Kind.call", "fljax.a.b.Other.call", False),
        ("mine.a.build", "mine.b.build", False),
    ],
)
def test_functions_of_fljax_may_move_between_versions(
    there: str, here: str, same: bool, tmp_path: pathlib.Path
) -> None:
    with contextlib.nullcontext() if same else pytest.raises(ValueError, match="algorithm is"):
        before, now = ({"fljax": "0.2.0", "algorithm": text} for text in (there, here))
        check_identity(before, now, tmp_path, print, False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 9}, "rounds is 7 there and 9 here"),
        ({"seeds": (5, 8)}, r"seeds is \[5, 9\] there and \[5, 8\] here"),
        ({"evaluate_every": 2}, "evaluate_every is 3 there and 2 here"),
        ({"plan": _plan(eps=0.5)}, "numbers of the algorithm differ"),
        ({"plan": _plan(surrogate="relu")}, "surrogate.* is not set there and relu here"),
        ({"plan": _plan(fedavg)}, "threshold.*|algorithm is .*incfl there and .*fedavg here"),
        ({"federation": None}, "the data differ"),
    ],
)
def test_another_run_is_refused_with_what_differs(federation, tmp_path, changes, words):
    _simulate(federation, checkpoint=tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    if "federation" in changes:
        x = jnp.asarray(federation.examples.x)
        other = federation._replace(examples=federation.examples._replace(x=x.at[0, 0].add(1)))
        changes = {"federation": other}
    with pytest.raises(ValueError, match=f"expected the run of the checkpoints in .*, got another one: .*({words})"):
        _simulate(**({"federation": federation} | changes), checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.quick
def test_an_earlier_version_is_said_and_a_later_one_refused(
    federation: Federation, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    _simulate(federation, checkpoint=tmp_path)
    with monkeypatch.context() as changed:
        changed.setattr("fljax.core.version.__version__", "99.0")
        _simulate(federation, checkpoint=Checkpoint(tmp_path, every=0, note=notes.append))
        assert re.match(r"fljax 0\..* wrote the checkpoints", notes[0])
        changed.setattr("fljax.core.version.__version__", "0.1.0")
        with pytest.raises(ValueError, match=r"got another one: fljax is 0\..* there and 0\.1\.0 here"):
            _simulate(federation, checkpoint=tmp_path)


def test_another_execution_is_allowed_and_said(federation: Federation, tmp_path: pathlib.Path) -> None:
    settings = Checkpoint(tmp_path, every=0)
    _killed(federation, settings, 6)
    notes: list[str] = []
    found = _simulate(
        federation,
        checkpoint=settings._replace(note=notes.append),
        execution=engine.Execution(clients="scan"),
    )
    assert "another execution is asked for than in the checkpoint: results are equal up to rounding" in notes
    assert int(found.metrics.execution_clients) == 1
    expected = _simulate(federation)
    np.testing.assert_allclose(found.metrics.test_loss, expected.metrics.test_loss, rtol=1e-5)


def test_the_execution_of_a_trial_is_kept(federation, tmp_path, monkeypatch):
    """The same question gets the stored answer, so that results stay the same bits."""
    trial = engine.Execution(clients="trial")
    settings = Checkpoint(tmp_path, every=0)
    _killed(federation, settings, 6, execution=trial)
    monkeypatch.setattr("fljax.engine.loop.simulation.fastest", None)  # not asked again
    found = _simulate(federation, checkpoint=settings, execution=trial)
    assert found.metrics.evaluated_round.values.tolist() == [0, 3, 6, 7]


def test_a_damaged_checkpoint_gives_way_to_the_one_before(federation: Federation, tmp_path: pathlib.Path) -> None:
    notes: list[str] = []
    settings = Checkpoint(tmp_path, every=0, keep=3, note=notes.append)
    _killed(federation, settings, 7)
    newest = max((tmp_path / "rounds").glob("round_*"), key=lambda path: int(path.name.removeprefix("round_")))
    assert newest.name == "round_6"
    for path in newest.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    assert_same_results(_simulate(federation, checkpoint=settings), _simulate(federation))
    assert notes == [
        "the checkpoint of round 6 is damaged; the one of round 5 is taken",
        "goes on after round 5 of 7, from a checkpoint",
    ]


@pytest.mark.parametrize("name", ["records", "evaluations", "rounds"])
@pytest.mark.parametrize("how", ["file", "missing"])
def test_files_in_place_of_folders_are_damage(federation, tmp_path, monkeypatch, name, how):
    monkeypatch.setattr("fljax.engine.checkpoints.CHUNK", 1)
    _killed(federation, tmp_path, 7)
    if (tmp_path / name).exists():
        shutil.rmtree(tmp_path / name)
    if how == "file":
        (tmp_path / name).write_bytes(b"no folder")
    notes: list[str] = []
    found = _simulate(federation, checkpoint=Checkpoint(tmp_path, every=0, note=notes.append))
    assert_same_results(found, _simulate(federation))


@pytest.mark.thorough
def test_debug_mode_has_checkpoints_too(federation: Federation, tmp_path: pathlib.Path) -> None:
    debug = {"execution": engine.Execution(clients="debug"), "rounds": 2, "evaluate_every": 1, "seeds": (5,)}
    expected = _simulate(federation, **debug)
    _killed(federation, tmp_path, 2, **debug)
    assert_same_results(_simulate(federation, checkpoint=tmp_path, **debug), expected)


def test_a_run_that_stopped_itself_stays_stopped(federation: Federation, tmp_path: pathlib.Path) -> None:
    """The same sentence again, without computing anything again."""
    plan = engine.Plan(_stops_itself, {"task": TASK, "local": LOCAL, "round": 3})
    said = set()
    for _ in range(2):
        with pytest.raises(NotFinite) as stopped:
            _simulate(federation, plan, checkpoint=Checkpoint(tmp_path, every=0), non_finite="stop")
        said.add(str(stopped.value))
    assert len(said) == 1
    with pytest.raises(ValueError, match="non_finite is stop there and drop here"):
        _simulate(federation, plan, checkpoint=tmp_path, non_finite="drop")


def test_random_keys_in_a_state_are_saved(federation: Federation, tmp_path: pathlib.Path) -> None:
    def build(task: Any, local: Any) -> Any:
        inner = fedavg(task, local, clients_per_round=3)

        def init_client(key: Any, seat: Any, down: Any, data: Any) -> Any:
            return jax.random.fold_in(key, 7)

        def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
            up, _ = inner.train(client, seat, down, (), data)
            return up, jax.random.fold_in(client, 1)

        return inner._replace(init_client=init_client, train=train)

    plan = engine.Plan(build, {"task": TASK, "local": LOCAL})
    expected = _simulate(federation, plan)
    _killed(federation, tmp_path, 6, plan)
    found = _simulate(federation, plan, checkpoint=tmp_path)
    np.testing.assert_array_equal(found.metrics.test_loss, expected.metrics.test_loss)
    data = jax.random.key_data
    np.testing.assert_array_equal(data(found.state.clients), data(expected.state.clients))


def test_a_foreign_run_is_refused_and_kept_where_rows_are_on_the_disk(federation, tmp_path, monkeypatch):
    """Other numbers of rounds make arrays of other lengths, which are no damage."""
    monkeypatch.setattr("fljax.engine.checkpoints.CHUNK", 16)
    _killed(federation, tmp_path, 6)
    for changes, words in (({"rounds": 9}, "rounds is 7 there and 9 here"), ({"evaluate_every": 1}, "evaluate_every")):
        with pytest.raises(ValueError, match=words):
            _simulate(federation, checkpoint=tmp_path, **changes)
    assert_same_results(_simulate(federation, checkpoint=tmp_path), _simulate(federation))


def test_numbers_that_functions_hold_tell_runs_apart(federation: Federation, tmp_path: pathlib.Path) -> None:
    """An Algorithm has its hyper-parameters in closures."""
    own = lambda rate: fedavg(TASK, LOCAL._replace(learning_rate=rate), clients_per_round=3)  # noqa: E731
    expected = _simulate(federation, own(0.1))
    _killed(federation, tmp_path, 6, own(0.1))
    with pytest.raises(ValueError, match="numbers in the algorithm's functions differ"):
        _simulate(federation, own(0.01), checkpoint=tmp_path)
    assert_same_results(_simulate(federation, own(0.1), checkpoint=tmp_path), expected)


def _own(shift: float) -> Any:
    def aggregate(*given: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + 0.0, inner.aggregate(*given))

    def kept(*given: Any) -> Any:
        return inner.aggregate(*given)

    inner = fedavg(TASK, LOCAL, clients_per_round=3)
    return inner._replace(aggregate=aggregate if shift else kept)


@pytest.mark.parametrize("what", ["jax_random_seed_offset", "jax_threefry_partitionable", "code", "data"])
def test_a_run_goes_on_by_force_and_says_so(federation: Federation, tmp_path: pathlib.Path, what: str) -> None:
    """Also after another interruption; without force it is refused."""
    settings, notes = Checkpoint(tmp_path, every=0, force=True), list[str]()
    _killed(federation, settings, 3, _own(0))
    before, plan, words = getattr(jax.config, what, None), _own(what == "code"), f"{what} is {{}} there and"
    words = {"code": "the code of .*_own.*aggregate", "data": "the data differ"}.get(what, words.format(before))
    if what == "data":
        sizes = federation.clients.train.size
        train = federation.clients.train._replace(size=sizes.at[0].add(-1))
        federation = federation._replace(clients=federation.clients._replace(train=train))
    try:
        if isinstance(before, int):
            jax.config.update(what, not before if isinstance(before, bool) else 7)
        with pytest.raises(ValueError, match=f"got another one: .*{words}.*force=True"):
            _simulate(federation, plan, checkpoint=tmp_path)
        _killed(federation, settings._replace(note=notes.append), 6, plan)
        found = _simulate(federation, plan, checkpoint=tmp_path)
    finally:
        if isinstance(before, int):
            jax.config.update(what, before)
    assert re.match(f"went on by force, although .*{words}", found.metrics.attrs["forced"])
    assert found.metrics.attrs["forced"] in notes


def test_a_run_that_stops_itself_ends_its_block_also_when_it_goes_on(federation, tmp_path):
    plan = engine.Plan(_stops_itself, {"task": TASK, "local": LOCAL, "round": 1})
    with pytest.raises(NotFinite) as whole:
        _simulate(federation, plan, non_finite="stop", evaluate_every=6)

    def kill(block: engine.Block) -> None:  # the checkpoints before are inside the block
        raise Killed

    settings = Checkpoint(tmp_path, every=0)
    with pytest.raises(Killed):
        _simulate(federation, plan, non_finite="stop", evaluate_every=6, checkpoint=settings, callbacks=[kill])
    with pytest.raises(NotFinite) as again:
        _simulate(federation, plan, non_finite="stop", evaluate_every=6, checkpoint=tmp_path)
    assert_same_results(again.value.results[0], whole.value.results[0])


@pytest.mark.quick
def test_a_function_may_hold_a_class() -> None:
    """That of functions describes defaults and closures; it has none."""

    def compute(kind: type, rate: float) -> Any:
        return lambda x: isinstance(x, kind) * rate

    names = [function_name(compute(kind, rate)) for kind in (FunctionType, int) for rate in (0.5, 0.25)]
    assert names[:2] == names[2:]
    assert names[0] != names[1]
