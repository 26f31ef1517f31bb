"""The output of commands: tables that fit the terminal, escaped names, readable times and sizes."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pika
import pytest
from rich.cells import cell_len

from qq.amqp10.performatives import FlowFrame
from qq.cli.terminal import output
from tests.amqp10_server.socket_client import SocketClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Said

    from qq.testing import ClusterNode

    Qq = Callable[..., Said]
    Printed = Callable[..., list[str]]

HOSTILE = "\x1b]0;owned\x07\u202e"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Print rows on a terminal, and return the lines."""

    def printed(*arguments: Any, width: int = 30, **options: Any) -> list[str]:
        terminal = Terminal()
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("LINES", "24")  # a dumb terminal has a width for Rich only if it has a height, too
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr(sys, "stdout", terminal)
        output.print_rows(*arguments, **options)
        return terminal.getvalue().splitlines()

    return printed


HEAD = ("name", "state", "address")
ROWS = [{"name": "n" * 12, "state": "ready", "address": "10.0.0.1:25672"}]


@pytest.mark.parametrize(("width", "count"), [(35, 3), (34, 2), (19, 2), (18, 1), (1, 1)])
def test_columns_without_room_are_left_out(width: int, count: int) -> None:
    widths = output.widths_that_fit(HEAD, [list(ROWS[0].values())], width)
    assert len(widths) == count
    assert sum(widths) + 2 * (count - 1) <= width


LONG = ("n" * 255, "顧" * 85, "\x00" * 127, "e\u0301" * 80)


@pytest.mark.parametrize("name", LONG, ids=["ascii", "cjk", "control", "combining"])
@pytest.mark.parametrize("width", [30, 80, 200])
def test_table_of_long_names_fits_the_terminal(printed: Printed, name: str, width: int) -> None:
    rows = [{"vhost": name, "name": name, "ready": 12, "unacked": 3, "state": "running"}] * 600
    lines = printed("table", rows, tuple(rows[0]), width=width)
    assert max(map(cell_len, lines)) <= width
    assert lines[0].split()[: 2 if width == 30 else 4] == (
        ["vhost"] if width == 30 else ["vhost", "name", "ready", "unacked"]
    )
    assert sum(line.count(output.escaped(name)[:1]) for line in lines) >= 600


def test_long_names_in_a_file_are_whole_and_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_rows("table", [{"name": "顧" * 85, "n": 1}, {"name": "n" * 255, "n": 2}], ("name", "n"))
    _, cjk, ascii_only = capsys.readouterr().out.splitlines()
    assert cell_len(cjk) == cell_len(ascii_only) == 258


def test_narrow_terminal_names_the_columns_left_out(printed: Printed) -> None:
    lines = printed("table", ROWS, HEAD)
    assert lines[0].split() == ["name", "state"]
    assert " ".join(lines[2:]).startswith("(no room for: address;")
    assert max(map(len, lines)) <= 30


def test_requested_columns_are_never_left_out(printed: Printed) -> None:
    assert printed("table", ROWS, HEAD, fits=False)[0].split() == list(HEAD)


def test_csv_on_a_terminal_escapes_control_characters(printed: Printed) -> None:
    lines = printed("csv", [{"name": HOSTILE}, {"name": [HOSTILE]}], ["name"])
    assert lines[1] == r"\x1b]0;owned\x07\u202e"
    assert all(line.isprintable() for line in lines)


def test_csv_in_a_file_has_unescaped_names(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_rows("csv", [{"name": HOSTILE}], ["name"])
    assert HOSTILE in capsys.readouterr().out


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0s"), (59_900, "59s"), (61_000, "1m 1s"), (3_660_000, "1h 1m"), (90_000_000, "1d 1h")],
)
def test_durations_are_written_for_people(milliseconds: int, text: str) -> None:
    assert output.duration(milliseconds) == text


@pytest.mark.parametrize("command", [("status",), ("member", "list"), ("list", "queues"), ("list", "nodes")])
def test_usual_tables_fit_80_columns(qq: Qq, command: tuple[str, ...]) -> None:
    assert qq("declare", "queue", "--name", "orders.of.customers", "--type", "quorum").status == 0
    lines = qq(*command).lines
    width = max(map(len, lines if command != ("member", "list") else [line[:60] for line in lines[1:]]))
    assert width <= 80, lines


def test_status_shows_clients_uptime_and_release(qq: Qq) -> None:
    *_, head, row = qq("status").lines
    assert head.split() == ["name", "state", "lag", "disk", "free", "alarm", "clients", "uptime", "release"]
    name, state, lag, _, _, alarm, clients, *uptime, release = row.split()
    assert (name, state, lag, alarm, clients) == ("n1", "leader", "0", "no", "0")
    assert uptime
    assert release == "0.2.0"
    assert "checkpoint" in qq("status", "--wide").lines[2]


def test_clients_are_listed_with_their_connection_names(qq: Qq, real_node: ClusterNode) -> None:
    parameters = pika.URLParameters(f"{real_node.url}?heartbeat=0")
    parameters.client_properties = {"connection_name": "worker 7"}
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("of.worker", auto_delete=True)
    channel.basic_consume("of.worker", print)
    for kind, column in (
        ("connections", "user_provided_name"),
        ("channels", "connection_details.user_provided_name"),
        ("consumers", "channel_details.user_provided_name"),
    ):
        lines = qq("list", kind).lines
        assert "client" in lines[0].split(), kind
        assert any("worker 7" in line for line in lines[1:]), kind
        (row,) = json.loads(qq("list", kind, "--columns", column, "-o", "json").output)
        assert "worker 7" in json.dumps(row)
    assert "worker 7" in qq("top", "connections", "--once").output
    connection.close()


def test_sessions_and_links_of_amqp10_are_listed(qq: Qq, real_node: ClusterNode) -> None:
    assert qq("declare", "queue", "--name", "linked").status == 0
    with SocketClient(real_node.amqp_port) as client:
        client.open()
        window = client.begin(3).incoming_window
        given = client.attach_sender(None, 0, 3).link_credit
        client.attach_receiver("linked", 1, 3)
        client.credit(7, 1, 3, echo=True)
        client.until(FlowFrame)
        columns = "name,protocol,container_id"
        (row,) = json.loads(qq("list", "connections", "--columns", columns, "-o", "json").output)
        assert (row["protocol"], row["container_id"]) == ("AMQP 1-0", "client")
        head, *links = qq("list", "links", "--sort", "link_credit").lines
        assert head.split()[:5] == ["client", "link", "role", "address", "credit"]
        assert [line.split()[4:6] for line in links] == [["/queues/linked", "7"], ['""', str(given)]]
        head, session = qq("list", "sessions", "--connection", row["name"]).lines
        assert head.startswith("session  incoming window  client's window")
        assert session.split() == ["3", str(window), "10000", "0", "0", "0", "1", "1"]
    connection = pika.BlockingConnection(pika.URLParameters(f"{real_node.url}?heartbeat=0"))
    connection.channel()
    assert len(qq("list", "links").lines) == 1
    (row,) = json.loads(qq("list", "connections", "-o", "json").output)
    assert row["protocol"] == "AMQP 0-9-1"
    refused = qq("list", "sessions", "--connection", row["name"])
    assert (refused.status, "does not use AMQP 1.0" in refused.errors) == (1, True)
    connection.close()
    missing = qq("list", "sessions", "--connection", "nosuch")
    assert "there is no connection 'nosuch'" in missing.errors
    assert qq("delete", "queue", "--name", "linked").status == 0


def test_permissions_are_listed_by_user(qq: Qq) -> None:
    assert qq("declare", "vhost", "--name", "other").status == 0
    assert len(qq("list", "permissions", "--for-user", "guest").lines) == 3
    assert len(qq("list", "permissions", "--for-user", "guest", "--vhost", "other").lines) == 2
    assert qq("list", "permissions", "--for-user", "nosuch").status == 1
    assert qq("delete", "vhost", "--name", "other").status == 0


def test_shovels_are_listed(qq: Qq) -> None:
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://127.0.0.1:1", "dest-queue": "b"}
    shovel = "--component", "shovel", "--name", "mover"
    assert qq("declare", "parameter", *shovel, "--value", json.dumps(value)).status == 0
    head, row = qq("list", "shovels").lines
    assert head.split()[:3] == ["vhost", "name", "state"]
    assert row.split()[:2] == ["/", "mover"]
    assert qq("delete", "parameter", *shovel).status == 0


def test_ready_check_needs_no_login_and_waits(qq: Qq) -> None:
    assert qq("check", "ready", "--user", "nosuch", "--password", "x")[:2] == (0, "it serves clients\n")
    status, printed, _ = qq("check", "ready", "--wait", "0.2", "--url", "127.0.0.1:1")
    assert status == 1
    assert "cannot connect" in printed


def test_memory_of_a_node_is_shown_by_kind(qq: Qq) -> None:
    head, *rows, total = qq("memory", "--node", "n1").lines
    assert head.split() == ["kind", "bytes", "share", "contents"]
    assert {row.split()[0] for row in rows} >= {"code", "binary", "connection_writers", "other_system"}
    assert total.split()[0] == "total"
    assert "100.0 %" in total
    found = json.loads(qq("memory", "--output", "json").output)
    assert sum(each["bytes"] for each in found[:-1]) == found[-1]["bytes"]
    assert qq("memory", "--node", "n9").errors == "qq memory: there is no node n9\n"
