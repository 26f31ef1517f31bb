"""A short run of the fuzzer, and faults of a node that it must find."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest
from pamqp import commands
from pamqp.heartbeat import Heartbeat

from chaos.fuzz.answers import Frames091, HarmError, count_close
from chaos.fuzz.conversations import conversations
from chaos.fuzz.conversations10 import conversations10
from chaos.fuzz.legal import KINDS, USER, Act, draw_act, publish
from chaos.fuzz.legal_run import WAIT_MAX_S, HonestPublisher, compare_states, hostile_client, run_siege
from chaos.fuzz.mutations import CHANGES_091, mutate
from chaos.fuzz.mutations10 import CHANGES10
from chaos.fuzz.run import TROUBLE, run_seed, served
from cluster.log.checkpoints import write_checkpoint
from cluster.runtime.asyncio_runtime import RealDisk
from cluster.state.group_state import GroupState
from cluster.storage.identity import Owner
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import PutVhost
from qq.testing import ClusterNode, LocalCluster
from tests.harness.raw_client import HEADER, RawClient, marshal

CLIENTS = 200
SECONDS = 10.0
ACTS, ACTS_FACTOR = 48, 0.02


@pytest.fixture(scope="module")
def node(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> ClusterNode:
    return until_left("node", LocalCluster(nodes=1)).nodes[0]


def test_undamaged_conversations_are_served_to_their_end(node: ClusterNode) -> None:
    assert served(node.amqp_port) == Counter()


def test_damaged_conversations_cause_no_harm() -> None:
    outcome = run_seed(1, CLIENTS, time.monotonic() + SECONDS)
    assert outcome.violation == ""
    assert outcome.clients == CLIENTS
    closes = ("channel 404", "channel 406", "connection 501", "connection 503", "connection 505")
    conditions = (
        "close amqp:decode-error",
        "close amqp:connection:framing-error",
        "end amqp:session:unattached-handle",
    )
    assert {*closes, *conditions} <= set(outcome.closes)


def test_the_damage_is_a_function_of_the_seed() -> None:
    for all_of, changes in ((conversations(), CHANGES_091), (conversations10(), CHANGES10)):
        undamaged = {b"".join(conversation.frames) for conversation in all_of}
        first, again = (
            [b"".join(mutate(Random(f"1-{number}"), all_of, changes)) for number in range(300)]
            for _ in range(2)
        )
        assert first == again
        assert len(set(first) - undamaged) > 270


def test_legal_conversations_cause_no_harm() -> None:
    until_s = time.monotonic() + 3 * SECONDS
    outcome = run_siege(22, nodes=1, acts=ACTS, until_s=until_s, factor=ACTS_FACTOR)
    assert outcome.violation == ""
    assert outcome.acts == ACTS
    assert outcome.confirmed > 0
    assert {"channel 403", "channel 406", "detach amqp:decode-error", "HTTP 201"} <= set(outcome.answers)


def test_legal_acts_are_a_function_of_the_seed() -> None:
    def acts(seed: int) -> list[Act]:
        drawn = [draw_act(Random(f"{seed}-{number}"), number, ACTS_FACTOR) for number in range(200)]
        return [
            act._replace(
                frames=list(act.frames), requests=list(act.requests), items10=list(act.items10 or ())
            )
            for act in drawn
        ]

    assert acts(1) == acts(1)
    assert acts(1) != acts(2)
    assert {act.name for act in acts(1)} == set(KINDS)


def test_lost_or_duplicate_confirmed_message_is_noticed(
    node: ClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = HonestPublisher(node.amqp_port, "honest")
    publisher.act()
    assert publisher.collect() == ""
    publisher.act()
    monkeypatch.setattr("chaos.fuzz.legal_run.WAIT_MAX_S", 1.0)
    assert publisher.collect().startswith(
        "of 40 messages confirmed to the honest publisher to honest 20 are lost"
    )
    with RawClient(node.amqp_port) as client:
        client.open_channel(1)
        client.write(publish("", "honest", b"7") + publish("", "honest", b"7"))
        client.call(1, commands.Queue.Declare(queue="honest", passive=True), commands.Queue.DeclareOk)
    publisher.confirmed = 0
    assert publisher.collect() == "1 messages of the honest publisher to honest came twice"
    publisher.finish()


def test_an_honest_publisher_that_waits_too_long_is_noticed(node: ClusterNode) -> None:
    publisher = HonestPublisher(node.amqp_port, "patient")
    publisher.check()
    publisher.begun_s = time.monotonic() - WAIT_MAX_S
    with pytest.raises(HarmError, match=r"the honest publisher to patient has waited 10\.\d s"):
        publisher.check()
    publisher.finish()


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"", "hung up on without a word"),
        (marshal(0, commands.Connection.Close(541, "INTERNAL_ERROR - what", 0, 0)), "INTERNAL_ERROR - what"),
        (b"nonsense and more of it", "has sent"),
    ],
)
def test_unexpected_end_of_a_hostile_client_is_noticed(sent: bytes, problem: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as node:
            node.sendall(sent)
            node.shutdown(socket.SHUT_WR)
            with pytest.raises(HarmError, match=problem):
                hostile_client(client, Act("", USER, "/"), [], Counter())


def keep_state(directory: Path, name: str, index: int, body: bytes) -> None:
    disk = RealDisk(directory / name / "data")
    disk.make_directory("groups/0/log")
    write_checkpoint(disk, "groups/0/log", Owner("qq", name, 0).key(), index, 1, [body])
    disk.close()


def test_differing_states_are_noticed(tmp_path: Path) -> None:
    machine = QueueMachine()
    machine.apply_batch("n1", 1, 0, 1, b"".join(encode_batch([PutVhost("v", "", [], "")], [])))
    empty, state = (GroupState(each).freeze().dump() for each in (QueueMachine(), machine))
    nodes = [(name, tmp_path / name) for name in ("n1", "n2", "n3")]
    for name, index in (("n1", 5), ("n2", 5), ("n3", 6)):
        keep_state(tmp_path, name, index, state)
    assert compare_states(nodes) == 1
    keep_state(tmp_path, "n2", 6, empty)
    with pytest.raises(HarmError, match="n2 and n3 have different states at index 6"):
        compare_states(nodes)


def test_state_that_differs_after_a_load_is_noticed(tmp_path: Path) -> None:
    rows = [["n2", 1, 1, False], ["n1", 1, 1, False]]  # in no order
    keep_state(tmp_path, "n1", 5, msgpack.packb([0, rows, QueueMachine().dump()]))
    with pytest.raises(HarmError, match="a node that begins with the state of n1 at index 5 has another one"):
        compare_states([("n1", tmp_path / "n1")])


def frames(data: bytes) -> list[object]:
    read = Frames091()
    read.add(data)
    return [*iter(read.next, None)]


def test_an_answer_that_is_no_frame_is_noticed() -> None:
    heartbeat, close = Heartbeat().marshal(), marshal(1, commands.Channel.CloseOk())
    assert [type(frame) for frame in frames(heartbeat + close + close[:-1])] == [
        Heartbeat,
        commands.Channel.CloseOk,
    ]
    assert frames(HEADER) == []
    for wrong in (close[:-1] + b"\0", struct.pack(">BHI", 9, 0, 0) + b"\xce"):
        with pytest.raises(HarmError):
            frames(wrong)


def test_forbidden_answer_is_noticed() -> None:
    closes: Counter[str] = Counter()
    count_close(commands.Connection.CloseOk(), closes, closed=True)
    count_close(commands.Channel.Close(404, "NOT_FOUND - no queue", 50, 10), closes, closed=False)
    assert closes == {"channel 404": 1}
    with pytest.raises(HarmError, match="behind its connection"):
        count_close(commands.Channel.OpenOk(), closes, closed=True)
    with pytest.raises(HarmError, match="INTERNAL_ERROR"):
        count_close(
            commands.Connection.Close(541, "INTERNAL_ERROR - an unexpected error", 0, 0), closes, closed=False
        )


@pytest.mark.parametrize(
    "line",
    [
        "ERROR qq.client_sockets.closing: connection 5 of guest: unexpected:",
        "Traceback (most recent call last):",
        "Task exception was never retrieved",
    ],
)
def test_internal_error_in_the_log_is_noticed(line: str) -> None:
    assert TROUBLE.search(line)
