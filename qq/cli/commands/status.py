"""`qq status`: shows the cluster as the asked node sees it, and whether it is well."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from qq.cli.options import with_node, with_output_and_json
from qq.cli.terminal.escaping import escaped
from qq.cli.terminal.output import cell, duration, print_answer, print_cells, print_lines
from qq.cli.terminal.progress import Wait
from qq.diagnosis.words import size
from qq.errors import CommandError
from qq.management.nodes.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.cli.client.remote import Remote

_SUFFIX = re.compile("_(index|bytes|ms)$")
_COLUMNS = ("name", "state", "lag", "disk_free_bytes", "alarm", "clients", "uptime_ms", "release")
"""Columns of the table. Lag, clients, uptime and release do not come from `/api/cluster` itself."""
_WIDE_COLUMNS = (
    "name",
    "state",
    "role",
    "standing",
    "term",
    "first_index",
    "last_index",
    "commit_index",
    "applied_index",
    "checkpoint_index",
    "disk_free_bytes",
    "alarm",
    "clock_offset_ms",
    "versions",
    "drained",
)


@click.command("status")
@click.option("--wide", is_flag=True, help="Show roles, versions and the indexes of the log instead.")
@with_node
@with_output_and_json
def status_command(node: Remote, *, form: str, wide: bool) -> int:
    """Show the cluster as the asked node sees it. The first line and the exit status say whether all is well."""
    answer = _cluster(node)
    columns = _WIDE_COLUMNS if wide else _COLUMNS
    try:
        verdict = judge(answer)
        view = f"cluster {answer['cluster']}, version {answer['version']} of the state, as {answer['node']} sees it"
        nodes = answer["nodes"]
        if form == "table":
            shown = nodes if wide else _with_reports(nodes, _reports(node))
            rows = [[_cell(column, each[column]) for column in columns] for each in shown]
        else:
            rows = []
    except (KeyError, TypeError, AttributeError):
        raise node.foreign_answer() from None

    def show() -> None:
        print_lines([escaped(verdict.text), escaped(view)])
        print_cells([_SUFFIX.sub("", column).replace("_", " ") for column in columns], rows, fits=not wide)

    print_answer(form, answer, "nodes", _WIDE_COLUMNS, show)
    return 0 if verdict.is_well else 1


def _cluster(node: Remote) -> dict[str, Any]:
    """Return the state of the cluster. A node that cannot answer yet says why at once, without a login."""
    reason = node.why_not_ready()
    try:
        return node.get("/api/cluster", wait=Wait("an answer", reason or ""))
    except CommandError as error:
        if reason is None:
            raise
        raise CommandError(f"{node.url}: {reason}; so it does not answer more: {error}") from None


def _reports(node: Remote) -> dict[str, dict[str, Any]]:
    """Return the reports of nodes about themselves, by name; without those that the node cannot get."""
    try:
        return {each["name"]: each for each in node.get_list("/api/nodes")}
    except CommandError:
        return {}


def _with_reports(
    nodes: Sequence[dict[str, Any]], reports: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the nodes with their lag behind the newest known entry, and with the facts of their reports."""
    newest = max((each["commit_index"] or 0 for each in nodes), default=0)
    shown: list[dict[str, Any]] = []
    for each in nodes:
        report, applied = reports.get(each["name"], {}), each["applied_index"]
        programs = report.get("applications") or [{}]
        shown.append(
            {
                **each,
                "lag": None if applied is None else max(0, newest - applied),
                "clients": report.get("sockets_used"),
                "uptime_ms": report.get("uptime"),
                "release": programs[0].get("version") or None,
            }
        )
    return shown


def _cell(column: str, value: Any) -> str:
    if value is not None and column.endswith("_bytes"):
        return size(value)
    if value is not None and column == "uptime_ms":
        return duration(value)
    if value is not None and column.endswith("_ms"):
        return f"{value / 1000:,.1f} s"
    return cell(value)
