"""Nodes with a wrong configuration, an unsupported version or old files do not count as members."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from cluster.runtime.asyncio_runtime import ReadOnlyDisk
from cluster.storage.inspect import EntryFound, entries
from qq.machine.protocol.versions import VERSIONS
from qq.testing import LocalCluster
from tests.stories.clients import PERSISTENT, pika_connection
from tests.stories.disk import NodeFiles, lines_since
from tests.stories.load import loaded, poll

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from cluster.runtime.ports import Disk
    from qq.testing import ClusterNode

pytestmark = [pytest.mark.xdist_group("members"), pytest.mark.timeout(90)]

LOW, HIGH = VERSIONS
OLDER = LOW - 1
BODIES = [b"message %d." % number for number in range(30)]


def refusal(node: ClusterNode) -> str:
    """Return the last log line of a node that does not start or continue."""
    size = node.log.stat().st_size
    node.start()
    poll(lambda: not node.running, lambda: f"{node.name} runs")
    return lines_since(node, size)[-1]


def log_count(nodes: Sequence[ClusterNode], text: str) -> int:
    """How many lines of the nodes' logs say it."""
    return sum(text in line for node in nodes for line in node.log.read_text().splitlines())


def until_logged(nodes: Sequence[ClusterNode], text: str) -> None:
    poll(lambda: log_count(nodes, text) > 0, lambda: f"{[node.name for node in nodes]} do not say {text!r}")


def reason_not_ready(node: ClusterNode) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/healthz")
    with caught.value as error:
        return json.load(error)["reason"]


def publish(node: ClusterNode, bodies: Sequence[bytes]) -> None:
    with pika_connection(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        for body in bodies:
            channel.basic_publish("", "kept", body, PERSISTENT)


def stored(node: ClusterNode) -> list[bytes]:
    """Return the messages in the queue, without removing them."""
    with pika_connection(node) as connection:
        channel = connection.channel()
        bodies: list[bytes] = []
        while (body := channel.basic_get("kept")[2]) is not None:
            bodies.append(body)
        return bodies


@contextmanager
def listing(nodes: Sequence[ClusterNode], names: Sequence[str]) -> Generator[None]:
    """Their configurations have these nodes only."""
    files = [node.log.parent / "node.toml" for node in nodes]
    right = [file.read_text() for file in files]
    for file, text in zip(files, right, strict=True):
        listed = [line for line in text.splitlines() if "peer_port" in line]
        kept = [line for line in listed if any(f'name = "{name}"' in line for name in names)]
        assert len(listed) > len(kept) == len(names)
        file.write_text(text.replace("\n".join(listed), "\n".join(kept)))
    yield
    for file, text in zip(files, right, strict=True):
        file.write_text(text)


@contextmanager
def of_an_older_version(directory: Path) -> Generator[None]:
    """Nodes that are started now can run the versions before."""
    (directory / "sitecustomize.py").write_text(
        f"import qq.machine.protocol.versions\nqq.machine.protocol.versions.VERSIONS = ({OLDER}, {LOW})\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")]))
        yield


def empty(node: ClusterNode) -> None:
    shutil.rmtree(NodeFiles(node).root)


@pytest.mark.long
def test_lists_that_differ_from_the_log_do_not_count(tmp_path: Path) -> None:
    """Two of five nodes, which would be a majority of the three that they list; one is emptied, too."""
    with LocalCluster(5, tmp_path) as cluster, loaded(cluster) as load:
        _, second, third, _, _ = cluster.nodes
        load.until_all_work()
        load.kill(second, third)
        with listing([second, third], ["n2", "n3", "n4"]):
            for node in (second, third):
                node.start()
                until_logged([node], "not those in [[nodes]]: n1 is not listed, n5 is not listed")
            cluster.wait_caught_up()
            load.until_all_work()
            load.kill(third)
            empty(third)
            third.start()
            cluster.wait_caught_up()
            load.until_all_work()


def test_node_of_an_unsupported_version_does_not_count(tmp_path: Path) -> None:
    with LocalCluster(3, tmp_path) as cluster:
        first, second, third = cluster.nodes
        publish(first, BODIES)
        until_logged([third], f"the cluster is at version {HIGH} of the state now")
        third.kill()
        with of_an_older_version(tmp_path):
            assert (
                f"the log is at version {HIGH} of the state, and this program can run {OLDER} to {LOW}:"
            ) in refusal(third)
            empty(third)
            third.start()
        text = "node {0!r} is at version {1} of the state and can run {2}, this node is at {3} and can run {4}: start"
        ours, theirs = (HIGH, f"{LOW} to {HIGH}"), (OLDER, f"{OLDER} to {LOW}")
        until_logged([first, second], "cannot connect to peer n3")
        until_logged([third], "refused a connection from 127.0.0.1: " + text.format("n1", *ours, *theirs))
        until_logged([third], text.format("n2", *ours, *theirs))
        publish(second, BODIES)
        assert log_count([first, second], text.format("n3", *theirs, *ours)) == 2  # once each
        deadline_s = time.monotonic() + 10
        while not (reason := reason_not_ready(third)).startswith("waiting for n1, n2: "):
            assert time.monotonic() < deadline_s, reason
            time.sleep(0.05)
        third.kill()
        empty(third)
        third.start()
        cluster.wait_caught_up()
        assert stored(third) == BODIES * 2


def test_node_stops_when_its_applied_entries_were_replaced(tmp_path: Path) -> None:
    """Two of three nodes get an old backup while the third is frozen: their majority continues with a different log."""
    with LocalCluster(3, tmp_path) as cluster:
        *given, frozen = cluster.nodes
        publish(frozen, BODIES[:10])
        for node in given:
            node.kill()
            shutil.copytree(NodeFiles(node).root, tmp_path / "old" / node.name)
        for node in given:
            node.start()
        cluster.wait_caught_up()
        publish(frozen, BODIES[10:])
        cluster.wait_caught_up()
        frozen.pause()
        for node in given:
            node.kill()
            empty(node)
            shutil.copytree(tmp_path / "old" / node.name, NodeFiles(node).root)
        for _ in range(3):  # no term that the old log knows
            for node in given:
                node.start()
            publish_somewhere(given)
            for node in given:
                node.kill()
        for node in given:
            node.start()
        publish_somewhere(given)
        frozen.resume()
        poll(lambda: not frozen.running, lambda: f"{frozen.name} goes on")
        last = frozen.log.read_text().splitlines()[-1]
        for line in (last, refusal(frozen), refusal(frozen)):
            assert line.startswith(f"qq serve: node {frozen.name} stops: the log of node ")
            assert "so members have lost their logs or were given old ones (nothing is deleted here)" in line
        assert NodeFiles(frozen).problems() == []
        assert [body for body in BODIES if body not in logged(frozen)] == []
        publish_somewhere(given)


def publish_somewhere(nodes: Sequence[ClusterNode]) -> None:
    for node in nodes:
        node.wait_ready()
    publish(nodes[0], [b"other"])


def logged(node: ClusterNode) -> bytes:
    """All entries that the stopped node holds."""
    disk = cast("Disk", ReadOnlyDisk(NodeFiles(node).group))
    return b"".join(found.payload for found in entries(disk, "") if isinstance(found, EntryFound))
