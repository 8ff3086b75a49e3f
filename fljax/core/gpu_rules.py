"""How programs for GPUs are formed: one table, ``gpu_rules.toml``, which a benchmark writes from measurements."""
# ``benchmarks/accelerator.py --write-rule`` writes it; what was not measured stays.

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Literal, NamedTuple

from fljax.core.values import Count, admitted, allowances

# "grouped" is XLA's own convolution, a grouped one under ``vmap`` over clients; "patches" is a product of patches and
# kernels, a batched product then; "tiles" is one with fewer and larger patches (``fljax.models.channels_last``).
Convolution = Literal["grouped", "patches", "tiles"]
# "elementwise" is a maximum of four arrays, "windows" is ``lax.reduce_window``.
Pooling = Literal["elementwise", "windows"]

# A convolution with so many output channels, or more, is wide. A LeNet has 6 and 16, a ResNet18 64 to 512; what lies
# between was not measured.
WIDE = 64


class GpuRules(NamedTuple):
    """The forms and constants of programs for GPUs; what ``source`` did not measure is an estimate."""

    source: str  # a file in ``benchmarks/results``; "estimates" if there are none
    chunk_bytes: Count  # read and written by the clients side by side in one local step, before XLA fuses
    narrow_convolution: Convolution  # of layers with fewer than ``WIDE`` output channels
    wide_convolution: Convolution  # of all other layers
    pooling: Pooling  # of 2 x 2 max-pools

    def convolution(self, channels: int) -> Convolution:
        """The form of a convolution with so many output channels."""
        return self.wide_convolution if channels >= WIDE else self.narrow_convolution


def parse(text: str) -> GpuRules:
    """The rules in the text of a TOML file; a ValueError if a key is missing or unknown, or a value is not valid."""
    raw = tomllib.loads(text)
    if sorted(raw) != sorted(GpuRules._fields):
        raise ValueError(f"expected the keys {', '.join(GpuRules._fields)} in the rules for GPUs, got {', '.join(raw)}")
    rules = GpuRules(**raw)
    for name, allowed in allowances(GpuRules).items():
        admitted(name, raw[name], allowed)
    return rules


@functools.cache
def read() -> GpuRules:
    """The rules of this version of fljax."""
    return parse(resources.files("fljax.core").joinpath("gpu_rules.toml").read_text(encoding="utf-8"))


def write(rules: GpuRules) -> str:
    """The text of a TOML file with these rules."""
    lines = [
        "# How programs for GPUs are formed: fljax/core/gpu_rules.py explains each key.",
        "# `python benchmarks/accelerator.py --out FOLDER --write-rule` writes this file from measurements.",
    ]
    lines += [
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
        for name, value in rules._asdict().items()
    ]
    return "\n".join(lines) + "\n"
