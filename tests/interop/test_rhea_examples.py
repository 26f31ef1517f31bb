"""The examples in rhea's repository that are for a broker, with their address `examples` of version 1."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qq.cli.local_files import AMQPS_PORT_OFFSET
from qq.testing import LocalCluster
from tests.interop.needed import fetched, needs
from tests.interop.programs import lines, refusal, run, started
from tests.interop.queues import quorum_queue
from tests.interop.sources import node_clients
from tests.interop.upstream import PLUGINS

if TYPE_CHECKING:
    from collections.abc import Generator

    from qq.testing import ClusterNode

RHEA_SOURCE = os.environ.get("RHEA_SOURCE", "")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.xdist_group("interop-suites"),
    pytest.mark.timeout(100),
    pytest.mark.skipif(
        not RHEA_SOURCE,
        reason="rhea's package has no examples in it: RHEA_SOURCE=DIR names a checkout of its repository",
    ),
]
EXAMPLES = Path(RHEA_SOURCE).absolute() / "examples"
WITH_SASL = ["node", "--require", str(PLUGINS / "with_sasl.js"), "--require", str(PLUGINS / "redirect.js")]
QUEUE = "examples"
ANIMALS = ["red-panda", "green-grasshopper", "red-squirrel", "blue-whale"]


@pytest.fixture
def node(cluster: LocalCluster) -> Generator[ClusterNode]:
    needs("node", "npm")
    node = cluster.followers()[0]
    with quorum_queue(node, QUEUE):
        yield node


@pytest.fixture
def settings(node: ClusterNode) -> dict[str, str]:
    return {"NODE_PATH": str(fetched(node_clients)), "QQ_INTEROP_PORT": str(node.amqp_port)}


def example(name: str, *arguments: str) -> list[str]:
    return [*WITH_SASL, str(EXAMPLES / name), *arguments]


def numbered(count: int) -> str:
    return "".join(f'{{"sequence":{number}}}\n' for number in range(1, count + 1))


def test_hello_world_comes_back(settings: dict[str, str]) -> None:
    assert run(example("helloworld.js"), settings) == "Hello World!\n"


def test_messages_are_confirmed_and_received_in_order(settings: dict[str, str]) -> None:
    sent = run(example("simple_send.js"), settings)
    assert sent == "".join(f"sent {number}\n" for number in range(1, 101)) + "all messages confirmed\n"
    assert run(example("simple_recv.js"), settings) == numbered(100)


def test_payloads_are_received_as_they_were_sent(settings: dict[str, str]) -> None:
    assert run(example("send_raw.js", "-m", "3"), settings).endswith("all messages confirmed\n")
    received = run(example("simple_recv.js", "-m", "3"), settings)
    # The example prints the octets of {"sequence":1}, without decoding them.
    assert received.count('"data":[123,34,115,101,113,117,101,110,99,101,34,58,') == 3


def test_drain_ends_when_the_queue_is_empty(settings: dict[str, str]) -> None:
    run(example("simple_send.js", "-m", "7"), settings)
    assert run(example("drain.js"), settings) == numbered(7)


def test_replies_to_a_dynamic_queue_want_its_capability(settings: dict[str, str]) -> None:
    """Of RabbitMQ, 4.0 has no dynamic queues, and later releases want the capability."""
    refused = refusal(example("client.js"), settings)
    assert "amqp:not-implemented" in refused
    assert "dynamic terminus without capability 'temporary-queue'" in refused


def test_selector_is_not_applied(settings: dict[str, str]) -> None:
    """The node confirms no filter; the example does not look at that."""
    assert run(example("selector/send.js"), settings) == "".join(f"sent {animal}\n" for animal in ANIMALS)
    received = run(example("selector/recv.js", "-m", "4", "-s", "colour = 'red'"), settings)
    assert received == "panda\ngrasshopper\nsquirrel\nwhale\n"


def test_browser_takes_messages_from_the_queue(settings: dict[str, str], node: ClusterNode) -> None:
    """The node answers with the distribution mode `move`; the example does not look at that."""
    run(example("selector/send.js"), settings)
    browsed = run(example("queue_browser.js", "-m", "4"), settings)
    assert browsed == '"panda"\n"grasshopper"\n"squirrel"\n"whale"\n'
    [queue] = [each for each in node.queues() if each["name"] == QUEUE]
    assert queue["messages"] == 0


def test_subscriber_gets_messages_of_its_topic(settings: dict[str, str]) -> None:
    subscriber = example("durable_subscription/subscriber.js", "-t", "/topic/STOCK.*")
    publisher = example("durable_subscription/publisher.js", "-t", "/topic/STOCK.RHT", "one", "two", "close")
    with started(subscriber, settings) as process:
        assert lines(process, 1) == ["subscribed"]
        assert run(publisher, settings) == "sent one\nsent two\nsent close\n"
        assert lines(process, 3) == ["one", "two", ""]


@pytest.mark.parametrize("login", [("guest", "guest"), ("guest",)], ids=["plain", "anonymous"])
def test_sasl_client_logs_in(settings: dict[str, str], node: ClusterNode, login: tuple[str, ...]) -> None:
    options = [f"--{name}={value}" for name, value in zip(("username", "password"), login, strict=False)]
    client = example("sasl/simple_sasl_client.js", "-p", str(node.amqp_port), *options)
    assert run(client, settings) == "Connected!\n"


def test_tls_client_logs_in(
    settings: dict[str, str], node: ClusterNode, certificates: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(EXAMPLES, tmp_path / "examples")
    for theirs, ours in {
        "ca-cert": "ca_certificate",
        "client-cert": "client_certificate",
        "client-key": "client_key",
    }.items():
        shutil.copy(certificates / f"{ours}.pem", source / "tls" / f"{theirs}.pem")
    port = str(node.amqp_port + AMQPS_PORT_OFFSET)
    command = [*WITH_SASL, str(source / "tls" / "tls_client.js"), "-p", port, "-s", "localhost"]
    assert run(command, settings) == "Connected!\n"


def test_reconnecting_client_goes_on_at_the_next_node() -> None:
    with LocalCluster(settings={"listen": {"amqp_address_v1": True}}) as cluster:
        first, second, _ = cluster.nodes
        settings = {"NODE_PATH": str(fetched(node_clients)), "QQ_INTEROP_PORT": str(first.amqp_port)}
        nodes = [
            option for node in (first, second) for option in ("-h", "127.0.0.1", "-p", str(node.amqp_port))
        ]
        client = example("reconnect/client.js", *nodes, "--request_interval", "20", "-m", "50")
        with quorum_queue(second, QUEUE), started(client, settings) as process:
            assert lines(process, 4) == [
                "sent request-1",
                "received request-1",
                "sent request-2",
                "received request-2",
            ]
            first.kill()
            output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "disconnected\n" in output
    # A request whose outcome was under way comes twice, and the example counts it twice.
    assert output.endswith("connection closed\n")


def test_examples_for_rabbitmq_work(settings: dict[str, str], node: ClusterNode) -> None:
    for_rabbitmq = EXAMPLES / "rabbitMQ"
    queue = ["--host=127.0.0.1", "--queue=rhea"]
    setup = ["node", str(for_rabbitmq / "rabbitmq_queue_setup.js"), *queue, f"--port={node.http_port}"]
    assert "Queue rhea successfully created" in run(setup, settings)
    options = ["--host=127.0.0.1", f"--port={node.amqp_port}", "--node=/queues/rhea", "--count=5"]
    sent = run(["node", str(for_rabbitmq / "rabbitmq_sender.js"), *options, "--interval=10"], settings)
    assert "Message 5 confirmed" in sent or "total confirmed: 5" in sent
    received = run(["node", str(for_rabbitmq / "rabbitmq_receiver.js"), *options], settings)
    assert received.count("User ID: guest") == received.count("--- Message") == 5
    assert "successfully deleted" in run([*setup, "--delete"], settings)
