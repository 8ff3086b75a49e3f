"""The command line's entry point: registers the commands and turns errors into sentences and exit codes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from fljax.cli import printing
from fljax.cli.commands import compare, data, describe, results
from fljax.cli.commands.certify import certify
from fljax.cli.commands.design import design
from fljax.cli.commands.reproduce import reproduce
from fljax.cli.commands.run import run, sweep
from fljax.cli.commands.worth import worth
from fljax.cli.printing import fail
from fljax.cli.running import Ended, Interrupted, Invocation, interruptible, part, with_options
from fljax.core.errors import ProcessLost, is_own, is_sentence
from fljax.core.plain import tell

app = typer.Typer(
    name="fljax",
    help="Federated learning in which clients decide whether to take part.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets: where they are, getting them, and what the clients of a config have.")

app.command()(with_options(run))
app.command()(describe.init)
app.command()(with_options(reproduce))
app.command()(with_options(sweep))
app.command()(with_options(worth))
app.command()(with_options(certify))
app.command()(with_options(design))
app.command()(results.watch)
app.command(name="report")(with_options(results.report_))
app.command(name="list")(describe.list_)
app.command()(describe.show)
app.command()(compare.compare)
app.command()(with_options(results.export))
app.command()(describe.cite)
app.command()(data.doctor)
app.add_typer(data_app, name="data")
data_app.command()(data.prepare)
data_app.command()(data.status)
data_app.command(name="show")(data.show_data)

# Click's exception class, whether typer includes its own click or imports it.
_USAGE_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with its code; ``arguments`` defaults to the process's arguments."""
    code = _main(sys.argv[1:] if arguments is None else arguments)
    if code:
        _release_others(code, after=1.0)  # those with the same error have told theirs by then
    raise SystemExit(code)


def _release_others(code: int, after: float = 0.0) -> None:
    """Ends a process that others wait for, without JAX's wait for them."""
    hosts: Any = sys.modules.get("fljax.core.processes")  # not imported here, since it imports JAX
    if hosts is not None and hosts.is_joined():
        hosts.leave(code, after)


def _main(arguments: Sequence[str]) -> int:
    try:
        with interruptible() as signals:
            words = list(arguments) or ["--help"]
            invocation = Invocation(tuple(words), signals)
            code = app(words, prog_name="fljax", standalone_mode=False, obj=invocation) or 0
            part()
            return code
    except Interrupted as stop:
        return fail(str(stop), stop.code)
    except ProcessLost as lost:
        fail(str(lost), 1)
        _release_others(1)
        return 1
    except Ended as end:
        return fail(str(end), 1)
    except (KeyboardInterrupt, typer.Abort):
        return fail("interrupted", 128 + signal.SIGINT)
    except Exception as error:
        if isinstance(error, _USAGE_ERROR):
            usage: Any = error
            return fail(usage.format_message(), 2)
        if os.environ.get("FLJAX_TRACEBACK"):
            tell(traceback.format_exc(), end="", file=sys.stderr)
        if is_sentence(error):
            from fljax.config.keys import ConfigError

            for sentence in error.errors if isinstance(error, ConfigError) else (printing.sentence(error),):
                fail(sentence, 2)
            return 2
        if isinstance(error, OSError) and error.errno is None and is_own(error):
            return fail(str(error), 1)
        if "RESOURCE_EXHAUSTED" in str(error) or any(isinstance(e, MemoryError) for e in (error, error.__cause__)):
            return fail(f"expected more memory than there is ({printing.words_of(error)}); what was saved is kept", 1)
        if (absent := printing.absent_platform()) is not None:
            return fail(absent, 2)
        return fail(f"{printing.in_words(error)} (run with FLJAX_TRACEBACK=1 for the traceback)", 1)


def _version(show: bool) -> None:
    if show:
        from fljax.core.version import __version__

        tell(f"fljax {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool | None, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Federated learning in which clients decide whether to take part."""
