"""The table of forms for programs on GPUs."""

from __future__ import annotations

import pytest

from fljax.core import gpu_rules

TEXT = gpu_rules.write(gpu_rules.GpuRules("estimates", 1024, "grouped", "patches", "windows"))


def test_written_rules_are_read() -> None:
    rules = gpu_rules.parse(TEXT)
    assert rules == gpu_rules.GpuRules("estimates", 1024, "grouped", "patches", "windows")
    assert (rules.convolution(gpu_rules.WIDE - 1), rules.convolution(gpu_rules.WIDE)) == ("grouped", "patches")


def test_the_rules_of_this_version_are_valid() -> None:
    assert gpu_rules.parse(gpu_rules.write(gpu_rules.read())) == gpu_rules.read()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"windows"', '"squares"', "pooling to be elementwise or windows, got 'squares'"),
        ('"patches"', '"fast"', "wide_convolution to be grouped, patches or tiles, got 'fast'"),
        ("1024", "0", "chunk_bytes to be a whole number of at least 1, got 0"),
        ("1024", "1.5", "chunk_bytes to be a whole number of at least 1, got 1.5"),
        ('pooling = "windows"', "", "expected the keys source, chunk_bytes"),
    ],
)
def test_other_rules_are_refused(old: str, new: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        gpu_rules.parse(TEXT.replace(old, new))
