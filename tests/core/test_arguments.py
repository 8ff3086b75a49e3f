"""Old names of builders' arguments, which work for one version."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import Any, NamedTuple

import jaxtyping
import numpy as np
import pytest

from fljax.core.arguments import is_whole, with_current_names, with_old_names


def test_whole_numbers_of_python_and_numpy() -> None:
    for value in (3, -1, np.int64(2), np.uint8(0)):
        assert is_whole(value)
    for value in (True, np.True_, 1.0, np.float32(1), "1", None, [1], np.array([1])):
        assert not is_whole(value)


class Pay(NamedTuple):
    price: float = 1.0
    whole: bool = True


PAY = Pay()


@with_old_names(
    {
        "cost": "pay.price",
        "integer": "pay.whole",
        "rate": "speed",
        "pay": "pay.price",
        "code": lambda on: {"pay.whole": False, "speed": 3.0} if on else {},
    }
)
def build(first: int, *, pay: Pay = PAY, speed: float = 2.0) -> Any:
    """A builder."""
    return first, pay, speed


def call(*given: Any, **named: Any) -> Any:
    """``build``, whose signature does not have the old names."""
    return build(*given, **named)


def test_current_names_are_passed_on() -> None:
    assert build(1) == (1, Pay(), 2.0)
    assert build(1, pay=Pay(3.0), speed=1.0) == (1, Pay(3.0), 1.0)
    assert list(inspect.signature(build).parameters) == ["first", "pay", "speed"]
    assert (build.__name__, build.__doc__) == ("build", "A builder.")


@pytest.mark.parametrize(
    ("old", "found", "words"),
    [
        ({"cost": 5.0}, (1, Pay(5.0), 2.0), r"build\.cost is build\.pay\.price now; the old name goes with the next"),
        ({"cost": 5.0, "integer": False}, (1, Pay(5.0, False), 2.0), r"build\.integer is build\.pay\.whole now"),
        ({"rate": 7.0}, (1, Pay(), 7.0), r"build\.rate is build\.speed now"),
        ({"pay": 6.0}, (1, Pay(6.0), 2.0), r"build\.pay is build\.pay\.price now"),
        ({"code": True}, (1, Pay(1.0, False), 3.0), r"build\.code is build\.pay\.whole and build\.speed now"),
        ({"integer": True, "code": True}, (1, Pay(1.0, False), 3.0), r"build\.code is"),
        ({"code": False}, (1, Pay(), 2.0), r"build\.code has no effect; the old name goes with the next version"),
    ],
    ids=str,
)
def test_old_names_are_told(old: dict[str, Any], found: Any, words: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert call(1, **old) == found
    # The caller is named; under the checks of annotations there is one frame more.
    assert {each.category for each in told} == {DeprecationWarning}
    assert {each.filename for each in told} <= {__file__, jaxtyping.jaxtyped.__code__.co_filename}
    assert len(told) == len(old)
    assert re.match(words, str(told[-1].message))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_and_new_together_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of cost and pay, got both"):
        call(1, cost=5.0, pay=Pay())
    with pytest.raises(ValueError, match="expected one of rate and speed, got both"):
        call(1, rate=5.0, speed=2.0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_in_a_config_records_are_tables() -> None:
    def moved(**given: Any) -> Any:
        return with_current_names(build, given, table="algorithms.mine")

    assert moved(pay={"whole": False}, speed=1.0) == {"pay": {"whole": False}, "speed": 1.0}
    assert moved(cost=5.0, pay={"whole": False}) == {"pay": {"price": 5.0, "whole": False}}
    assert moved(code=True) == {"pay": {"whole": False}, "speed": 3.0}
    with pytest.raises(ValueError, match=r"expected one of cost and pay\.price, got both"):
        moved(cost=5.0, pay={"price": 5.0})
    with pytest.warns(DeprecationWarning, match=r"algorithms\.mine\.cost is algorithms\.mine\.pay\.price now"):
        moved(cost=1)


def test_builders_without_old_names() -> None:
    given = {"cost": 1}
    found = with_current_names(lambda cost: cost, given)
    assert found == given
    assert found is not given
