"""Commands that change a running cluster, or check whether it may be changed, at a stub node in a process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from qq.cli import main
from qq.cli.local_files import local_nodes, prepare
from qq.cli.terminal import progress
from tests.cli.processes import Qq, started

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    RunQq = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node(tmp_path: Path, base_port: int) -> Generator[Qq]:
    """The requested node, whose output lists the requests."""
    nodes = local_nodes(tmp_path, 3, base_port)
    prepare(tmp_path, nodes, fresh=False)
    with started(tmp_path, "serve", "--config", str(nodes[0].config), STUB_LEADER="n2") as node:
        node.until_line("n1 serves")
        yield node


@pytest.fixture
def url(base_port: int) -> str:
    return f"http://127.0.0.1:{base_port + 10000}"


@pytest.fixture
def run_qq(node: Qq, url: str, called: Callable[..., tuple[int, str, str]]) -> RunQq:
    """Call a command of a node that runs; it returns the exit status, the output and the errors."""

    def run_qq(*arguments: str) -> tuple[int, str, str]:
        status, output, errors = called(*arguments, "--http", url)
        return status, output, errors.replace(url, "URL")

    return run_qq


@pytest.fixture
def after_a_second(run_qq: RunQq, monkeypatch: pytest.MonkeyPatch) -> None:
    """Print the reason of a wait after a second."""
    monkeypatch.setattr(progress, "NOTICE_S", 1.0)


def test_command_prints_its_result_on_a_single_line(run_qq: RunQq) -> None:
    assert run_qq("leader", "show") == (0, "n2\n", "")
    assert run_qq("leader", "transfer") == (0, "n2 leads\n", "")
    assert run_qq("leader", "transfer", "--to", "n1") == (0, "n1 leads\n", "")
    assert run_qq("check", "safe-to-stop") == (0, "n1 it is\n", "")
    assert run_qq("check", "safe-to-stop", "--node", "n/3") == (1, "n/3 it is\n", "")


@pytest.mark.usefixtures("after_a_second")
def test_check_waits_until_a_node_is_safe_to_stop(run_qq: RunQq) -> None:
    status, output, errors = run_qq("check", "safe-to-stop", "--node", "n5", "--timeout", "60")
    assert (status, output) == (0, "n5 it is\n")
    assert errors.startswith("waiting for the others to go on without it (1 s): n5 it is\n")
    assert run_qq("check", "safe-to-stop", "--node", "n3", "--timeout", "0.6")[:2] == (1, "n3 it is\n")


def test_a_node_that_does_not_answer_is_not_waited_for(run_qq: RunQq, node: Qq) -> None:
    node.process.kill()
    node.exit_status()
    status, output, errors = run_qq("check", "safe-to-stop", "--timeout", "600")
    assert (status, output) == (1, "")
    address = "/api/health/checks/safe-to-stop: cannot connect to 127.0.0.1:"
    assert errors.startswith(f"qq check safe-to-stop: URL{address}")
    assert errors.endswith(" (Connection refused); start the node, or name another node with --url\n")


@pytest.mark.usefixtures("node")
def test_the_scheme_of_the_url_may_be_left_out(tmp_path: Path, url: str) -> None:
    with started(tmp_path, "leader", "show", "--http", url.removeprefix("http://")) as qq:
        assert (qq.exit_status(), qq.output) == (0, "n2\n")


@pytest.mark.usefixtures("after_a_second")
def test_wait_above_a_second_is_reported_with_its_reason(run_qq: RunQq) -> None:
    assert run_qq("leader", "transfer", "--to", "n3") == (
        0,
        "n3 leads\n",
        "waiting for n3 to lead (1 s): URL has not answered yet\n",
    )
    silent = "waiting for n7 to come (1 s): URL has not answered yet\n"
    assert run_qq("member", "add", "n7", "h:7", "--no-wait")[2].startswith(silent)


def test_transfer_is_retried_until_its_timeout(run_qq: RunQq) -> None:
    why = "n5 has not taken over"
    failed = f"qq leader transfer: URL/api/cluster/leader: {why}\n"
    assert run_qq("leader", "transfer", "--to", "n5") == (1, "", failed)
    assert run_qq("leader", "transfer", "--to", "n5", "--timeout", "60")[:2] == (0, "n5 leads\n")
    status, _, errors = run_qq("leader", "transfer", "--timeout", "60")
    needed = "--timeout needs --to: without it each try moves leadership on (see `qq leader transfer --help`)"
    assert (status, errors) == (2, f"qq leader transfer: {needed}\n")


def test_refusal_is_printed_on_a_single_line_with_its_reason(run_qq: RunQq) -> None:
    reason = "qq leader transfer: URL/api/cluster/leader: 'n9' is no node of this cluster\n"
    assert run_qq("leader", "transfer", "--to", "n9") == (1, "", reason)
    refused = "qq check safe-to-stop: URL/api/health/checks/safe-to-stop: login of 'eve' was refused\n"
    assert run_qq("check", "safe-to-stop", "--user", "eve") == (1, "", refused)
    meant = "qq leader: No such command 'shwo'. Did you mean 'show'? (see `qq leader --help`)\n"
    assert run_qq("leader", "shwo") == (2, "", meant)


def test_leader_show_fails_when_no_leader_is_known(
    tmp_path: Path, base_port: int, url: str, called: Callable[..., tuple[int, str, str]]
) -> None:
    nodes = local_nodes(tmp_path, 1, base_port)
    prepare(tmp_path, nodes, fresh=False)
    with started(tmp_path, "serve", "--config", str(nodes[0].config)) as node:
        node.until_line("n1 serves")
        status, _, errors = called("leader", "show", "--http", url)
        assert status == 1
        assert errors.startswith(f"qq leader show: {url}: no leader is known")


def test_the_members_are_a_table_or_the_answer_itself(run_qq: RunQq) -> None:
    assert run_qq("member", "list") == (
        0,
        (
            f"cluster qq ({'cc' * 16}), version 8 of the state, as n1 sees it\n"
            "name  state     role     lag  drained  address  versions  id\n"
            f"n1    leader    voter    0    no       h1:1     7 to 8    {'aa' * 16}\n"
            "n2    down      awaited  -    yes      h2:2     -         -\n"
            f"n8    follower  learner  9    no       h8:8     -         {'dd' * 16}\n"
        ),
        "",
    )
    assert json.loads(run_qq("member", "list", "--json")[1])["members"][1]["role"] == "awaited"


def test_a_change_names_the_directory_that_the_list_shows(run_qq: RunQq, node: Qq) -> None:
    def requested(*arguments: str) -> tuple[tuple[int, str, str], list[str]]:
        before = len(node.output)
        return run_qq(*arguments), node.output[before:].splitlines()

    removed = (0, "n2 is no member: do not start it again with its data directory\n", "")
    assert requested("member", "remove", "n2") == (removed, ["REMOVE n2 b''  0"])
    removed = (0, removed[1].replace("n2", "n3"), "")
    assert requested("member", "remove", "n3") == (removed, []), "it was removed before"
    known = "the members are n1, n2, n8"
    assert requested("member", "remove", "n9") == (
        (1, "", f"qq member remove: there is no member 'n9'; {known}\n"),
        [],
    )
    assert requested("member", "replace", "n9")[0][2].endswith(f"'n9'; {known}\n")
    directory = bytes.fromhex("aa" * 16)
    assert requested("member", "replace", "n1") == (
        (0, "n1 votes\n", ""),
        [f"REPLACE n1 {directory}  0", "PROMOTE n1 b''  0"],
    )
    awaited = (0, "n2 is awaited: start it with an empty data directory and `qq serve --join`\n", "")
    assert requested("member", "replace", "n2", "--no-wait") == (awaited, [])
    given = (0, "n8 is there with another data directory, and is given the log\n", "")
    assert requested("member", "replace", "n8", "--no-wait") == (given, []), "it has been taken in again"
    assert requested("member", "replace", "n8") == ((0, "n8 votes\n", ""), ["PROMOTE n8 b''  0"])
    added = ["ADD n4 b'' ::1 7", "PROMOTE n4 b''  0"]
    assert requested("member", "add", "n4", "[::1]:7") == ((0, "n4 votes\n", ""), added)
    assert requested("member", "add", "n4", "h:7", "--no-wait") == (
        (0, awaited[1].replace("n2", "n4"), ""),
        ["ADD n4 b'' h 7"],
    )
    assert requested("member", "promote", "n4") == ((0, "n4 votes\n", ""), added[1:])
    drained = (0, "n1 is under maintenance: it leads nothing and has no clients\n", "")
    assert requested("drain") == (drained, ["DRAIN n1 b''  0"])
    assert requested("revive", "n2") == ((0, "n2 is under maintenance no more\n", ""), ["REVIVE n2 b''  0"])
    finished = (0, "the cluster runs version 8 of the state\n", "")
    assert requested("upgrade", "finish") == (finished, ["FINISH_UPGRADE  b''  0"])


def test_unfinished_change_is_retried_until_the_timeout(run_qq: RunQq) -> None:
    assert run_qq("member", "promote", "n5", "--timeout", "0") == (
        1,
        "",
        "qq member promote: URL/api/cluster/members/n5/promote: n5 has not come yet\n",
    )
    assert run_qq("member", "promote", "n5") == (0, "n5 votes\n", "")


def test_refused_change_is_not_retried(run_qq: RunQq) -> None:
    refused = "qq drain: URL/api/cluster/members/n6/drain: n6 stays a voter\n"
    assert run_qq("drain", "n6") == (1, "", refused)


def test_removal_of_the_requested_node_itself_is_explained(run_qq: RunQq) -> None:
    status, _, errors = run_qq("member", "remove", "n1")
    assert status == 1
    assert "it is the node that was asked, and stops then: ask another node whether it is removed" in errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["member"],
        ["upgrade"],
        ["member", "add", "n4"],
        ["member", "add", "n4", "h"],
        ["drain", "--timeout", "-1"],
        ["drain", ""],
        ["member", "promote", ""],
        ["check", "safe-to-stop", "--node", ""],
        ["leader", "transfer", "--to", ""],
        ["leader", "transfer", "--timeout", "1"],
        ["leader", "show", "--http", "nonsense"],
        ["leader", "show", "--http", "n1:99999"],
        ["leader", "show", "--http", "http://n1:99999"],
        ["leader", "show", "--http", "http://n 1:15672"],
        ["leader", "show", "--http", "http://"],
        ["backup", "x", "--http", "ftp://n1"],
        ["inspect", "x", "--from", "1"],
        ["inspect", "x", "--to", "1"],
        ["serve", "--config", "x", "--join", "h"],
    ],
)
def test_wrong_options_are_reported(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    run_qq = capsys.readouterr().err
    assert run_qq.startswith(("Usage: qq ", "qq "))
    assert run_qq.startswith("Usage: ") or run_qq.count("\n") == 1
