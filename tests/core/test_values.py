"""What builders refuse: generated from the annotations of every builder in the registries."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
import xarray as xr
from hypothesis import strategies
from jaxtyping import Array, Bool, Int, Key

from fljax import algorithms, engine, scenarios
from fljax.algorithms.market import Clustering
from fljax.algorithms.single_model import server_optimizer
from fljax.core import values
from fljax.core.names import check_unlabelled
from fljax.core.values import ALL, Allowed, Count, NonNegative, Range, Share, checked
from fljax.data.partitions.partition import PARTITIONERS
from fljax.engine.programs.program import partition_plan
from fljax.protocol import Algorithm, AnyArray, Census, Task
from fljax.training import Local, named_optimizer
from tests.drawn import at_most
from tests.laws.cases import ALGORITHMS, TASK, federation
from tests.refusals import refuses

SINGLE = " (single precision has numbers from 1.2e-38 to 3.4e+38, and 0)"
LOCAL = Local(0.1, 4, steps=2)
LABELS = np.arange(60) % 3


class Builder(NamedTuple):
    """One builder with arguments that it takes."""

    build: Callable[..., Any]
    given: dict[str, Any]

    def __call__(self, **changed: Any) -> Any:
        return self.build(**(self.given | changed))


def _inner(build: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    return lambda **given: build(algorithms.fedavg(TASK, LOCAL), **given)


def _of(path: str) -> Builder:
    kind, name = path.split(".")
    if kind == "algorithms":
        return Builder(algorithms.REGISTRY[name].build, {"task": TASK, "local": LOCAL} | ALGORITHMS[name].example)
    if kind == "scenarios":
        return Builder(_inner(scenarios.REGISTRY[name].build), scenarios.REGISTRY[name].example)
    return Builder(
        PARTITIONERS[name], {"labels": LABELS, "clients": 3} | ({"owner": LABELS} if name == "natural" else {})
    )


BUILDERS = [
    *(f"algorithms.{name}" for name in algorithms.REGISTRY),
    *(f"scenarios.{name}" for name in scenarios.REGISTRY),
    *(f"partitions.{name}" for name in PARTITIONERS),
]


def _parameters(build: Callable[..., Any]) -> dict[str, Allowed]:
    """By name, or by record and field, what is checked. Tasks and algorithms are made by builders, not by users."""
    found = {}
    for name, allowed in values.allowances(build).items():
        if allowed.records in ((Task,), (Algorithm,)):
            continue
        if allowed.records == (Local,) or isinstance(_default(build, name), tuple):
            fields = values.allowances(allowed.records[0]).items()
            found |= {f"{name}.{field}": each for field, each in fields if not each.anything}
        elif not allowed.anything:
            found[name] = allowed
    return found


def _default(build: Callable[..., Any], parameter: str) -> Any:
    return inspect.signature(build).parameters[parameter].default


def _build_of(path: str) -> Callable[..., Any]:
    kind, name = path.split(".")
    if kind == "partitions":
        return PARTITIONERS[name]
    return (algorithms.REGISTRY if kind == "algorithms" else scenarios.REGISTRY)[name].build


WRONG_FOR_ALL: tuple[Any, ...] = (object(), 1j, {1, 2}, np.array("x"), jax.random.key(0))
WRONG_ARRAYS: list[Any] = [["a"], [[1.0], [1.0, 2.0]]]
TOO_DEEP = (np.ones((2, 2, 2)), jnp.ones((1, 2, 2, 2)))


def _wrong(allowed: Allowed) -> strategies.SearchStrategy[Any]:
    """Values that a parameter does not allow."""
    found = [strategies.sampled_from(WRONG_FOR_ALL)]
    if not allowed.none:
        found.append(strategies.none())
    if not allowed.truth:
        found.append(strategies.sampled_from([True, np.True_]))
    if str not in allowed.others:
        found.append(strategies.text().filter(lambda text: text not in allowed.names))
        found.append(strategies.just("0.1"))
    if allowed.number == "whole":
        found.append(strategies.floats(width=32).map(_of_some_kind))
    if allowed.number == "any" and not allowed.bounds.unknown:
        infinite = [] if allowed.bounds.infinite else [-math.inf, jnp.asarray(jnp.inf)]
        found.append(strategies.sampled_from([math.nan, np.float32("nan"), jnp.asarray(jnp.nan), *infinite]))
    if allowed.axes is None or math.isfinite(allowed.axes[1]):
        found.append(strategies.sampled_from(TOO_DEEP))
    if allowed.number is not None and allowed.axes is None and Sequence not in allowed.others:
        found.append(strategies.lists(strategies.floats(0, 1), min_size=0, max_size=4))
        found.append(strategies.just(jnp.full(1, 0.5)))
    if allowed.number is not None and math.isfinite(allowed.bounds.least):
        below = (
            strategies.integers(-1000, -1)
            if allowed.number == "whole"
            else strategies.floats(-(2.0**90), -(2.0**-90), width=32)
        )
        found.append(below.map(lambda step: _of_some_kind(allowed.bounds.least + step)))
        if allowed.bounds.above:
            found.append(strategies.just(_of_some_kind(allowed.bounds.least)))
    if allowed.number is not None and math.isfinite(allowed.bounds.most):
        found.append(
            strategies.floats(2.0**-10, 2.0**90, width=32).map(lambda step: _of_some_kind(allowed.bounds.most + step))
        )
    if allowed.axes is not None:
        unknown = [[0.1, math.nan], np.array([0.2, math.nan])]
        found.append(strategies.sampled_from(WRONG_ARRAYS + (unknown if not allowed.bounds.unknown else [])))
    return strategies.one_of(found)


def _of_some_kind(number: float) -> Any:
    """The number as one of Python, NumPy or JAX, which its bits choose."""
    kinds = (lambda x: x, np.float64, np.asarray, lambda x: jnp.asarray(x, float))
    return kinds[int(abs(hash(number))) % len(kinds)](number)


@pytest.mark.parametrize("path", BUILDERS)
def test_every_builder_is_checked(path: str) -> None:
    assert values.is_checked(_build_of(path))


def _refuses(path: str, name: str, wrong: Any) -> None:
    builder, (parameter, _, field) = _of(path), name.partition(".")
    record = builder.given.get(parameter, _default(_build_of(path), parameter))
    given = record._replace(**{field: wrong}) if field else wrong
    refuses(lambda: builder(**{parameter: given}), rf"^expected {name} to be [^\n]*, got [^\n]*$")


@pytest.mark.in_turn
@pytest.mark.unchecked
@pytest.mark.parametrize("path", BUILDERS)
def test_a_wrong_value_of_any_parameter_is_one_sentence(path: str) -> None:
    for name, allowed in _parameters(_build_of(path)).items():
        for wrong in (1j, {1, 2}, jax.random.key(0), *([] if allowed.truth else [True])):
            _refuses(path, name, wrong)
        if allowed.number is not None and not allowed.bounds.unknown:
            infinite = () if allowed.bounds.infinite else (np.float32(-math.inf),)
            text = () if str in allowed.others else ("0.1",)  # else it is the name of a file
            for wrong in (math.nan, jnp.asarray(jnp.nan), *text, *infinite):
                _refuses(path, name, wrong)
            if allowed.axes is None and Sequence not in allowed.others:
                _refuses(path, name, [0.5, 0.5])


@pytest.mark.in_turn
@pytest.mark.sampled(5)
@pytest.mark.unchecked
@pytest.mark.parametrize("path", BUILDERS)
@hypothesis.given(drawn=strategies.data())
@at_most(100)
def test_a_wrong_value_is_one_sentence(path: str, drawn: Any) -> None:
    parameters = _parameters(_build_of(path))
    name = drawn.draw(strategies.sampled_from(sorted(parameters)))
    _refuses(path, name, drawn.draw(_wrong(parameters[name])))


@pytest.mark.parametrize("path", BUILDERS)
@hypothesis.given(drawn=strategies.data())
@at_most(50)
def test_numbers_of_python_numpy_and_jax_are_alike(path: str, drawn: Any) -> None:
    found = _parameters(_build_of(path))
    names = sorted(name for name in found if found[name].number is not None)
    if not names:
        return
    name = drawn.draw(strategies.sampled_from(names))
    allowed = found[name]
    low, high = max(allowed.bounds.least, -(2.0**30)), min(allowed.bounds.most, 2.0**30)
    if allowed.number == "whole":
        number: Any = drawn.draw(strategies.integers(int(low), int(high)))
        for same in (number, np.int64(number), np.asarray(number), jnp.asarray(number)):
            given = values.admitted(name, same, allowed)
            assert given == number
            assert type(given) is int
    else:
        open_ends = {"exclude_min": allowed.bounds.above, "exclude_max": allowed.bounds.below}
        number = drawn.draw(strategies.floats(low, high, width=32, allow_subnormal=False, **open_ends))
        for same in (number, np.float32(number), np.float64(number), np.asarray(number)):
            given = values.admitted(name, same, allowed)
            assert given == number
            assert type(given) is float
        array = jnp.asarray(number, jnp.float32)
        assert values.admitted(name, array, allowed) is array


IDS = [2, 0, 1, 4, 3]
NAMES = list("cabed")
LABELLED: list[Any] = [
    pd.Series([0.5, 0.25, 1.0, 0.0, 0.75], IDS),
    pd.Series([1, 0, 1, 0, 0], NAMES),
    pd.Series([1.0, 0.0], pd.MultiIndex.from_tuples([("a", 1), ("b", 0)])),
    pd.Series([1.0, 0.0], pd.RangeIndex(1, 3)),
    pd.Series([1.0, 0.0], pd.RangeIndex(2, name="client")),
    pd.DataFrame([[1, 0, 1, 0, 0]], columns=NAMES),
    pd.DataFrame([[1.0], [0.5]], index=[1, 0]),
    xr.DataArray([1.0, 0.0], {"client": ["b", "a"]}, "client"),
    xr.DataArray([[1, 0]], {"client": ["b", "a"]}, ("round", "client")),
    xr.Dataset({"rate": ("client", [1.0])}),
    np.array([(0.5, 1.0)], [("b", float), ("a", float)]),
]


@pytest.mark.unchecked
@pytest.mark.parametrize("path", BUILDERS)
def test_what_has_labels_is_refused_by_every_parameter(path: str) -> None:
    """Builders know no client's name, so what is by name would be taken by place."""
    builder, build = _of(path), _build_of(path)
    for name in _parameters(build) | {name: each for name, each in values.allowances(build).items() if each.anything}:
        parameter, _, field = name.partition(".")
        record = builder.given.get(parameter, _default(build, parameter))
        for value in LABELLED:
            for held in (value, [value, value], (0.5, {"a": value})):
                if not values.allowances(build)[parameter].labels:
                    with pytest.raises(ValueError, match=rf"^expected {name} to be without labels, .* got a "):
                        builder(**{parameter: record._replace(**{field: held}) if field else held})


@pytest.mark.unchecked
def test_one_builder_reads_labels() -> None:
    assert [
        (path, name) for path in BUILDERS for name, each in values.allowances(_build_of(path)).items() if each.labels
    ] == [("algorithms.iafl", "contribution")]
    refuses(lambda: algorithms.iafl(TASK, LOCAL, contribution=LABELLED[1]), "expected the labels of clients to be ids")


def test_fields_of_a_users_record_are_labels() -> None:
    class Rates(NamedTuple):
        west: float
        south: float

    with pytest.raises(ValueError, match="expected rate by place, such as a list, got a Rates of values by name"):
        values.admitted("rate", Rates(1.0, 0.0), values.allowances(scenarios.dropout)["rate"])


def test_what_has_no_names_is_taken_by_place() -> None:
    allowed = values.allowances(scenarios.dropout)["rate"]
    for value in (np.array([0.5, 0.25], object), xr.DataArray([0.5, 0.25], dims="client")):
        given = values.admitted("rate", value, allowed)
        assert type(given) is np.ndarray
        np.testing.assert_array_equal(given, np.array([0.5, 0.25]))
    refuses(lambda: values.admitted("rate", np.array([0.5, "a"], object), allowed), "expected rate to be")


def test_an_index_that_counts_is_no_label() -> None:
    rate = pd.Series([0.5, 0.25, 1.0, 0.0, 0.75])
    for value in (rate, pd.DataFrame([[1, 0]]), pd.Index([0.5, 1.0]), np.ones(2), jnp.ones(2), [1.0], "0.1", None):
        check_unlabelled("rate", value)
    given = values.admitted("rate", rate, values.allowances(scenarios.dropout)["rate"])
    assert type(given) is np.ndarray
    np.testing.assert_array_equal(given, rate)


class Record(NamedTuple):
    size: Count = 1
    kind: Literal["a", "b"] = "a"


@checked
def _build(
    x: Any,
    rate: NonNegative = 1.0,
    *,
    share: Share | Literal["all"] = "all",
    count: Count | None = None,
    each: NonNegative | AnyArray = 0.0,
    record: Record = Record(),  # noqa: B008
    flag: bool = False,
    **more: Any,
) -> tuple[Any, ...]:
    return x, rate, share, count, record, flag, more


def test_what_is_allowed_reaches_the_builder() -> None:
    assert _build(1) == (1, 1.0, "all", None, Record(), False, {})
    numbers: dict[str, Any] = {"rate": np.float32(0.5), "share": np.asarray(1), "count": jnp.int32(3), "flag": np.True_}
    found = _build("x", **numbers, own=[1])
    assert found == ("x", 0.5, 1, 3, Record(), True, {"own": [1]})
    assert [type(each) for each in found[1:4]] == [float, int, int]
    record = Record(np.int64(2), "b")  # type: ignore[arg-type]
    assert type(_build(0, record=record)[4].size) is int
    same = Record(2)
    assert _build(0, record=same)[4] is same


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": [0.1, 0.2]}, "expected rate to be one finite number of at least 0, got [0.1, 0.2]"),
        ({"rate": "0.1"}, "expected rate to be one finite number of at least 0, got '0.1'"),
        ({"rate": 1e39}, f"expected rate to be one finite number of at least 0, got 1e+39{SINGLE}"),
        ({"rate": 1e-50}, f"expected rate to be one finite number of at least 0, got 1e-50{SINGLE}"),
        ({"rate": np.float32(-1)}, "expected rate to be one finite number of at least 0, got np.float32(-1.0)"),
        ({"share": 1.5}, "expected share to be one number from 0 to 1 or all, got 1.5"),
        ({"share": "al"}, "expected share to be one number from 0 to 1 or all, got 'al' (did you mean 'all'?)"),
        ({"count": 2.0}, "expected count to be a whole number of at least 1 or None, got 2.0"),
        ({"count": True}, "expected count to be a whole number of at least 1 or None, got True"),
        ({"flag": 1}, "expected flag to be True or False, got 1"),
        ({"record": Record(0)}, "expected record.size to be a whole number of at least 1, got 0"),
        ({"record": Record(1, "c")}, "expected record.kind to be a or b, got 'c'"),  # type: ignore[arg-type]
        ({"record": (1, "a")}, "expected record to be a Record, got (1, 'a')"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_sentence(given: dict[str, Any], said: str) -> None:
    assert refuses(lambda: _build(0, **given), r"^expected") == said


def test_of_traced_values_shape_and_dtype_are_checked() -> None:
    assert jax.jit(lambda rate: _build(0, rate)[1])(-1.0) == -1.0  # its number is unknown
    with pytest.raises(
        ValueError, match=r"^expected rate to be one finite number of at least 0, got a traced array of"
    ):
        jax.jit(lambda rate: _build(0, rate)[1])(jnp.ones(2))
    with pytest.raises(ValueError, match=r"^expected count to be a whole number .*, got a traced array"):
        jax.jit(lambda count: _build(0, count=count)[3])(2)
    jax.vmap(lambda rate: _build(0, rate)[1])(jnp.ones(2))


def test_python_reports_a_missing_or_an_unknown_parameter() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        _build()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (ALL, ""),
        (Range(0), "of at least 0"),
        (Range(0, above=True), "above 0"),
        (Range(0, 1), "from 0 to 1"),
        (Range(0, 1, below=True), "in [0, 1)"),
    ],
)
def test_a_range_in_words(bounds: Range, text: str) -> None:
    assert bounds.words() == text


def test_a_plan_is_checked_before_its_numbers_are_traced() -> None:
    plan = engine.Plan(algorithms.incfl, {"task": TASK, "local": LOCAL, "threshold": [1.0, math.nan, 1.0, 1.0, 1.0]})
    assert engine.groups([plan, plan])
    for name, wrong in (("server_lr", -1.0), ("eps", [0.1, 0.2]), ("local", LOCAL._replace(decay=math.nan))):
        changed = plan._replace(arguments={**plan.arguments, name: wrong})
        with pytest.raises(ValueError, match=rf"^expected {name}[.\w]* to be "):
            partition_plan(changed, federation())
    by_seed = plan._replace(arguments={"task": TASK, "local": LOCAL}, by_seed={"threshold": np.ones((2, 5))})
    partition_plan(by_seed, federation())
    with pytest.raises(ValueError, match=r"^expected threshold to be an array of numbers with 1 or 2 axes, got"):
        partition_plan(by_seed._replace(by_seed={"threshold": np.ones((2, 5, 1))}), federation())


@pytest.mark.unchecked
def test_a_mapping_is_no_record() -> None:
    """In a config these are tables; in Python they are NamedTuples."""
    mapping: Any = {"name": "sgd", "momentum": 0.9}
    with pytest.raises(ValueError, match="server_optimizer to be an OptimizerSettings, text or a function, got"):
        algorithms.fedavg(TASK, LOCAL, server_optimizer=mapping)
    with pytest.raises(ValueError, match=r"^expected the name of an optax optimizer such as .*, got \{'name'"):
        server_optimizer(1.0, mapping)
    refuses(lambda: algorithms.ipfl(TASK, LOCAL, tokens=mapping), r"^expected tokens to be a Tokens, got \{'name'")


@pytest.mark.in_turn
@pytest.mark.unchecked
def test_what_stays_allowed() -> None:
    algorithms.iafl(TASK, LOCAL, contribution=[0.5, math.nan, 1.0])
    algorithms.incfl(TASK, LOCAL, threshold=-math.inf)
    inner = algorithms.fedavg(TASK, LOCAL)
    scenarios.free_riding(inner, ids=[])
    ids: Any = jnp.array([0, 2])
    scenarios.free_riding(inner, ids=ids)
    scenarios.misreporting(inner, report="loss", offset=math.inf, fraction=0.5)
    named_optimizer("rprop", 0.1, {"max_step_size": math.inf})
    scenarios.finetuned(inner, learning_rate=0.1, batch_size=2, steps=1, optimizer=optax.sgd)
    PARTITIONERS["iid"](LABELS, clients=3, seed=2**100)


def _keyed(key: Key[Array, ""], mask: Bool[Array, ""], ids: Int[Array, " N"], rate: float = None) -> Any:  # type: ignore[assignment] # noqa: RUF013
    return key, mask, ids, rate


def test_annotations_of_a_users_builder() -> None:
    build = checked(_keyed)
    key, ids = jax.random.key(0), jnp.arange(2)
    nothing: Any = None
    found = build(key, jnp.bool_(True), ids, nothing)
    assert found[0] is key
    assert found[2] is ids
    floats: Any = jnp.ones(2)
    with pytest.raises(ValueError, match="expected ids to be an array of whole numbers with 1 axis, got"):
        build(key, jnp.bool_(True), floats)


@pytest.mark.parametrize("wrong", [lambda x: [x, "a"], lambda x: [[x, x], [x]], lambda x: [x, None], lambda x: x > 0])
def test_what_is_traced_and_wrong_is_one_sentence(wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"^expected rate to be one finite number of at least 0, got a "):
        jax.jit(lambda x: _build(0, wrong(x)))(1.0)


class Members(NamedTuple):
    """A record of an array, as initial clusters are."""

    member: Int[Array, " N"]


@pytest.mark.in_turn
def test_arrays_of_whole_numbers_stay_arrays() -> None:
    """Sequences of whole numbers shape the program, and become tuples; arrays do not."""

    @checked
    def build(members: Members, table: Int[Array, "N M"], widths: Sequence[int], both: Sequence[int] | Array) -> Any:
        return members, table, widths, both

    numbers = jnp.arange(4)
    listed: Any = numbers
    members, table, widths, both = build(Members(numbers), numbers[None], listed, numbers)
    assert members.member is numbers
    assert isinstance(table, jax.Array)
    assert widths == (0, 1, 2, 3)
    assert both is numbers
    models = jax.vmap(TASK.init)(jax.random.split(jax.random.key(0), 2))
    start = Clustering(jnp.array([0, 1, 0, 1, 1]), models)
    algorithm = algorithms.ipfl(TASK, LOCAL, clusters=2, clients_per_cluster=2, clustering=start)
    found: Any = algorithm.init_server(jax.random.key(0), Census(jnp.ones(5, jnp.int32), jnp.ones(5, jnp.int32)))
    jax.tree.map(np.testing.assert_array_equal, found.models, models)
