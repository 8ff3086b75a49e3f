"""Backdoor: attackers teach models to answer a trigger in the features with a class of the attackers' choice.

Source: Bagdasaryan et al., "How to backdoor federated learning" (AISTATS 2020). Deviations: the trigger is a patch, not
a property of some rows. Rows with it are drawn once. Attackers do not evade detectors ("constrain-and-scale").
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, Key, PyTree, Shaped

from fljax import training
from fljax.core import trees
from fljax.core.values import Count, CountOrZero, Number, Share, checked
from fljax.protocol import Algorithm, AnyArray, LocalData, Probe, Seat, Subset, roles
from fljax.protocol.messages import changed_update
from fljax.scenarios import common
from fljax.scenarios.changed_rows import ChangedRows, with_changed_rows


class BackdoorClient(NamedTuple):
    """The wrapped algorithm's Client, and the key by which an attacker's rows get the trigger."""

    inner: PyTree
    rows: Key[Array, ""]


@checked
def backdoor(
    inner: Algorithm,
    *,
    target: CountOrZero,
    share: Share = 0.5,
    scale: Number = 1.0,
    size: Count = 3,
    value: Number = 1.0,
    fraction: Share = 0.1,
    who: Shaped[AnyArray, "*rounds N"] | None = None,
) -> Algorithm:
    """``round(fraction N)`` attackers train on rows with a trigger and the label ``target`` and send ``scale Delta_k``.

    The trigger covers the last ``size x size`` pixels of an image ``[H, W]`` or ``[H, W, C]``, else the last ``size``
    features. Attackers and their rows with it are drawn from the seed once. They answer polls by these rows, too.

    Args:
      inner: any algorithm whose task has classes.
      target: the class that attackers want.
      share: of an attacker's training rows that have the trigger: the probability of each row.
      scale: multiplies an attacker's ``update`` without statistics (BatchNorm). The paper's "model replacement" is the
        number of clients in a cohort by that of attackers in it.
      size: of the trigger; one that is too large covers all.
      value: of its pixels or features, before they are standardised; uint8 has 255 in place of it.
      fraction: share of attackers; their number is rounded.
      who: in place of ``fraction``, the attackers ``[N]`` or ``[rounds, N]``, where round t uses row ``t % rounds``.

    Returns:
      The algorithm. Metrics leave out clients that attack in any round. ``backdoor_success`` [client] is the share of
      test rows of other classes that the client's model assigns to ``target`` once they have the trigger; NaN without
      such rows. Of nested backdoors, the outermost gives it.

    Raises:
      ValueError: if the task has no classes, ``target`` is none of them, or an option is not valid.
    """
    training.check_classes(inner.task, "backdoor")
    if target >= (inner.task.classes or 0):
        raise ValueError(f"expected target to be one of {inner.task.classes} classes from 0, got {target}")
    number = common.key_number(inner, "backdoor")
    known = common.with_known(inner, common.Drawn(fraction, number) if who is None else common.given(who))
    last = slice(-size, None)

    def triggered(value: Array, x: Array) -> Array:
        places = (slice(None), last, last) if x.ndim in (3, 4) else (..., last)
        return x.at[places].set(255 if x.dtype == jnp.uint8 else value.astype(x.dtype))

    trigger, label = Partial(triggered, jnp.asarray(value)), Partial(lambda y: jnp.full_like(y, target))

    def own(seat: Seat, client: BackdoorClient, data: LocalData) -> tuple[Algorithm, PyTree, LocalData]:
        portion = jnp.where(known.behaves(client.inner, seat), share, 0.0)
        return known.algorithm, client.inner, with_changed_rows(data, client.rows, portion, x=trigger, y=label)

    learning = common.with_clients(known.algorithm, own, lambda client, new: client._replace(inner=new))

    def init_client(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> BackdoorClient:
        return BackdoorClient(known.algorithm.init_client(key, seat, down, data), jax.random.fold_in(key, number))

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: Any, data: LocalData) -> tuple[PyTree, PyTree]:
        up, new = learning.train(key, seat, down, client, data)
        factor = jnp.where(known.behaves(client.inner, seat), scale, 1.0)
        return changed_update(up, lambda x: roles.replace_statistics(inner.task, trees.scale(x, factor), x)), new

    def rows(test: Subset) -> Subset:
        x = ChangedRows(test.examples.x, trigger, None, jax.random.key(0), jnp.ones(()))
        return test._replace(examples=test.examples._replace(x=x))  # pyright: ignore[reportArgumentType]

    def counted(outputs: Float[Array, "b classes"], y: Array) -> Float[Array, " b"]:
        return (y != target).astype(outputs.dtype)

    def hits(outputs: Float[Array, "b classes"], y: Array) -> Float[Array, " b"]:
        return counted(outputs, y) * (jnp.argmax(outputs, axis=-1) == target)

    return learning._replace(
        init_client=init_client,
        train=train,
        counts=known.counts,
        scenarios=common.applied_scenarios(inner, "backdoor", probe=Probe("backdoor_success", rows, counted, hits)),
    )


ENTRY = common.Entry(
    backdoor,
    "some clients train on rows with a trigger and a label of their choice, and scale their updates",
    {"target": 0, "share": 0.5, "scale": 1.5, "size": 1, "value": 2.0, "fraction": 0.2},
    ("bagdasaryan2020backdoor",),
    ("scale", "value"),
    ("share", "fraction"),
)
