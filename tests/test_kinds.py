"""The kinds of tests, and where their programs are kept."""

from __future__ import annotations

import os
import pathlib
import types
from typing import Any

import jax
import pytest

from tests import compiled, drawn, kinds


class Item:
    """What ``kinds`` asks of a test."""

    def __init__(self, nodeid: str, *marks: Any, fixtures: tuple[str, ...] = ()) -> None:
        self.nodeid = nodeid
        self.fixturenames = fixtures
        self.callspec = types.SimpleNamespace(params={"case": nodeid.partition("[")[2].rstrip("]").partition("-")[0]})
        self.marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)

    def add_marker(self, mark: Any) -> None:
        self.marks[mark.name] = mark


def split(part: kinds.Part, *names: str, marks: tuple[Any, ...]) -> set[str]:
    """The tests that are thorough and not slow."""
    items: list[Any] = [Item(name, *(mark.mark for mark in marks)) for name in names]
    kinds.split(items, part)
    return {item.nodeid for item in items if "thorough" in item.marks and "slow" not in item.marks}


NAMES = tuple(f"a.py::test_{law}[{case}]" for law in range(9) for case in range(20))


@pytest.mark.parametrize("marks", [(pytest.mark.thorough,), (pytest.mark.sampled(5),)])
def test_every_thorough_test_is_in_one_part(marks: tuple[Any, ...]) -> None:
    whole = split(kinds.parse("0/1"), *NAMES, marks=marks)
    parts = [split(kinds.Part(place, 5), *NAMES, marks=marks) for place in range(5)]
    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert all(len(part) > len(whole) / 10 for part in parts)
    assert len(whole) == len(NAMES) or len(NAMES) / 2 < len(whole) < len(NAMES)


def test_tests_of_one_case_are_in_the_same_part() -> None:
    for place in range(5):
        found = split(kinds.Part(place, 5), *NAMES, marks=(pytest.mark.thorough, pytest.mark.by_case))
        cases = {name.partition("[")[2] for name in found}
        assert len(found) == 9 * len(cases)


def test_they_are_where_a_test_has_other_parameters_or_is_in_turn() -> None:
    thorough, by_case, turn = pytest.mark.thorough.mark, pytest.mark.by_case.mark, pytest.mark.in_turn.mark
    for place in range(5):
        items: list[Any] = [
            Item("a.py::test_1[ditto]", thorough, by_case),
            Item("b.py::test_2[ditto-x64]", thorough, by_case),
            Item("c.py::test_3[ditto]", turn, by_case),
        ]
        kinds.split(items, kinds.Part(place, 5))
        assert len({"slow" in item.marks for item in items}) == 1


def test_of_each_sampled_function_a_case_is_quick() -> None:
    names = [f"a.py::test_{law}[{case}]" for law in range(20) for case in range(3)]
    left_out = split(kinds.Part(0, 1), *names, marks=(pytest.mark.sampled(50),))
    assert len({name.split("[")[0] for name in set(names) - left_out}) == 20


def test_what_is_in_turn_is_thorough_and_compiled_as_quick_tests_are() -> None:
    """Its file has one turn. Cases that are thorough by themselves stay as they were."""
    turn, thorough = pytest.mark.in_turn.mark, pytest.mark.thorough.mark
    items: list[Any] = [
        Item("a.py::test_a", turn),
        Item("a.py::test_b[0]", turn),
        Item("a.py::test_b[1]", turn, thorough),
        Item("a.py::test_c", turn, pytest.mark.quick.mark),
    ]
    kinds.split(items, kinds.Part(0, 1))
    assert ["thorough" in item.marks for item in items] == [True, True, True, False]
    assert [kinds.compiles_as_users_do(item) for item in items] == [False, False, True, False]
    for place in range(5):
        two: list[Any] = [Item(f"a.py::test_{name}", turn) for name in "abcdef"]
        kinds.split(two, kinds.Part(place, 5))
        assert len({"slow" in item.marks for item in two}) == 1


def test_every_test_of_a_file_that_asks_for_it_is_compiled_quickly() -> None:
    """Not the first one alone, in whose setup the fixture of the module is made."""
    thorough, optimised = pytest.mark.thorough.mark, pytest.mark.optimised.mark
    asked = (kinds.QUICK_FILE,)
    items: list[Any] = [
        Item("a.py::test_a"),
        Item("a.py::test_b", thorough),
        Item("a.py::test_c", optimised),
        Item("a.py::test_d", thorough, fixtures=asked),
    ]
    assert [kinds.compiles_quickly(item) for item in items] == [True, False, False, True]


@pytest.mark.thorough
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("turn", [0, 1])
def test_the_compiler_is_told_so(turn: int) -> None:
    assert jax.config.read("jax_disable_most_optimizations")


def test_of_a_sampled_function_in_turn_a_case_is_quick() -> None:
    marks = (pytest.mark.in_turn.mark, pytest.mark.sampled(50).mark)
    items: list[Any] = [Item(f"a.py::test_a[{case}]", *marks) for case in range(8)]
    kinds.split(items, kinds.Part(0, 1))
    quick = [item for item in items if "thorough" not in item.marks]
    assert 0 < len(quick) < 8
    assert not any(kinds.compiles_as_users_do(item) for item in items)


def test_drawn_examples_take_turns() -> None:
    left = [split_of_drawn(place) for place in range(5)]
    assert sorted(name for part in left for name in part) == sorted(NAMES)


def split_of_drawn(place: int) -> set[str]:
    """The tests of hypothesis that a part keeps."""
    items: list[Any] = [Item(name, pytest.mark.hypothesis.mark) for name in NAMES]
    kinds.split(items, kinds.Part(place, 5))
    return {item.nodeid for item in items if "slow" not in item.marks}


@pytest.mark.parametrize("text", ["", "5", "5/5", "-1/5", "1/x"])
def test_a_part_that_is_none(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="expected --part K/N"):
        kinds.parse(text)


def test_the_oldest_programs_are_removed(tmp_path: pathlib.Path) -> None:
    for age in range(4):
        program = tmp_path / f"{age}-cache"
        program.write_bytes(b"x" * 10)
        os.utime(program, (1000 - age, 1000 - age))
    compiled.remove_oldest(tmp_path, kept=25)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0-cache", "1-cache"]
    (tmp_path / "2-cache").symlink_to(tmp_path / "removed")  # as if other tests had removed it meanwhile
    compiled.remove_oldest(tmp_path, kept=25)


@pytest.mark.in_turn
def test_programs_are_forgotten_where_memory_maps_run_short(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr("jax.clear_caches", lambda: calls.append(True))
    monkeypatch.setattr(compiled, "limit_of_memory_maps", lambda: 1000)
    monkeypatch.setattr(compiled, "resident", lambda: 0)
    for maps in (599, 601):
        monkeypatch.setattr(compiled, "memory_maps", lambda maps=maps: maps)
        assert compiled.forget_if_many(1) == (1 if maps < 600 else compiled.RESIDENT)
        assert len(calls) == (maps > 600)


@pytest.mark.in_turn
def test_programs_are_forgotten_again_only_when_memory_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr("jax.clear_caches", lambda: calls.append(True))
    monkeypatch.setattr(compiled, "memory_maps", lambda: 0)
    limit, counted = compiled.RESIDENT, []
    for gibibytes in (2, 4, 4.5, 5.5):  # nothing is given back
        monkeypatch.setattr(compiled, "resident", lambda bytes=int(gibibytes * 2**30): bytes)
        limit = compiled.forget_if_many(limit)
        counted.append(len(calls))
    assert counted == [0, 1, 1, 2]


def test_a_profile_bounds_examples() -> None:
    quick = drawn.settings().max_examples < drawn.CI
    assert drawn.settings(drawn.at_most(7)).max_examples == 7
    assert drawn.settings(drawn.at_most(150)).max_examples == (drawn.QUICK if quick else 150)


@pytest.mark.parametrize("turn", [0, 1])
def test_flags_of_a_command_end_with_its_test(turn: int) -> None:
    assert "--twice" not in os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = "--twice"


@pytest.mark.parametrize("before", [None, "--earlier"])
def test_flags_are_restored(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if before is not None:
        monkeypatch.setenv("XLA_FLAGS", before)
    with compiled.flags_restored():
        os.environ["XLA_FLAGS"] = "--later"
    assert os.environ.get("XLA_FLAGS") == before
