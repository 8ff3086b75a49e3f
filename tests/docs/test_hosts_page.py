"""The script and the commands of the page on several hosts, in two processes."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.docs.test_pages import ROOT, blocks
from tests.processes import ended, environment, free_port

pytestmark = pytest.mark.thorough


def test_the_script_of_two_terminals(tmp_path: pathlib.Path) -> None:
    page = (ROOT / "docs" / "howto" / "hosts.md").read_text(encoding="utf-8")
    (code,) = [each for each in blocks(page, "py") if "fljax.distributed" in each]
    (tmp_path / "two.py").write_text(code.replace("2345", str(free_port())))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first, second = ended(
        [
            subprocess.Popen([sys.executable, "two.py", number], cwd=tmp_path, env=environment(), **pipes)
            for number in ("0", "1")
        ]
    )
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert "Result(1 seed, 20 rounds, 6 clients" in first[1]
    assert "Result" not in second[1]
