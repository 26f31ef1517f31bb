"""`qq status`: shows the cluster as the asked node sees it, and whether it is well."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cluster.configuration.quorum import is_majority
from qq.cli.options import with_node, with_output_and_json
from qq.cli.terminal.escaping import escaped
from qq.cli.terminal.output import cell, duration, print_answer, print_cells
from qq.cli.terminal.progress import Wait
from qq.diagnosis.member_rules import unlinked
from qq.diagnosis.words import size
from qq.errors import CommandError

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
_DOWN = "down"


class Health(NamedTuple):
    """Whether the cluster is well, and a line that says so or lists the problems."""

    is_well: bool
    text: str


@click.command("status")
@click.option("--wide", is_flag=True, help="Show roles, versions and the indexes of the log instead.")
@with_output_and_json
@with_node
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
        print(escaped(verdict.text))
        print(escaped(view))
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


def judge(answer: dict[str, Any]) -> Health:
    """Judge the health of the cluster from an answer of `/api/cluster`."""
    from cluster.membership.health import FULL_BYTES  # noqa: PLC0415 -- large

    nodes, leader = answer["nodes"], answer["leader"]
    voters = [each for each in nodes if each["role"] in ("voter", None)]
    silent = [each["name"] for each in nodes if each["state"] == _DOWN and each["role"] != "awaited"]
    connected = [
        each["name"] for each in voters if each["state"] != _DOWN and each["standing"] in ("voter", None)
    ]
    # The leader may reach nodes that the asked node does not. A former leader may still believe that it leads.
    others = [name for name in connected if name != answer["node"]]
    sees_majority = is_majority(len(connected), len(voters))
    if not sees_majority and leader not in others:
        return Health(False, f"no majority: {'; '.join(_troubles(nodes, silent))}")
    if leader is None and (hear_leader := [each["name"] for each in nodes if _hears_leader(each)]):
        troubles = "; ".join([f"{_names(hear_leader)} can tell who leads", *_troubles(nodes, silent)])
        return Health(False, f"{answer['node']} hears no leader, so its clients wait: {troubles}")
    if leader is None:
        return Health(
            False, f"nobody leads: {_names(connected)} elect a leader, which takes a moment; ask again"
        )
    troubles = _troubles(nodes, silent)
    full = [each["name"] for each in voters if each["alarm"] and each["disk_free_bytes"] < FULL_BYTES]
    hanging = _hanging(voters)
    if sees_majority and not is_majority(len(set(connected).difference(full, hanging)), len(voters)):
        why = f"the disks of {_names(full)} are full; " if full else ""
        return Health(False, f"nothing is confirmed: {why}{'; '.join(troubles)}")
    drained = [each["name"] for each in nodes if each["drained"]]
    if set(connected) <= set(drained):
        why = [*troubles, f"under maintenance: {_names(drained)} (`qq revive` ends that)"]
        return Health(False, f"nobody serves clients: {'; '.join(why)}")
    note = f"; under maintenance: {_names(drained)}" if drained else ""
    if troubles:
        return Health(False, f"not well: {'; '.join(troubles)}; {leader} leads{note}")
    return Health(True, f"all well: {len(nodes)} of {len(nodes)} members, {leader} leads{note}")


def _troubles(nodes: Sequence[dict[str, Any]], silent: Sequence[str]) -> list[str]:
    """Return the problems that do not stop the cluster."""
    alarmed = [each["name"] for each in nodes if each["alarm"]]
    awaited = [each["name"] for each in nodes if each["role"] == "awaited"]
    lagging = [
        each["name"]
        for each in nodes
        if each["name"] not in (*silent, *awaited)
        and (each["role"] == "learner" or each["standing"] in ("learner", "blank"))
    ]
    found = [
        (alarmed, "publishers wait, for want of disk or memory of"),
        (awaited, "has not come yet:"),
        (lagging, "is being given the log:"),
        (_hanging(nodes), "has a disk that does not answer:"),
    ]
    texts = [f"{text} {_names(names)}" for names, text in found if names]
    # Nodes of earlier releases do not report their missing links.
    misses = {each["name"]: each.get("misses") or () for each in nodes if each["state"] != _DOWN}
    texts += [f"{one} and {other} have no link" for one, other in unlinked(misses)]
    return [f"{_names(silent)} {_verb(silent)}", *texts] if silent else texts


def _hanging(nodes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of nodes whose disks hang; nodes of earlier releases do not report this."""
    return [each["name"] for each in nodes if each.get("disk_hangs") and each["state"] != _DOWN]


def _hears_leader(node: dict[str, Any]) -> bool:
    """Return whether a node hears the leader; nodes of earlier releases do not report this."""
    return node["state"] != _DOWN and bool(node.get("hears_leader"))


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


def _verb(names: Sequence[str]) -> str:
    return "does not answer" if len(names) == 1 else "do not answer"


def _cell(column: str, value: Any) -> str:
    if value is not None and column.endswith("_bytes"):
        return size(value)
    if value is not None and column == "uptime_ms":
        return duration(value)
    if value is not None and column.endswith("_ms"):
        return f"{value / 1000:,.1f} s"
    return cell(value)
