"""The designs of a config: what is searched, saved and resumed; every run is real and small."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import Any

import pytest
import xarray as xr

from fljax import games
from fljax.config import Config, parse
from fljax.data import choose, stack
from fljax.experiments import design
from fljax.experiments.conductor import Saving
from fljax.experiments.design import Question, load_design
from fljax.games import Interval
from fljax.results.folders import CERTIFICATES, DESIGN
from tests.refusals import refuses
from tests.toys.configs import THREE_CLIENTS

SIZES = {"pool": 2, "resample": 1, "validation": 1, "fresh": 5, "population": 4, "budget": 120, "candidates": 0}
SETTINGS: dict[str, Any] = {**SIZES, "tolerance": (0.5,), "worse_off": 1.0, "outside": None, "deviators": (0,)}
RATE = {"server_lr": Interval(0.5, 2.0)}


def config(*algorithms: dict[str, Any], **changes: Any) -> Config:
    given = {"algorithms": list(algorithms)} if algorithms else {}
    return parse(THREE_CLIENTS | {"seeds": 8, "rounds": 2} | given | changes, name="tiny")


def ask(over: Any = None, label: str = "fedavg", deviations: Any = ("update times 4",), **settings: Any) -> Question:
    own = {label: RATE} if over is None else over
    return Question(label, own, deviations, SETTINGS | settings, budget_of_baselines=120)


def test_a_design_is_saved_with_certificates_and_not_searched_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, alone = {"fedavg": RATE}, {"name": "fedavg"}
    found = design.run(config(alone), ask(over), directory=tmp_path)
    assert found["mechanism"].values.tolist() == ["designed", "fedavg"]
    assert 0.5 <= float(found["argument"][0]) <= 2.0
    xr.testing.assert_identical(load_design(tmp_path / DESIGN).design, found)
    saved = games.load_certificates(tmp_path / CERTIFICATES)
    assert list(saved.certificates) == ["designed at 0.5", "fedavg at 0.5"]
    assert not (tmp_path / "design").exists()
    # The algorithm with the numbers of the config is beside it.
    fresh = found["fresh_objective"].sel(epsilon=0.5)
    price = fresh.sel(mechanism="designed") - fresh.sel(mechanism="fedavg")
    assert float(found["price_mean"].sel(mechanism="fedavg").item()) == pytest.approx(float(price.mean()))
    assert float(found["worth_mean"][0]) == pytest.approx(float(price.mean()))  # the rate was 1

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("it searches again")

    monkeypatch.setattr(design, "design", never)
    xr.testing.assert_identical(design.run(config(alone), ask(over), directory=tmp_path, resume=True), found)
    refuses(
        lambda: design.run(config(alone), ask(over, budget=121), directory=tmp_path, resume=True),
        "expected the question of the design in",
    )


@pytest.mark.thorough
def test_arguments_by_seed_arrays_of_the_config_and_baselines() -> None:
    entries = [{"name": "incfl"}, {"name": "learnt", "hidden": 0, "theta": [0.0] * 5 + [1.0, 20.0, 0.0]}]
    over = {"incfl": {"gap_scale": Interval(0.1, 10.0, log=True)}, "learnt": {"theta": 0.5}}
    found = design.run(config(*entries), ask(over, "incfl"))
    assert found["mechanism"].values.tolist() == ["designed", "incfl", "learnt"]
    assert found["of_mechanism"].values.tolist() == ["designed", *["learnt"] * 8]
    assert found["name"].values.tolist() == ["gap_scale", *["theta"] * 8]
    assert found["entry"].values.tolist() == [-1, *range(8)]


@pytest.mark.parametrize(
    ("asked", "changes", "words"),
    [
        (ask({"fedavg": {"server_lr": 1.0}}), {}, "expected numbers of server_lr in the config to search around them"),
        (ask({"fedavg": {"rate": Interval(0, 1)}}), {}, "rate"),
        (ask(deviations=("loss times 10",)), {}, "expected deviations in what the algorithm reads"),
        (ask(budget=20), {}, "expected a budget of at least"),
        (ask(fresh=4), {}, "expected fresh to be a whole number of at least 5"),
        (ask(), {"seeds": 7}, "a stack of 8 federations"),
        (ask(), {"algorithms": [{"name": "fedavg"}, {"name": "fedavg", "label": "designed"}]}, "'designed'"),
    ],
)
def test_refusals(asked: Question, changes: dict[str, Any], words: str) -> None:
    refuses(lambda: design.run(config(**changes), asked), words)


@pytest.mark.parametrize("same", [False, True])
def test_federations_of_other_clients_have_no_roles_and_equal_ones_are_told(
    same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, told = design.resolve_setup, list[str]()

    def changed(*arguments: Any) -> Any:
        setup = resolve(*arguments)
        if same:
            return setup._replace(federation=stack([choose(setup.federation, 0)] * 8))
        first, *rest = setup.world.names  # pyright: ignore[reportOptionalMemberAccess]
        others = dataclasses.replace(first, clients=("a", "b", "c"))
        return setup._replace(world=setup.world._replace(names=(others, *rest)))  # pyright: ignore[reportOptionalMemberAccess]

    monkeypatch.setattr(design, "resolve_setup", changed)
    monkeypatch.setattr(design, "design", lambda *_, **asked: refuse(f"roles: {asked['roles']}"))
    how: Any = {"on_event": lambda event: told.append(event.message)}
    if not same:
        refuses(lambda: design.run(config(), ask(roles=True)), "expected the same clients with all seeds")
    refuses(lambda: design.run(config(), ask(roles=False), **how), "roles: False")
    assert any("the federations of all seeds are the same" in words for words in told) == same


def refuse(words: str) -> Any:
    raise ValueError(words)


def test_what_was_played_for_another_question_is_never_used(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, checkpoint: Any, **__: Any) -> Any:
        (pathlib.Path(checkpoint.folder) / "0").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(design, "design", killed)
    saving = Saving(30.0, 2, None, True)  # forced
    with pytest.raises(KeyboardInterrupt):
        design.run(config(), ask(), directory=tmp_path, saving=saving)
    for other in (ask({"fedavg": {"server_lr": Interval(2.0, 8.0)}}), ask(tolerance=(0.1,))):
        again: Any = {"directory": tmp_path, "resume": True, "saving": saving}
        refuses(functools.partial(design.run, config(), other, **again), "expected the question of the design in")


def test_a_question_is_the_same_text_in_other_processes() -> None:
    asked = ask(objective=objective)
    assert "objective" in design.in_json(asked)
    assert " at 0x" not in design.in_json(asked)


def objective(payoffs: Any) -> Any:
    return payoffs.min()
