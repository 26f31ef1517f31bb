"""Proton's examples in C and C++, compiled from Debian's package: each is a client of a cluster."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qq.cli.local_files import AMQPS_PORT_OFFSET
from tests.interop.needed import installed
from tests.interop.programs import lines, refusal, run, started
from tests.interop.queues import quorum_queue

if TYPE_CHECKING:
    from collections.abc import Generator

    from qq.testing import ClusterNode, LocalCluster

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-suites"), pytest.mark.timeout(300)]

EXAMPLES = Path("/usr/share/proton/examples")
PACKAGES = ["gcc", "g++", "libqpid-proton11-dev-examples", "libqpid-proton-cpp12-dev", "libsasl2-modules"]
IN_C = ["receive", "send", "send-abort", "send-ssl"]
IN_CPP = [
    "client",
    "colour_send",
    "helloworld",
    "multithreaded_client_flow_control",
    "reconnect_client",
    "scheduled_send",
    "selected_recv",
    "simple_recv",
    "simple_send",
]
QUEUE = "proton-examples"
ADDRESS = f"/queues/{QUEUE}"
SEQUENCE = "".join(f'{{"sequence"={number}}}\n' for number in range(1, 11))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the compiled examples."""
    installed(*PACKAGES)
    directory = tmp_path_factory.mktemp("proton")
    with_sasl = str(Path(__file__).with_name("proton") / "with_sasl.h")
    for name in IN_C:
        compiled(
            ["gcc", "-include", with_sasl], EXAMPLES / "c" / f"{name}.c", directory / name, "qpid-proton"
        )
    compiled(["gcc"], EXAMPLES / "c" / "send.c", directory / "send-without-sasl", "qpid-proton")
    for name in IN_CPP:
        compiled(["g++"], EXAMPLES / "cpp" / f"{name}.cpp", directory / name, "qpid-proton-cpp")
    return directory


def compiled(compiler: list[str], source: Path, program: Path, library: str) -> None:
    subprocess.run([*compiler, "-o", program, source, f"-l{library}", "-pthread"], check=True)


@pytest.fixture
def node(cluster: LocalCluster) -> Generator[ClusterNode]:
    node = cluster.followers()[0]
    with quorum_queue(node, QUEUE):
        yield node


@pytest.fixture
def in_c(node: ClusterNode) -> list[str]:
    """Arguments of the examples in C: host, port and address."""
    return ["127.0.0.1", str(node.amqp_port), ADDRESS]


@pytest.fixture
def url(node: ClusterNode) -> str:
    """Address of the examples in C++."""
    return f"127.0.0.1:{node.amqp_port}/{ADDRESS}"


def test_messages_of_the_c_example_are_received_in_order(programs: Path, in_c: list[str]) -> None:
    assert run([programs / "send", *in_c]) == "10 messages sent and acknowledged\n"
    assert run([programs / "receive", *in_c]) == f"{SEQUENCE}10 messages received\n"


def test_aborted_messages_of_the_c_example_are_not_stored(
    programs: Path, node: ClusterNode, in_c: list[str]
) -> None:
    assert run([programs / "send-abort", *in_c]) == "10 messages started and aborted\n"
    assert run([programs / "send", *in_c, "1"]) == "1 messages sent and acknowledged\n"
    assert run([programs / "receive", *in_c, "1"]) == '{"sequence"=1}\n1 messages received\n'
    assert messages(node) == 0


@pytest.mark.parametrize("login", [(), ("guest", "guest")], ids=["anonymous", "plain"])
def test_c_example_sends_over_tls(
    programs: Path, node: ClusterNode, certificates: Path, login: tuple[str, ...]
) -> None:
    port = str(node.amqp_port + AMQPS_PORT_OFFSET)
    authority = str(certificates / "ca_certificate.pem")
    arguments = ["localhost", port, ADDRESS, "10", *login]
    output = run([programs / "send-ssl", *arguments], {"SSL_CERT_FILE": authority})
    assert "using TLSv1.3" in output
    assert output.endswith("10 messages sent and acknowledged\n")
    assert messages(node) == 10


def test_c_example_without_sasl_is_refused(programs: Path, in_c: list[str]) -> None:
    output = refusal([programs / "send-without-sasl", *in_c])
    assert "Expected AMQP protocol header got: AMQP SASL layer" in output


def test_cpp_examples_send_and_receive(programs: Path, url: str) -> None:
    assert run([programs / "simple_send", "-a", url, "-m", "10"]) == "all messages confirmed\n"
    assert run([programs / "simple_recv", "-a", url, "-m", "10"]) == SEQUENCE


def test_cpp_hello_world_comes_back(programs: Path, node: ClusterNode) -> None:
    assert run([programs / "helloworld", f"//127.0.0.1:{node.amqp_port}", ADDRESS]) == "Hello World!\n"


def test_cpp_example_sends_when_its_timer_ends(programs: Path, node: ClusterNode, url: str) -> None:
    sent = run([programs / "scheduled_send", "-a", url, "-i", "0.1", "-t", "0.5"]).count("send\n")
    # The last message is under way when the example ends.
    assert messages(node) in (sent - 1, sent)
    assert sent > 2


def test_cpp_example_reconnects_to_its_failover_url(programs: Path, node: ClusterNode) -> None:
    with socket.socket() as bound:  # without a listener
        bound.bind(("127.0.0.1", 0))
        closed = f"amqp://127.0.0.1:{bound.getsockname()[1]}"
        arguments = [closed, ADDRESS, "3", f"amqp://127.0.0.1:{node.amqp_port}"]
        output = run([programs / "reconnect_client", *arguments])
    assert output.count('{"sequence"=') == output.count("Sending:") == 3


def test_cpp_example_of_threads_counts_all_messages(programs: Path, node: ClusterNode) -> None:
    program = programs / "multithreaded_client_flow_control"
    output = run([program, f"127.0.0.1:{node.amqp_port}", ADDRESS, "20", "5"])
    assert output.endswith("100 messages sent and received\n")


def test_cpp_example_with_a_selector_gets_all_messages(programs: Path, node: ClusterNode, url: str) -> None:
    """The node confirms no filter; the example does not look at that."""
    assert run([programs / "colour_send", "-a", url, "-m", "4"]) == "all messages confirmed\n"
    with started([programs / "selected_recv", f"//127.0.0.1:{node.amqp_port}", ADDRESS]) as process:
        assert lines(process, 4) == ["green 1", "red 2", "green 3", "red 4"]


def test_cpp_client_is_refused_a_queue_without_capability(programs: Path, url: str) -> None:
    """Of RabbitMQ, 4.0 has no dynamic queues, and later releases want the capability."""
    output = refusal([programs / "client", "-a", url])
    assert "amqp:not-implemented: dynamic terminus without capability 'temporary-queue'" in output


def messages(node: ClusterNode) -> int:
    [found] = [queue for queue in node.queues() if queue["name"] == QUEUE]
    return found["messages"]
