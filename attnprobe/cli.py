"""The command line: the commands put together, and the one border at which errors become exit codes (those of `errors`).

Each command calls the library and prints what it found. Heavy imports stay inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import _thread
import logging
import os
import sys
import threading
import traceback
import warnings
from typing import Annotated, Any

import typer

from attnprobe import __version__
from attnprobe.commands import finding, looking, measuring, probing, studies
from attnprobe.errors import AttnprobeError
from attnprobe.leaving import INTERRUPTED, hear_no_more

app = typer.Typer(
    help="What does each attention head of a pretrained transformer do? Verified capture, measures, evidence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS = (
    *(measuring.report, measuring.heads, looking.verify, looking.capture, looking.view),
    *(studies.importance, probing.probe, studies.compare, finding.fetch, finding.doctor),
)
for command in COMMANDS:
    app.command()(command)
app.command(name="list")(finding.list_entries)

_AGAIN = 0.05
"""Seconds after which a Ctrl-C that got lost is raised again."""


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line and leave with the right exit code."""
    sys.unraisablehook = _raise_lost_interrupt_again
    warnings.showwarning = lambda message, *_rest, **_options: print(f"warning: {message}", file=sys.stderr)
    try:
        code = _run()
        hear_no_more()
    except KeyboardInterrupt:
        hear_no_more()
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer turns Ctrl-C within a command into this code, and says nothing
        remedy = "with --out of `heads` or `probe`, or --study of `report`, go on with the same command and --resume"
        print(f"interrupted; {remedy}", file=sys.stderr)
    sys.exit(code)


def _run() -> int:
    """The command's exit code, its error told; a Ctrl-C may leave it at any place."""
    debug = "--debug" in sys.argv[1:]
    if debug:
        logging.basicConfig(level=logging.DEBUG)
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        error.show()  # type: ignore[attr-defined]
        return 2
    except typer.Abort:
        return INTERRUPTED
    except AttnprobeError as error:
        return _failed(error, error.exit_code, debug, str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the last border: whatever is left is our fault
        what = f"internal error: {type(error).__name__}: {error}. Run again with --debug and report it."
        return _failed(error, 70, debug, what)
    return code if isinstance(code, int) else 0


def _raise_lost_interrupt_again(lost: Any) -> None:
    """Python drops what is raised in a destructor or a callback; a Ctrl-C that falls there must stop the run all the same."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    # not from here: it would be raised in this function, and be dropped as well
    later = threading.Timer(_AGAIN, _thread.interrupt_main)
    later.daemon = True
    later.start()


def _failed(error: Exception, code: int, debug: bool, message: str) -> int:
    if debug:
        traceback.print_exception(error)
    print(f"attnprobe: {message}", file=sys.stderr)
    return code
