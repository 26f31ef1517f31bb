"""The prototype of several logs passes connections on, whatever its clients send ahead."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from several_logs import COMMANDS, FIRST, SECOND, Client, Deployment, deployed, handshake, method, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWERS = ["Connection.Start", "Connection.Tune", "Connection.OpenOk", "Channel.OpenOk"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed("2", tmp_path_factory.mktemp("logs"), [SECOND]) as deployment:
        yield deployment


def names_of_queues(node: Deployment) -> dict[str, list[str]]:
    return {vhost: [queue["name"] for queue in process.queues()] for vhost, process in node.nodes.items()}


def test_each_client_is_served_by_the_log_of_its_virtual_host(node: Deployment) -> None:
    for vhost in (FIRST, SECOND):
        with closing(opened(node.port, vhost)) as client:
            client.ask(method(1, COMMANDS.Queue.Declare(queue=f"of-{vhost}")), COMMANDS.Queue.DeclareOk)
            assert client.came == [*ANSWERS, "Queue.DeclareOk"]
    assert names_of_queues(node) == {FIRST: [f"of-{FIRST}"], SECOND: [f"of-{SECOND}"]}


@pytest.mark.parametrize("vhost", [FIRST, SECOND])
def test_a_client_that_sends_everything_at_once_gets_every_answer_once(node: Deployment, vhost: str) -> None:
    parts = handshake(vhost)
    with closing(Client(node.port)) as client:
        client.ask(b"".join(data for data, _ in parts), parts[-1][1])
        assert client.came == ANSWERS
