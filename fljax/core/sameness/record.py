"""The record of what decides a run's numbers, which all compare that go on with results; and what they say.

What only rounds otherwise (devices, compilers, versions of JAX) is told, and refused nowhere. What an older fljax has
not recorded is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
