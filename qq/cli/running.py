"""Running the command that a command line names.

Invariant: whatever happens to a command, there is no traceback unless qq itself is wrong, and a script can tell from
the status what kind of thing it was.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit, NoArgsIsHelpError, NoSuchOption

from qq.cli.escaping import escaped
from qq.cli.root import COMPLETION_VARIABLE, NAME, root
from qq.cli.tree import COMMAND
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = 2
"""The exit status if the options are wrong."""
INTERRUPTED = 130
"""The exit status after Ctrl-C, as a shell says it; UNREAD if nobody reads the output any more."""
UNREAD = 141


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal of another time has no letters for
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
        _say(path, f"{_text_of(error)} (see `{path} --help`)")
        return USAGE
    except OperatingError as error:
        _say(names[COMMAND], str(error))
        return error.exit_status
    except UnicodeEncodeError:  # octets of the command line, of which there may be a password
        _say(names[COMMAND], "a name or a text that was given is not UTF-8")
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:  # of a file, or of the standard output, which has no name
        if error.filename is None:
            _stop_writing()
        _say(names[COMMAND], f"{error.filename or 'standard output'}: {error.strerror or error}")
        return 1
    return status or 0


def _say(command: str, text: str) -> None:
    print(f"{command}: {escaped(text)}", file=sys.stderr)


def _text_of(error: click.UsageError) -> str:
    """What is wrong, as a part of one line."""
    if isinstance(error, NoSuchOption) and error.ctx and isinstance(error.ctx.command, click.Group):
        return f"No such option '{error.option_name}' here: options stand behind the whole command"
    text = error.format_message()
    for given in ("No such command", "No such option"):
        text = text.replace(f"{given}: ", f"{given} ", 1)
    return " ".join(text.split()).rstrip(".")


def _stop_writing() -> None:
    """Let what is still in the buffer of the standard output go: the interpreter would fail to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complete(instruction: str) -> int:
    from qq.cli.completing import answer  # noqa: PLC0415 -- once for each key that a user presses, but only then

    return answer(instruction)
