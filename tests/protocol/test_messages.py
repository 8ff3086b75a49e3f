"""Reports and updates are found in messages, wherever an algorithm puts them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from fljax.protocol import messages
from fljax.protocol.messages import changed_report, changed_update

# Numbers stand for arrays here.
Report: Any = messages.Report
Sent: Any = messages.Sent


class _Outer(NamedTuple):
    """A ballot of a scenario, with that of the wrapped algorithm inside."""

    report: Any
    inner: Any
    update: Any


def test_a_report_is_found_in_messages_inside_messages():
    message = _Outer(Report(loss=1.0), {"own": Sent((), Report(loss=2.0, size=3)), "rest": 4.0}, {"loss": 5.0})
    found = changed_report(message, "loss", lambda loss: -loss)
    assert found == _Outer(Report(loss=-1.0), {"own": Sent((), Report(loss=-2.0, size=3)), "rest": 4.0}, {"loss": 5.0})


def test_what_is_not_asked_for_is_not_changed():
    def change(value: Any) -> Any:
        raise AssertionError(value)

    for message in ((), Report(), Sent({"w": 1.0}), {"loss": 1.0}):
        assert changed_report(message, "loss", change) == message


def test_a_ballot_may_be_a_report():
    assert changed_report(Report(bid=1.0, accuracy=2.0), "bid", lambda bid: 0 * bid) == Report(bid=0.0, accuracy=2.0)


def test_what_is_not_asked_for_is_not_sent():
    assert jax.tree.leaves(Sent((), Report())) == []
    with pytest.raises(TypeError):
        Report(losses=1.0)


def test_an_update_is_found_in_messages_inside_messages():
    message = _Outer(Report(loss=1.0), {"own": Sent(2.0), "rest": 3.0}, {"update": 4.0})
    found = changed_update(message, lambda update: "changed")
    assert found == _Outer(Report(loss=1.0), {"own": Sent("changed"), "rest": 3.0}, "changed")
    assert changed_update((), lambda update: "changed") == ()


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ((), False),
        (Sent({"w": jnp.ones(2)}, Report(loss=jnp.inf, size=jnp.int32(3))), False),
        (Sent({"w": jnp.ones(2)}, Report(loss=jnp.nan)), True),
        (Sent({"w": jnp.asarray([1.0, jnp.inf])}), True),
        (Sent({"w": jnp.asarray([1, 2])}), False),
        (Sent({"w": jnp.asarray([1.0, jnp.nan], jnp.bfloat16)}), True),
        ({"own": Sent((), Report(threshold=-jnp.inf)), "rest": jnp.float32(-jnp.inf)}, True),
        ({"own": Sent((), Report(threshold=-jnp.inf)), "key": jax.random.key(0), "on": jnp.asarray(True)}, False),
        (Report(bid=jnp.asarray([0.0, jnp.nan])), True),
    ],
)
def test_a_message_is_not_finite(message: Any, found: bool):
    """A Report may tell of an infinite loss; nothing tells of NaN on purpose."""
    assert bool(messages.is_not_finite(message)) is found
