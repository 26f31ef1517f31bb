"""`qq publish`, `qq get`, `qq peek`, `qq purge` and `qq close`, at a real node."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pika
import pytest

from qq.cli.commands import messages
from qq.cli.commands import move as move_module

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from conftest import Said

    from qq.testing import ClusterNode

    Qq = Callable[..., Said]

QUEUE = "tasks/ö"


@pytest.fixture
def tasks(qq: Qq) -> Generator[Qq]:
    """Call a command of a node with an empty queue."""
    assert qq("declare", "queue", "--name", QUEUE).status == 0
    yield qq
    assert qq("delete", "queue", "--name", QUEUE).status == 0


def publish(qq: Qq, text: str) -> None:
    result = qq("publish", "message", "--routing-key", QUEUE, "--payload", text)
    assert result == (0, f"published: {len(text.encode())} bytes, confirmed\n", "")


def peeked(qq: Qq, *options: str) -> list[dict[str, Any]]:
    return json.loads(qq("peek", "messages", "--queue", QUEUE, "-o", "json", *options).output)


def test_peek_leaves_messages_unchanged(tasks: Qq) -> None:
    for text in ("one", "\x1b[2Jtwo", ""):
        publish(tasks, text)
    for _ in range(2):
        assert [each["payload"] for each in peeked(tasks)] == ["one", "\x1b[2Jtwo", ""]
        assert {each["redelivered"] for each in peeked(tasks)} == {False}
    head, *rows = tasks("peek", "messages", "--queue", QUEUE, "--offset", "1", "--count", "1").lines
    assert head.split() == ["offset", "exchange", "routing_key", "redelivered", "payload_bytes", "payload"]
    assert [row.split() for row in rows] == [["1", '""', QUEUE, "no", "7", "\\x1b[2Jtwo"]]


def test_messages_are_peeked_at_page_by_page(tasks: Qq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PAGE_MESSAGES", 2)
    for number in range(5):
        publish(tasks, str(number))
    assert [each["payload"] for each in peeked(tasks, "--count", "100")] == list("01234")
    assert [each["payload"] for each in peeked(tasks, "--count", "3", "--offset", "1")] == list("123")
    assert peeked(tasks, "--offset", "5") == []


def test_get_requeues_unless_the_message_is_acknowledged(tasks: Qq) -> None:
    def got(*options: str) -> list[tuple[str, bool]]:
        result = tasks("get", "messages", "--queue", QUEUE, "-o", "json", *options)
        return [(each["payload"], each["redelivered"]) for each in json.loads(result.output)]

    publish(tasks, "one")
    assert got() == [("one", False)]
    assert got("--ack-mode", "ack_requeue_false", "--count", "5") == [("one", True)]
    assert got() == []
    publish(tasks, "two")
    assert tasks("purge", "queue", "--name", QUEUE).status == 0
    assert got() == []


def test_a_body_is_any_octets_and_properties_are_kept(tasks: Qq, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"\xff\x00\n")
    properties = '{"headers": {"a": [1, "b"]}, "priority": 3, "content_type": "x/y"}'
    to_queue = "publish", "message", "--routing-key", QUEUE
    assert tasks(*to_queue, "--payload-file", str(file), "--properties", properties).status == 0
    (found,) = peeked(tasks)
    assert (found["payload"], found["payload_encoding"]) == ("/wAK", "base64")
    assert found["properties"] == json.loads(properties)
    file.write_bytes(bytes(messages.BODY_BYTES_MAX + 1))
    assert "publish it over AMQP" in tasks(*to_queue, "--payload-file", str(file)).errors
    assert tasks(*to_queue, "--payload", "a", "--properties", '{"priority": "3"}').status == 1
    assert tasks(*to_queue, "--payload", "a", "--properties", "[]").status == 2
    assert tasks(*to_queue).status == 2
    assert len(peeked(tasks)) == 1


def test_a_message_that_no_queue_has_got_is_a_no(tasks: Qq) -> None:
    result = tasks("publish", "message", "--exchange", "amq.topic", "--routing-key", "k", "--payload", "x")
    assert (result.status, result.errors) == (1, "")
    assert result.output == "not routed: exchange 'amq.topic' in '/' has no queue for 'k'\n"
    assert (
        tasks("publish", "message", "--exchange", "none", "--routing-key", "k", "--payload", "x").status == 1
    )


@pytest.mark.parametrize("verb", ["get", "peek"])
def test_missing_queue_is_reported(qq: Qq, verb: str) -> None:
    status, output, errors = qq(verb, "messages", "--queue", "none/..")
    assert (status, output, errors.count("\n")) == (1, "", 1)
    assert "there is no queue 'none/..' in '/'" in errors
    assert "there is no queue" in qq("purge", "queue", "--name", "none").errors


def test_connections_are_closed_with_a_reason(qq: Qq, real_node: ClusterNode) -> None:
    def closed(*arguments: str) -> str:
        with pika.BlockingConnection(pika.URLParameters(real_node.url)) as connection:
            (name,) = [
                each["name"]
                for each in json.loads(qq("list", "connections", "-o", "json").output)
                if each["client_properties"]["product"].startswith("Pika")
            ]
            named = [name if argument == "NAME" else argument for argument in arguments]
            assert qq("close", *named, "--reason", "bye é").status == 0
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as raised:
                connection.process_data_events(30)
        return raised.value.reply_text

    assert "bye" in closed("connection", "--name", "NAME")
    assert "bye" in closed("connections", "--for-user", "guest")
    assert qq("close", "connection", "--name", "none").status == 1


def test_only_selected_messages_are_moved(tasks: Qq) -> None:
    other = f"{QUEUE} other"
    assert tasks("declare", "queue", "--name", other).status == 0
    for tenant in ("acme", "other", "acme"):
        properties = json.dumps({"headers": {"tenant": tenant}})
        to_queue = "publish", "message", "--routing-key", QUEUE, "--payload", tenant
        assert tasks(*to_queue, "--properties", properties).status == 0
    move = "move", "messages", "--from", QUEUE, "--to"
    result = tasks(*move, other, "--headers", '{"tenant": "acme"}')
    assert result == (0, f"moved 2 messages from '{QUEUE}', and left 1\n", "")
    assert [each["payload"] for each in peeked(tasks)] == ["other"]
    result = tasks(*move, other, "--count", "1", "--no-wait")
    assert (result.status, result.output[:5], result.errors) == (0, "move ", "")
    moves = json.loads(tasks("move", "list", "-o", "json").output)
    assert [each["source"] for each in moves] == [QUEUE, QUEUE]
    result = tasks("move", "messages", "--from", other, "--to", QUEUE, "--count", "1")
    assert result == (0, f"moved 1 message from '{other}', and left 0\n", "")
    assert tasks("delete", "queue", "--name", other).status == 0


def test_messages_with_a_text_are_peeked_at_and_moved(tasks: Qq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SEARCHED_AT_ONCE", 2)
    for number in range(7):
        publish(tasks, f'{{"order": {number % 2}}}')
    peek = "peek", "messages", "--queue", QUEUE, "--text", 'ORDER": 1'
    *rows, end = tasks(*peek).lines[1:]
    assert ([row.split()[0] for row in rows], end) == (["1", "3", "5"], "looked at 7 of 7 ready messages")
    assert tasks(*peek, "--offset", "2", "--count", "1").lines[-1] == "looked at 2 of 7 ready messages"
    assert [each["offset"] for each in json.loads(tasks(*peek, "-o", "json").output)] == [1, 3, 5]
    assert tasks(*peek, "--reason", "expired").lines[-1] == "looked at 7 of 7 ready messages"
    other = f"{QUEUE} other"
    assert tasks("declare", "queue", "--name", other).status == 0
    move = "move", "messages", "--from", QUEUE, "--to", other, "--text", 'order": 1'
    would = f"of 7 messages from queue '{QUEUE}' in '/'\n"
    assert tasks(*move, "--dry-run") == (0, f"would move 3 {would}", "")
    assert tasks(*move, "--dry-run", "--count", "2") == (0, f"would move 2 {would}", "")
    assert tasks("move", "messages", "--from", QUEUE, "--to-origin", "--dry-run") == (
        0,
        f"would move 0 {would}",
        "",
    )
    assert tasks(*move) == (0, f"moved 3 messages from '{QUEUE}', and left 4\n", "")
    assert tasks("delete", "queue", "--name", other).status == 0


def test_impossible_move_is_refused(tasks: Qq) -> None:
    move = "move", "messages", "--from", QUEUE
    for arguments, status, text in (
        ([*move], 2, "give either --to or --to-origin"),
        ([*move, "--to", "x", "--to-origin"], 2, "give either --to or --to-origin"),
        ([*move, "--to", QUEUE], 1, QUEUE),
        ([*move, "--to", "nowhere"], 1, "no queue 'nowhere' in vhost '/'"),
        ([*move, "--to-origin", "--reason", "sleep"], 1, "there is no reason 'sleep'"),
        (["move", "stop", "--id", "none"], 1, "there is no move 'none' in '/'"),
    ):
        result = tasks(*arguments)
        assert (result.status, result.output, text in result.errors) == (status, "", True), result


def test_interrupted_wait_for_a_move_prints_the_stop_command(
    tasks: Qq, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{QUEUE} other"
    assert tasks("declare", "queue", "--name", other).status == 0
    for text in "abc":
        publish(tasks, text)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    # Not `time.sleep` itself, which further threads use.
    monkeypatch.setattr(move_module, "time", SimpleNamespace(sleep=interrupted))
    result = tasks("move", "messages", "--from", QUEUE, "--to", other, "--rate", "1")
    assert result.status == 130
    stop = result.output.partition("`qq ")[2].partition("`")[0].split()
    assert tasks(*stop).output == "stopped\n"
    (move,) = json.loads(tasks("move", "list", "-o", "json").output)[-1:]
    assert (move["state"], move["moved"] < 3) == ("stopped", True)
    assert tasks("delete", "queue", "--name", other).status == 0
