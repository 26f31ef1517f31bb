"""`qq doctor`: shows problems and limits of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import with_node, with_output_and_json
from qq.cli.terminal.escaping import escaped
from qq.cli.terminal.output import print_answer, print_lines
from qq.diagnosis.findings import Severity, lines_of

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote

_COLUMNS = ("severity", "code", "subject", "text", "advice", "since")
_INFO = Severity.INFO.value


@click.command("doctor")
@with_node
@with_output_and_json
def doctor_command(node: Remote, *, form: str) -> int:
    """Show problems and limits of the cluster, with advice. The first line is the verdict.

    The exit status is 1 if an operator should act.
    """
    answer = node.get("/api/doctor")
    try:
        lines = list(map(escaped, lines_of(answer)))
        is_calm = all(each["severity"] == _INFO for each in answer["findings"])
    except (KeyError, TypeError, AttributeError):
        raise node.foreign_answer() from None
    print_answer(form, answer, "findings", _COLUMNS, lambda: print_lines(lines))
    return 0 if is_calm else 1
