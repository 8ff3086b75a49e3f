"""The command line, called in this process."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

from fljax import cli


def call(*arguments: Any) -> tuple[int, str, str]:
    """The exit code of a command, and what it printed on stdout and on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        cli.main([str(each) for each in arguments])
    return int(end.value.code or 0), out.getvalue(), err.getvalue()


def printed(*arguments: Any) -> str:
    """What a command that ends well prints on stdout."""
    code, out, err = call(*arguments)
    assert code == 0, err
    return out


def refused(*arguments: Any) -> str:
    """The one sentence of a command that is refused before it does or prints anything."""
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("fljax: ")
    return err


def run(config: Any, *arguments: Any) -> None:
    """``fljax run`` without a word and a report."""
    code, _, err = call("run", config, "--quiet", "--no-report", *arguments)
    assert code == 0, err
