"""`qq list`, `qq declare`, `qq delete` and those beside them, at a real node: names of any kind, forms, repetitions."""

from __future__ import annotations

import csv
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from qq.cli import listing
from qq.cli.client.remote import Remote

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from conftest import Said

    from qq.testing import ClusterNode

    Qq = Callable[..., Said]

NAMES = [
    "a/b",
    "-x",
    "--help",
    ".",
    "..",
    "%2F",
    "é ☃",
    "q?a=1&b#c",
    "\x1b[31mred\t\x07",
    "\u202eltr",
    'a,"b"',
    "x" * 255,
]


@pytest.fixture
def vhost(qq: Qq) -> Generator[str]:
    """A virtual host for the test, whose name must be quoted everywhere."""
    name = "v/ ö%2F"
    assert qq("declare", "vhost", "--name", name).status == 0
    yield name
    assert qq("delete", "vhost", "--name", name, "--idempotently").status == 0


def documents(qq: Qq, *arguments: str) -> list[dict[str, Any]]:
    result = qq(*arguments, "--output", "json")
    assert (result.status, result.errors) == (0, "")
    return json.loads(result.output)


@pytest.mark.parametrize("name", NAMES)
def test_queue_with_any_name_is_declared_twice_and_deleted_once(qq: Qq, vhost: str, name: str) -> None:
    declared = "declare", "queue", f"--name={name}", "--vhost", vhost, "--type", "quorum"
    assert qq(*declared).output.endswith(": made\n")
    assert qq(*declared).output.endswith(": is as wanted\n")
    (found,) = documents(qq, "list", "queues", "--vhost", vhost, "--columns", "name,type")
    assert found == {"name": name, "type": "quorum"}
    result = qq("list", "queues", "--vhost", vhost, "--columns", "name", "-o", "csv")
    assert list(csv.reader(io.StringIO(result.output, newline=""))) == [["name"], [name]]
    head, *rows = qq("list", "queues", "--vhost", vhost, "--columns", "name").lines
    assert (head, len(rows)) == ("name", 1)
    assert rows[0].isprintable()
    deleted = "delete", "queue", f"--name={name}", "--vhost", vhost
    assert qq(*deleted, "--if-empty", "--if-unused").output.endswith(": removed\n")
    status, output, errors = qq(*deleted)
    assert (status, output) == (1, "")
    assert errors.startswith("qq delete queue: there is no queue '")
    assert (errors.count("\n"), errors.rstrip("\n").isprintable()) == (1, True)
    assert qq(*deleted, "--idempotently").output.endswith(": is not there\n")


def test_conflicting_declare_prints_a_single_error_line(qq: Qq, vhost: str) -> None:
    assert qq("declare", "queue", "--name", "q", "--vhost", vhost).status == 0
    status, output, errors = qq("declare", "queue", "--name", "q", "--vhost", vhost, "--type", "quorum")
    assert (status, output, errors.count("\n")) == (1, "", 1)
    assert "inequivalent arg 'x-queue-type'" in errors
    status, _, errors = qq(
        "declare", "parameter", "--component", "federation", "--name", "s", "--value", "{}"
    )
    assert (status, errors.count("\n")) == (1, 1)
    assert "component federation not found" in errors


def test_bindings_are_selected_by_key_and_arguments(qq: Qq, vhost: str) -> None:
    here = "--vhost", vhost
    assert qq("declare", "exchange", "--name", "e/1", *here, "--type", "headers").status == 0
    assert qq("declare", "queue", "--name", "..", *here).status == 0
    ends = "--source", "e/1", "--destination", "..", "--routing-key", "~ /"
    arguments = '{"x-match": "all", "a": 1}'
    assert qq("declare", "binding", *here, *ends).status == 0
    assert qq("declare", "binding", *here, *ends, "--arguments", arguments).status == 0
    to_exchange = "--source", "e/1", "--destination", "e/1", "--destination-type", "exchange"
    assert qq("declare", "binding", *here, *to_exchange).status == 0

    def keys() -> list[tuple[str, str, int]]:
        found = documents(qq, "list", "bindings", *here)
        return [(each["source"], each["routing_key"], len(each["arguments"])) for each in found]

    of_default = ("", "..", 0)
    made = [("e/1", "", 0), ("e/1", "~ /", 0), ("e/1", "~ /", 2)]
    assert sorted(keys()) == [of_default, *made]
    assert qq("delete", "binding", *here, *ends, "--arguments", '{"a": 2}').status == 1
    assert qq("delete", "binding", *here, *ends, "--arguments", arguments).status == 0
    assert qq("delete", "binding", *here, *ends).status == 0
    assert qq("delete", "binding", *here, *ends, "--idempotently").status == 0
    assert keys() == [of_default, made[0]]


def test_everything_that_is_declared_is_listed_and_deleted(qq: Qq, vhost: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p4ss\n")
    user = "u/ü"
    here, of_user = ("--vhost", vhost), ("--for-user", user)
    assert (
        qq(
            "declare", "user", "--name", user, "--tags", "monitoring,x", "--new-password-file", str(secret)
        ).status
        == 0
    )
    made = [
        ("permissions", ("permission", *here, *of_user), ("--configure", "", "--write", "a", "--read", ".*")),
        (
            "topic-permissions",
            ("topic-permission", *here, *of_user),
            ("--exchange", "amq.topic", "--write", "", "--read", ""),
        ),
        (
            "policies",
            ("policy", *here, "--name", "p/1"),
            ("--pattern", "^a", "--definition", '{"max-length": 1}'),
        ),
        (
            "operator-policies",
            ("operator-policy", *here, "--name", "p"),
            ("--pattern", "", "--definition", '{"max-length": 1}'),
        ),
        ("limits", ("vhost-limit", *here, "--name", "max-queues"), ("--value", "3")),
        ("limits", ("user-limit", *of_user, "--name", "max-channels"), ("--value", "4")),
        ("global-parameters", ("global-parameter", "--name", "g/1"), ("--value", '{"a": [1]}')),
    ]
    for kind, names, values in made:
        result = qq("declare", *names, *values)
        assert (result.status, result.errors) == (0, ""), names
        assert qq("declare", *names, *values).status == 0
        assert documents(qq, "list", kind)
    assert [row["value"] for row in documents(qq, "list", "limits", *here)] == [3]
    assert [row["limit"] for row in documents(qq, "list", "limits", *of_user)] == ["max-channels"]
    assert len(documents(qq, "list", "limits")) == 2
    (permission,) = documents(qq, "list", "permissions", *here, "--columns", "user,configure,write,read")[-1:]
    assert permission == {"user": user, "configure": "", "write": "a", "read": ".*"}
    for _, names, _ in made:
        assert qq("delete", *names).status == 0
        # RabbitMQ reports no error for missing limits.
        is_limit = names[0].endswith("-limit")
        assert qq("delete", *names).status == (0 if is_limit else 1)
    assert documents(qq, "list", "limits") == []
    assert qq("delete", "user", "--name", user).status == 0


def test_administrator_changes_its_own_password(qq: Qq, tmp_path: Path) -> None:
    """The login of the command is refused after the change."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("old\n")
    new.write_text("new\n")
    made = "declare", "user", "--name", "boss", "--tags", "administrator", "--new-password-file"
    assert qq(*made, str(old)).status == 0
    change = qq(*made, str(new), "--user", "boss", "--password-file", str(old))
    assert (change.status, change.output) == (0, "user 'boss': changed\n")
    assert qq("list", "queues", "--user", "boss", "--password-file", str(new)).status == 0
    assert qq("delete", "user", "--name", "boss").status == 0


def test_new_password_is_read_from_a_file_or_standard_input(
    qq: Qq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("first\n")
    other.write_text("sécond\n")
    assert (
        qq("declare", "user", "--name", "app", "--tags", "monitoring", "--new-password-file", str(one)).status
        == 0
    )
    login = "--user", "app", "--password-file"
    assert qq("list", "queues", *login, str(one)).status == 0
    with other.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert qq("change-password", "--name", "app", "--new-password-file", "-").status == 0
    assert "login of 'app' was refused" in qq("list", "queues", *login, str(one)).errors
    assert qq("list", "nodes", *login, str(other)).status == 0
    with (tmp_path / "empty").open("w+") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        for result in (qq("change-password", "--name", "app"), qq("declare", "user", "--name", "eve")):
            assert (result.status, result.errors.count("\n")) == (1, 1)
            assert "give --new-password-file FILE, or - for standard input" in result.errors
        assert (
            "no password in its first line"
            in qq("change-password", "--name", "app", "--new-password-file", "-").errors
        )
    assert qq("change-password", "--name", "nobody", "--new-password-file", str(one)).status == 1
    assert "nobody" not in [each["name"] for each in documents(qq, "list", "users")]
    assert qq("delete", "user", "--name", "app").status == 0


def test_a_list_is_read_as_a_whole_also_with_a_filter(
    qq: Qq, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "FIRST", 3)
    monkeypatch.setattr(listing, "PART_CHARS", 50)
    for number in range(8):
        assert qq("declare", "queue", "--name", f"q{number}", "--vhost", vhost).status == 0
    here = "list", "queues", "--vhost", vhost, "--columns", "name"
    names = [f"q{number}" for number in range(8)]
    assert qq(*here).lines == ["name", *names]
    assert qq(*here, "--sort", "name", "--reverse").lines == ["name", *reversed(names)]
    assert qq(*here, "--name", "Q").lines == ["name", *names]
    assert qq(*here, "--name", "Q1").lines == ["name", "q1"]
    assert qq(*here, "--regex", "^q[67]$").lines == ["name", "q6", "q7"]
    assert qq(*here, "--name", "none").lines == ["name"]
    assert documents(qq, *here, "--name", "none") == []
    assert [each["name"] for each in documents(qq, "list", "queues", "--vhost", vhost)] == names
    assert [
        row["name"]
        for row in csv.DictReader(io.StringIO(qq("list", "queues", "--vhost", vhost, "-o", "csv").output))
    ] == names


def test_a_list_with_a_filter_is_sorted_once(qq: Qq, vhost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes during the listing neither omit nor repeat a row."""
    pages: list[str | None] = []
    download = Remote.download

    def watched(node: Remote, path: str, media_type: str, query: dict[str, str]) -> Any:
        pages.append(query.get("page"))
        return download(node, path, media_type, query)

    monkeypatch.setattr(Remote, "download", watched)
    for number in range(3):
        assert qq("declare", "queue", "--name", f"q{number}", "--vhost", vhost).status == 0
    here = "list", "queues", "--vhost", vhost, "--columns", "name", "--regex", "^q[12]$", "--sort", "name"
    assert qq(*here, "--reverse").lines == ["name", "q2", "q1"]
    assert pages == ["all"]


def test_unknown_column_is_refused(qq: Qq) -> None:
    status, output, errors = qq("list", "vhosts", "--columns", "name,nonsense")
    assert (status, output) == (1, "")
    assert errors.startswith("qq list vhosts: there is no column 'nonsense'; there are ")
    assert ", name," in errors
    assert qq("list", "vhosts", "--columns", "name,message_stats.publish").status == 0


def test_sort_by_an_unknown_column_is_refused(qq: Qq) -> None:
    status, output, errors = qq("list", "users", "--sort", "nmae")
    assert (status, output) == (1, "")
    assert errors.startswith("qq list users: there is no column 'nmae'; there are ")
    assert ", name," in errors
    assert qq("list", "users", "--sort", "hashing_algorithm").status == 0
    assert qq("list", "vhosts", "--sort", "message_stats.publish").status == 0


def test_definitions_go_out_and_come_in(qq: Qq, vhost: str, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    assert qq("declare", "queue", "--name", "kept", "--vhost", vhost).status == 0
    result = qq("definitions", "export", str(file), "--vhost", vhost)
    assert result.output == f"{file}: {file.stat().st_size:,} bytes of definitions\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(qq("definitions", "export", "-").output)["users"]
    assert qq("delete", "queue", "--name", "kept", "--vhost", vhost).status == 0
    assert qq("definitions", "import", str(file), "--vhost", vhost).status == 0
    assert [each["name"] for each in documents(qq, "list", "queues", "--vhost", vhost)] == ["kept"]
    file.write_text("{")
    assert "failed_to_parse_json" in qq("definitions", "import", str(file)).errors
    before = file.read_text()
    assert qq("definitions", "export", str(file), "--vhost", "nowhere").status == 1
    assert (file.read_text(), list(tmp_path.glob(".definitions*"))) == (before, [])
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(file)
    assert qq("definitions", "export", str(link)).status == 0
    assert (link.is_symlink(), json.loads(file.read_text())["vhosts"] != []) == (True, True)
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as threads:
        read = threads.submit(pipe.read_text)
        assert qq("definitions", "export", str(pipe)).status == 0
        assert json.loads(read.result(30))["vhosts"]
    assert pipe.is_fifo()
    missing = tmp_path / "no" / "file"
    assert qq("definitions", "export", str(missing)).errors.endswith(": No such file or directory\n")


def test_top_prints_once_when_output_is_not_a_terminal(qq: Qq, vhost: str) -> None:
    assert qq("declare", "queue", "--name", "busy", "--vhost", vhost).status == 0
    result = qq("top", "--count", "500")
    assert (result.status, result.lines[0].split()[:3]) == (0, ["vhost", "queue", "ready"])
    assert any("busy" in line for line in result.lines)
    found = json.loads(qq("top", "-o", "json").output)
    assert (list(found), len(found["queues"]) >= 1) == (["queues", "connections"], True)
    assert qq("top", "queues", "-o", "csv").lines[0].startswith("vhost,name,messages_ready,")
    assert qq("top", "-o", "csv").status == 2


@pytest.mark.parametrize("answer", ["", "[", "{}", "[1]", '[{"name": "q"}', '[{"name": "q"}, {"na'])
def test_malformed_list_answer_raises_value_error(answer: str) -> None:
    with pytest.raises(ValueError):
        list(listing._elements(io.StringIO(answer)))


@pytest.mark.parametrize("chars", [1, 2, 7, 1000])
def test_a_list_is_read_in_parts_of_any_length(monkeypatch: pytest.MonkeyPatch, chars: int) -> None:
    monkeypatch.setattr(listing, "PART_CHARS", chars)
    things = [{"name": "a,]}", "n": 1}, {"name": "é\u2028", "inner": [{"b": []}]}, {}]
    for text in (json.dumps(things), json.dumps(things, indent=1), '[{"name": "a,]}", "n": 1},{}]'):
        assert list(listing._elements(io.StringIO(text))) == json.loads(text)
    assert list(listing._elements(io.StringIO("[]"))) == []


def test_declare_says_made_changed_or_as_wanted(qq: Qq, vhost: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("p4ss\n")
    here = "--vhost", vhost
    user = "declare", "user", "--name", "worker", "--no-password"
    policy = "declare", "policy", *here, "--name", "p", "--pattern", ""
    limit = "declare", "vhost-limit", *here, "--name", "max-queues", "--value"
    assert qq("declare", "queue", *here, "--name", "q").status == 0
    binding = "declare", "binding", *here, "--source", "amq.topic", "--destination", "q"
    permission = "declare", "permission", *here, "--for-user", "worker", "--configure", "", "--write", ""
    topic = (
        "declare",
        "topic-permission",
        *here,
        "--for-user",
        "worker",
        "--exchange",
        "amq.topic",
        "--write",
        "",
    )
    steps: list[tuple[tuple[str, ...], str]] = [
        ((*user, "--tags", "monitoring"), "made"),
        ((*user,), "is as wanted"),
        ((*user, "--tags", "management"), "changed"),
        (("declare", "user", "--name", "worker", "--new-password-file", str(password)), "changed"),
        (("change-tags", "--name", "worker", "--tags", "management,x"), "changed"),
        (("change-tags", "--name", "worker", "--tags", "management,x"), "is as wanted"),
        ((*policy, "--definition", '{"max-length": 1}'), "made"),
        ((*policy, "--definition", '{"max-length": 1}'), "is as wanted"),
        ((*policy, "--definition", '{"max-length": 2}'), "changed"),
        ((*limit, "3"), "changed"),
        ((*limit, "3"), "is as wanted"),
        ((*binding,), "made"),
        ((*binding,), "is as wanted"),
        ((*permission, "--read", ""), "made"),
        ((*permission, "--read", ".*"), "changed"),
        ((*topic, "--read", ""), "made"),
        ((*topic, "--read", ".*"), "changed"),
        ((*topic, "--read", ".*"), "is as wanted"),
        (("declare", "vhost", "--name", vhost, "--description", "the shop", "--tags", "a"), "changed"),
        (("declare", "vhost", "--name", vhost), "is as wanted"),
    ]
    for arguments, outcome in steps:
        result = qq(*arguments)
        assert (result.status, result.output.rpartition(": ")[2]) == (0, f"{outcome}\n"), arguments
    (worker,) = documents(qq, "list", "users", "--name", "worker")
    assert worker["tags"] == ["management", "x"]
    assert qq("list", "queues", "--user", "worker", "--password-file", str(password)).status == 0
    (shown,) = [row for row in documents(qq, "list", "vhosts") if row["name"] == vhost]
    assert (shown["description"], shown["tags"]) == ("the shop", ["a"])
    assert qq("delete", "user", "--name", "worker").status == 0


def test_last_administrator_is_neither_deleted_nor_demoted(qq: Qq, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("guest\n")
    declared = qq("declare", "user", "--name", "guest", "--new-password-file", str(password))
    assert declared.output == "user 'guest': changed\n"
    for arguments in (
        ("delete", "user", "--name", "guest"),
        ("change-tags", "--name", "guest", "--tags", ""),
        ("declare", "user", "--name", "guest", "--no-password"),
    ):
        result = qq(*arguments)
        assert (result.status, result.output) == (1, ""), arguments
        assert "the last administrator" in result.errors
    assert qq("list", "users").status == 0


def test_close_connections_prints_the_count(qq: Qq) -> None:
    result = qq("close", "connections", "--for-user", "nosuch")
    assert (result.status, result.output) == (0, "connections of user 'nosuch': 0 closed\n")


def test_tags_without_rights_are_set_with_a_warning(qq: Qq) -> None:
    user = "declare", "user", "--name", "typo", "--no-password"
    made = qq(*user, "--tags", "management,monitorin, team-a")
    assert (made.status, made.output) == (0, "user 'typo': made\n")
    rights = "administrator, monitoring, policymaker, management, impersonator"
    assert made.errors.splitlines() == [
        f"tag 'monitorin' gives no rights, unlike {rights}; did you mean monitoring?",
        f"tag 'team-a' gives no rights, unlike {rights}",
    ]
    assert "'x\\x07'" in qq("change-tags", "--name", "typo", "--tags", "x\x07").errors
    assert qq("change-tags", "--name", "typo", "--tags", "monitoring,").errors == ""
    assert qq("delete", "user", "--name", "typo").status == 0


def test_refusal_in_the_words_of_rabbitmq_is_explained(qq: Qq) -> None:
    policy = "declare", "policy", "--name", "p", "--pattern", ".*", "--definition", '{"max-lenght": 100}'
    refused = qq(*policy)
    assert (refused.status, refused.output) == (1, "")
    assert (
        ": No policy has the setting `max-lenght`. Did you mean `max-length`? (Validation failed "
        in refused.errors
    )
    permission = (
        "declare",
        "permission",
        "--for-user",
        "nosuch",
        "--configure",
        "",
        "--write",
        "",
        "--read",
        "",
    )
    assert "no such user: declare it first. (vhost_or_user_not_found)" in qq(*permission).errors


@pytest.mark.parametrize("group", ["readers", "a/b", "é ☃", "..", "\x1b[31mred", "x" * 255])
def test_groups_and_leases_are_listed_released_and_closed(
    qq: Qq, real_node: ClusterNode, vhost: str, group: str
) -> None:
    queue = "q/ü"
    place = "--vhost", vhost, "--queue", queue, f"--group={group}"
    assert qq("declare", "queue", "--name", queue, "--vhost", vhost).status == 0
    assert (
        qq(
            "declare",
            "permission",
            "--vhost",
            vhost,
            "--for-user",
            "guest",
            "--configure",
            ".*",
            "--write",
            ".*",
            "--read",
            ".*",
        ).status
        == 0
    )
    path = f"queues/{quote(vhost, safe='')}/{quote(queue, safe='')}/groups/{quote(group, safe='')}"
    for number in range(3):
        assert (
            qq(
                "publish", "message", "--vhost", vhost, "--routing-key", queue, "--payload", f"{number}"
            ).status
            == 0
        )
    for each, body in (
        ("", {"fence": 4, "owner": "job"}),
        *((f"/leases/{n}", {"fence": 4, "max_messages": 1}) for n in (0, 1)),
    ):
        assert put(real_node, path + each, body) in (200, 201)
    (row,) = documents(qq, "list", "groups", "--vhost", vhost)
    assert row.items() >= {"name": group, "open_leases": 2, "messages_leased": 2, "fence": 4}.items()
    head, line = qq("list", "groups", "--vhost", vhost, "--name", "ü").lines
    assert head.split() == [
        "vhost",
        "queue",
        "name",
        "leases",
        "leased",
        "lag",
        "age",
        "idle",
        "owner",
        "fence",
    ]
    assert line.isprintable()
    assert [lease["lease"] for lease in documents(qq, "list", "leases", *place)] == [0, 1]
    assert qq("release", "lease", *place, "--lease", "1").output.startswith("lease 1 of group '")
    assert qq("release", "lease", *place, "--lease", "7").errors.startswith("qq release lease: ")
    result = qq("close", "group", *place)
    assert (result.status, result.errors.count("has 1 open lease")) == (1, 1)
    assert qq("close", "group", *place, "--release").output.endswith(": closed\n")
    status, _, errors = qq("close", "group", *place, "--release")
    assert (status, errors.startswith("qq close group: there is no group '")) == (1, True)
    (shown,) = documents(qq, "list", "queues", "--vhost", vhost, "--columns", "messages_ready")
    assert shown == {"messages_ready": 3}


@pytest.mark.parametrize("sink", ["orders", "a/b", "é ☃", "..", "\x1b[31mred", "x" * 255])
def test_sinks_are_listed_and_closed(qq: Qq, real_node: ClusterNode, vhost: str, sink: str) -> None:
    rights = [f"--{kind}=.*" for kind in ("configure", "write", "read")]
    assert qq("declare", "permission", "--vhost", vhost, "--for-user", "guest", *rights).status == 0
    path = f"sinks/{quote(vhost, safe='')}/{quote(sink, safe='')}"
    assert put(real_node, path, {}) == 201
    (row,) = documents(qq, "list", "sinks", "--vhost", vhost)
    assert row.items() >= {"name": sink, "attempts": 0, "messages_staged": 0, "committed": None}.items()
    head, line = qq("list", "sinks", "--vhost", vhost).lines
    assert head.split() == [
        "vhost",
        "name",
        "attempts",
        "staged",
        "bytes",
        "age",
        "idle",
        "committed",
        "user",
    ]
    assert line.isprintable()
    place = "--vhost", vhost, f"--sink={sink}"
    assert qq("close", "sink", *place).output.endswith(": closed\n")
    status, _, errors = qq("close", "sink", *place)
    assert (status, errors.startswith("qq close sink: there is no sink '")) == (1, True)


def test_table_of_groups_fits_80_columns(qq: Qq, real_node: ClusterNode) -> None:
    assert qq("declare", "queue", "--name", "orders").status == 0
    assert put(real_node, "queues/%2F/orders/groups/nightly-report", {"fence": 12}) == 201
    lines = qq("list", "groups", "--name", "orders").lines
    assert max(map(len, lines)) <= 80
    assert qq("close", "group", "--queue", "orders", "--group", "nightly-report").status == 0
    assert qq("delete", "queue", "--name", "orders").status == 0


def put(node: ClusterNode, path: str, body: dict[str, Any]) -> int:
    request = Request(
        f"http://127.0.0.1:{node.http_port}/api/{path}", json.dumps(body).encode(), method="PUT"
    )
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    with urlopen(request, timeout=30) as answer:
        return answer.status
