"""The record of what decides a run's numbers, which is compared wherever something goes on with results.

It has the code of a user's own functions as checksums: those that are neither of fljax, nor of Python, nor installed.
Code is bytecode: comments, docstrings, names and places do not count, functions of one's own that it calls and
constants that it reads do. Checksums name the version of Python: those of two versions cannot be compared.

The record of what decides a run's numbers, which all compare that go on with results; and what they say.

What only rounds otherwise (devices, compilers, versions of JAX) is told, and refused nowhere. What an older fljax has
not recorded is not compared.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import pathlib
import re
import sys
import types
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

_MOST = 2**20  # numbers of an array that are read
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, np.generic, np.dtype)
_FIXED = (*_PLAIN, tuple, frozenset, functools.partial, types.FunctionType, type)


def codes_of(value: Any) -> dict[str, str]:
    """The codes of one's own functions, classes and objects that a value holds, by name."""
    found: dict[str, list[str]] = {}
    for part in _own_in(value, {}):
        found.setdefault(_name(part), []).extend(_words(part, {}, True))
    return {name: _checksum(words) for name, words in found.items()}


def code_of(value: Any) -> str:
    """The code of a function of one's own and all of its own that it reaches; "" of a name."""
    return "" if isinstance(value, str) else _checksum(sorted(codes_of(value).values()))


def named_in(settings: Any) -> dict[str, Any]:
    """The objects that settings name as ``module:object``, if their modules are imported."""
    if isinstance(settings, Mapping | list):
        parts = settings.values() if isinstance(settings, Mapping) else settings
        return {name: found for part in parts for name, found in named_in(part).items()}
    if not isinstance(settings, str) or not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", settings):
        return {}
    module, _, path = settings.partition(":")
    found = functools.reduce(lambda at, name: getattr(at, name, None), path.split("."), sys.modules.get(module))
    return {} if found is None else {settings: found}


def _checksum(words: list[str]) -> str:
    return f"{sys.implementation.cache_tag}:{zlib.crc32(repr(words).encode('utf-8', 'surrogatepass')):08x}"


def _name(value: Any) -> str:
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


# Paths of a switch that fljax 0.3.0 did not have, and that every later version writes.
_LATER = re.compile(r"(.*[./])?(local|standalone)[./]keep")


def without_later(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    """The settings ``here``, by path, without switches that are off and that the version of ``there`` did not have."""
    later = {path for path in here if _LATER.fullmatch(path) and str(here[path]) == "False"}
    known = any(map(_LATER.fullmatch, there))
    return {path: value for path, value in here.items() if known or path not in later}


@functools.cache
def _is_own(module: str | None) -> bool:
    """Whether a module is neither of fljax nor of Python nor of an installed package."""
    top = (module or "").partition(".")[0]
    if top in ("fljax", *sys.stdlib_module_names):
        return top == "__main__"
    there: Any = sys.modules.get(top)
    places = [*getattr(there, "__path__", ()), getattr(there, "__file__", None) or ""]
    return not any({"site-packages", "dist-packages"} & set(pathlib.Path(place).parts) for place in places)


def _is_code(value: Any) -> bool:
    """Whether a value is a function or a class of one's own, an object of such a class, or a model of layers."""
    if isinstance(value, types.FunctionType):  # not the name that functools.wraps gives
        return _is_own(value.__globals__.get("__name__"))
    if isinstance(value, tuple | list | dict | types.ModuleType | functools.partial) or (
        hasattr(value, "__wrapped__") and not isinstance(value, type)
    ):
        return False
    kind = value if isinstance(value, type) else type(value)
    return _is_own(kind.__module__) or (dataclasses.is_dataclass(value) and not kind.__module__.startswith("fljax."))


def _own_in(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """The outermost of one's own functions, classes and objects in a value."""
    if isinstance(value, _PLAIN) or id(value) in seen:
        return
    seen[id(value)] = value
    if _is_code(value):
        yield value
        return
    for part in _inside(value)[1]:
        yield from _own_in(part, seen)


def _words(value: Any, seen: dict[int, Any], counts: bool) -> Iterator[str]:
    """A value and all that it reaches, in a fixed order; ``counts``: whether numbers and texts do."""
    if isinstance(value, _PLAIN):
        yield from (repr(value),) if counts else ()
        return
    if id(value) in seen:
        return
    seen[id(value)] = value
    said, parts = _inside(value)
    yield from (said,) if counts or callable(value) else ()
    if isinstance(value, types.FunctionType | type):
        counts = _is_code(value)
    for part in parts:
        yield from _words(part, seen, counts)


def _inside(value: Any) -> tuple[str, list[Any]]:
    """What is said of a value, and the values in it."""
    if isinstance(value, functools.partial):
        return "", [value.func, *value.args, *value.keywords.items()]
    if isinstance(value, types.FunctionType):
        parts = [getattr(value, "__wrapped__", None), *map(_content, value.__closure__ or ())]
        if not _is_code(value):
            return _name(value), parts
        return _body(value.__code__, value.__doc__), [*parts, value.__defaults__, value.__kwdefaults__, *_read(value)]
    if isinstance(value, types.MethodType | property | staticmethod | classmethod):
        return "", [getattr(value, name, None) for name in ("__func__", "__self__", "fget")]
    if isinstance(value, type):
        own = {name: each for name, each in vars(value).items() if callable(each) or not name.startswith("__")}
        return ("class", [*value.__bases__, *sorted(own.items())]) if _is_code(value) else (_name(value), [])
    if isinstance(value, dict | set | frozenset | tuple | list):
        if isinstance(value, set | frozenset):
            return "", sorted(value, key=lambda part: repr(part) if isinstance(part, _PLAIN) else _name(part))
        return "", list(value.items() if isinstance(value, dict) else value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array(value), []
    held = dict(getattr(value, "__dict__", {}))
    if hasattr(value, "__wrapped__"):  # jax.jit, jax.custom_vjp, functools.cache
        return "", [value.__wrapped__, *(part for part in held.values() if callable(part))]
    if dataclasses.is_dataclass(value):  # a layer of flax also has a state
        held = {field.name: held.get(field.name) for field in dataclasses.fields(value) if field.name != "parent"}
    elif not _is_own(type(value).__module__):
        kinds = tuple | list | dict
        return _name(value) if callable(value) else "", [
            v for v in held.values() if callable(v) or isinstance(v, kinds)
        ]
    return "object", [type(value), held]


def _array(value: Any) -> str:
    told = f"{value.dtype}{value.shape}"
    with contextlib.suppress(Exception):  # random keys, tracers and shapes have no numbers
        numbers = np.asarray(value).reshape(-1)
        if numbers.dtype != object:  # whose bytes are addresses
            told += str(zlib.crc32(numbers[:: max(1, numbers.size // _MOST)].tobytes()))
    return told


def _content(cell: types.CellType) -> Any:
    with contextlib.suppress(ValueError):  # still empty
        return cell.cell_contents


def _body(code: types.CodeType, docstring: str | None = None) -> str:
    """Instructions, names and constants, those of functions inside it, too."""
    constants = code.co_consts
    if docstring is not None and constants[:1] == (docstring,):
        constants = (None, *constants[1:])
    return repr((code.co_code, code.co_names, code.co_freevars, [_constant(value) for value in constants]))


def _constant(value: Any) -> str:
    """A constant of code as text that is the same in each process; sets have no order."""
    if isinstance(value, types.CodeType):
        return _body(value)
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _read(function: types.FunctionType) -> Iterator[Any]:
    """What a function of one's own reads of its module, and of other modules of one's own."""
    names, modules = sorted(_names(function.__code__)), [function.__globals__]
    for there in modules:  # which grows
        for name in names:
            value = there.get(name, sys.modules.get(name) if there is modules[0] else None)
            if isinstance(value, types.ModuleType):
                if _is_own(value.__name__) and all(value.__dict__ is not other for other in modules):
                    modules.append(vars(value))
            elif name in there and name != "__builtins__":
                yield from _constant_of(there, name, value)


def _constant_of(there: Mapping[str, Any], name: str, value: Any) -> tuple[Any, ...]:
    """A constant of a module; one that may change as it is written, with the functions in it."""
    text = None
    if not (isinstance(value, _FIXED) or hasattr(value, "dtype")):
        with contextlib.suppress(Exception):  # a notebook, or a file that is gone
            body = ast.parse(inspect.getsource(sys.modules[there["__name__"]])).body
            lines = [ast.unparse(line) for line in body if isinstance(line, ast.Assign | ast.AnnAssign | ast.AugAssign)]
            text = "\n".join(line for line in lines if re.search(rf"\b{name}\b", line))
    if not text:
        return name, value
    held = getattr(value, "__dict__", {}).values() or _inside(value)[1]
    return name, text, *(part for part in (type(value), *held) if callable(part))


SETTINGS = (
    "jax_default_prng_impl",  # the generator
    "jax_threefry_partitionable",  # the order of its bits
    "jax_random_seed_offset",  # added to every seed
    "jax_high_dynamic_range_gumbel",  # draws of categories
    "jax_safer_randint",  # draws of whole numbers
    "jax_enable_x64",  # dtypes
    "jax_explicit_x64_dtypes",
    "jax_default_dtype_bits",
    "jax_numpy_dtype_promotion",
    "jax_default_matmul_precision",
    "jax_allow_f16_reductions",
    "jax_softmax_custom_jvp",  # derivatives
)
_CODE, _VERSION = "code of ", "version of "
_FIRST = "0.2.0"  # the first fljax with whose results later ones go on, if they have a record
# The attribute of results with sentences about runs that went on by force, and how these begin.
FORCED, WENT_ON = "forced", "went on by force, although "


class Differences(NamedTuple):
    """Phrases about two records: by what numbers differ, and what is not compared or changes last bits."""

    changed: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()

    def __or__(self, other: Differences) -> Differences:
        """Those of both."""
        return Differences(*(tuple(dict.fromkeys((*a, *b))) for a, b in zip(self, other, strict=True)))

    @property
    def sentence(self) -> str:
        """What results say that went on by force; "" if nothing differs."""
        return f"{WENT_ON}{' and '.join(self.changed)}" if self.changed else ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What a user is told: by what numbers differ, and what else."""
        return (*filter(None, [self.sentence]), *self.noted)


def record(codes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings and the JAX of this process, and codes by name."""
    import jax

    told = {name: str(getattr(jax.config, name)) for name in SETTINGS if hasattr(jax.config, name)}
    return told | {f"{_VERSION}JAX": jax.__version__} | {f"{_CODE}{name}": code for name, code in (codes or {}).items()}


def is_recorded(name: str) -> bool:
    """Whether a name is one of a record, among other things that runs have in common."""
    return name.startswith((_CODE, _VERSION)) or name in SETTINGS


def goes_on(earlier: str | None, recorded: bool) -> bool:
    """Whether this fljax goes on with results of another version: an earlier one, if they have a record."""
    from fljax.core.version import __version__

    first, there, here = (
        [int(part) for part in re.findall(r"\d+", str(v))[:3]] for v in (_FIRST, earlier, __version__)
    )
    return earlier == __version__ or (recorded and first <= there <= here)


def compared(there: Mapping[str, Any], here: Mapping[str, Any]) -> Differences:
    """What differs between the record of earlier results and that of now; other names are left out."""
    names = [name for name in {**there, **here} if is_recorded(name)]
    if not any(map(is_recorded, there)):
        return Differences(noted=("JAX's settings and the code of own functions are not recorded",))
    changed, noted = list[str](), list[str]()
    for name in names:
        first, second = there.get(name), here.get(name)
        if first == second or (name in SETTINGS and None in (first, second)):  # of another JAX
            continue
        tags = {code.partition(":")[0] for code in (first, second) if code}
        if name.startswith(_CODE) and len(tags) > 1:
            noted.append(f"the {name} is not compared, since {' and '.join(sorted(tags))} wrote it")
        elif name.startswith(_CODE):
            changed.append(f"the {name} {'differs' if first and second else 'is new' if second else 'is gone'}")
        else:
            (noted if name.startswith(_VERSION) else changed).append(f"{name} is {first} there and {second} here")
    return Differences(tuple(changed), tuple(noted))


def forced_in(*told: Any) -> str:
    """The sentences of results or texts that went on by force, each once."""
    texts = [str(each if isinstance(each, str) else each.attrs.get(FORCED, "")) for each in told]
    return "\n".join(dict.fromkeys(line for text in texts for line in text.splitlines() if line))
