"""Runs the command of a command line.

Invariant: an operating error never prints a traceback, only a bug in qq does. The exit status tells a script the kind
of the error.
"""

from __future__ import annotations

import io
import os
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit, NoArgsIsHelpError, NoSuchOption

from qq.cli.command_line.tree import COMMAND
from qq.cli.root import COMPLETION_VARIABLE, NAME, root
from qq.cli.terminal.escaping import escaped
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = 2
"""Exit status for wrong options."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as in a shell; `UNREAD` is the status after the output's reader has closed the pipe."""
UNREAD = 141


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # for characters that the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        instruction = os.environ.get(COMPLETION_VARIABLE)
        return _run(arguments) if instruction is None else _complete(instruction)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _stop_writing()
        return UNREAD


def _run(arguments: Sequence[str]) -> int:
    names = {COMMAND: NAME}
    try:
        with root.make_context(NAME, list(arguments)) as context:
            names = context.meta
            status = root.invoke(context)
        sys.stdout.flush()
    except Exit as ended:  # of --help and --version
        return ended.exit_code
    except NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return USAGE
    except click.UsageError as error:
        path = NAME if error.ctx is None else error.ctx.command_path
        _print_error(path, f"{_usage_text(error)} (see `{path} --help`)")
        return USAGE
    except OperatingError as error:
        _print_error(names[COMMAND], str(error))
        return error.exit_status
    except UnicodeEncodeError:  # bytes of the command line, which may be a password
        _print_error(names[COMMAND], "a name or a text that was given is not UTF-8")
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:  # for a file, or for standard output, which has no file name
        if error.filename is None:
            _stop_writing()
        _print_error(names[COMMAND], f"{error.filename or 'standard output'}: {error.strerror or error}")
        return 1
    return status or 0


def _print_error(command: str, text: str) -> None:
    print(f"{command}: {escaped(text)}", file=sys.stderr)


def _usage_text(error: click.UsageError) -> str:
    """Return the text of a usage error as a part of a line."""
    if isinstance(error, NoSuchOption) and error.ctx and isinstance(error.ctx.command, click.Group):
        own = [name for option in error.ctx.command.get_params(error.ctx) for name in option.opts]
        if likely := get_close_matches(error.option_name, own, 1):
            return f"No such option '{error.option_name}'. Did you mean '{likely[0]}'?"
        return f"No such option '{error.option_name}' here: options stand behind the whole command"
    text = error.format_message()
    for given in ("No such command", "No such option"):
        text = text.replace(f"{given}: ", f"{given} ", 1)
    return " ".join(text.split()).rstrip(".")


def _stop_writing() -> None:
    """Discard the buffer of standard output, which the interpreter would fail to write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complete(instruction: str) -> int:
    from qq.cli.commands.completion import complete  # noqa: PLC0415 -- only for completion

    return complete(instruction)
