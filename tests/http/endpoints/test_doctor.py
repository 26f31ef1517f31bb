"""The findings of the doctor over HTTP, on a machine with samples by the test, and those of peers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import trustme

from cluster.runtime.ports import pack
from qq.diagnosis.findings import Finding
from qq.diagnosis.limits import TenantUse, Vitals
from qq.diagnosis.queue_watch import SILENT_MS
from qq.machine.catalog.limits import MAX_PUBLISHES
from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import (
    AttachConsumer,
    CloseSink,
    Connect,
    DeclareQueue,
    OpenChannel,
    OpenSink,
    SetCredit,
    StageMessages,
)
from qq.management.nodes.diagnosis import _decode
from qq.management.reports.nodes import CertificateFiles
from qq.sessions.session_info import ClosedWindows, ConnectionFacts, Traffic
from qq.sessions.throttle import DelayingLimit
from qq.shovels.report import STARTING, Report
from qq.stored.properties import NO_PRIORITY, NO_TTL
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

MESSAGE = {"routing_key": "q", "properties": {}, "payload": "text", "payload_encoding": "string"}
PASS_MS = 5000
MINUTE = 13


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node[MachineManagement]:
    node = Node(MachineManagement())
    management = node.management
    node.clock_ms = 1_800_000_000_000  # type: ignore[attr-defined]
    monkeypatch.setattr(management.group, "time_ms", lambda: node.clock_ms)  # type: ignore[attr-defined]
    monkeypatch.setattr(
        management.broker.runtime,
        "monotonic",
        lambda: node.clock_ms / 1000,  # type: ignore[attr-defined]
    )
    monkeypatch.setattr(management.broker.runtime, "wall_ms", lambda: node.clock_ms)  # type: ignore[attr-defined]
    # All three nodes are there and are well.
    management.group.known["n3"] = management.group.known["n2"]
    statuses = [
        SimpleNamespace(
            name=name,
            state=state,
            last_index=20,
            voter_status="voter",
            clock_offset_ms=0,
            rolled_back_ms=None,
        )
        for name, state in (("n1", "leader"), ("n2", "follower"), ("n3", "follower"))
    ]
    management.group.statuses.all = lambda: statuses
    return node


def sample(node: Any, passes: int = 1) -> None:
    """Take samples, five seconds apart."""

    async def take() -> None:
        for _ in range(passes):
            await node.management.statistics.sample()
            await node.management.clients.sample()
            await node.management.doctor.sample()
            node.clock_ms += PASS_MS

    asyncio.run(take())


def codes(node: Any) -> dict[str, str]:
    """Return code and subject of each finding, without findings common to all test nodes."""
    found = node.api("doctor").json["findings"]
    shown = {each["code"]: each["subject"] for each in found}
    for code in ("node-tells-nothing", "upgrade-waits"):
        shown.pop(code, None)
    return shown


def test_doctor_reports_findings_to_monitors(node: Any) -> None:
    node.add_user("ann", "policymaker")
    node.add_user("eve", "monitoring")
    assert node.api("doctor", user="ann").status == 401
    shown = node.api("doctor", user="eve").json
    assert shown.keys() == {"verdict", "omitted", "findings", "groups"}
    assert {each["code"]: each["subject"] for each in shown["findings"]} == {
        "node-tells-nothing": "node n3",
        "upgrade-waits": "cluster",
    }
    assert shown["verdict"] == "nothing is wrong (3 info)"  # n2 reports no problem either


def test_queue_without_consumers_is_reported_with_its_start(node: Any) -> None:
    assert node.api("queues/%2F/q", "PUT").status == 201
    sample(node)
    # As rabbitmqadmin writes the default exchange.
    assert node.api("exchanges/%2F//publish", "POST", json=MESSAGE).json == {"routed": True}
    sample(node, MINUTE)
    [finding] = [each for each in node.api("doctor").json["findings"] if each["code"] == "no-consumers"]
    assert (finding["subject"], finding["text"]) == (
        "queue 'q' in vhost '/'",
        "1 message waits in it, and it has no consumers",
    )
    assert finding["since"] == "2027-01-15T08:00:05Z"
    assert node.api("queues/%2F/q", "DELETE").status == 204
    sample(node)
    assert "no-consumers" not in codes(node)


def test_consumer_without_credit_is_reported_alone(node: Any) -> None:
    assert node.api("queues/%2F/q", "PUT").status == 201
    attach = AttachConsumer(2, 1, 0, 3, "q", "worker", False, True, 0, {})
    node.management.make(Connect(1, "/", "guest"), OpenChannel(2, 1), attach)
    assert node.api("exchanges/%2F//publish", "POST", json=MESSAGE).json == {"routed": True}
    sample(node, MINUTE)
    assert codes(node) == {"no-credit": "consumer 'worker' of queue 'q' in vhost '/'"}
    node.management.make(SetCredit(3, 1, 1, False, False))
    assert node.api("exchanges/%2F//publish", "POST", json=MESSAGE).json == {"routed": True}
    sample(node)  # it was given the first message, and the second waits
    assert codes(node) == {}


def test_a_ladder_of_retries_waits_without_consumers(node: Any) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    for name, arguments in (("ladder", {"x-message-ttl": 3600_000} | dead), ("dead", dead)):
        assert node.api(f"queues/%2F/{name}", "PUT", json={"arguments": arguments}).status == 201
        message = MESSAGE | {"routing_key": name}
        assert node.api("exchanges/%2F/amq.default/publish", "POST", json=message).json == {"routed": True}
    sample(node, MINUTE)
    assert codes(node) == {"no-consumers": "queue 'dead' in vhost '/'"}
    # A queue with an earlier consumer or get has lost its consumers.
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert node.api("queues/%2F/ladder/get", "POST", json=body).status == 200
    sample(node, 1 + MINUTE)
    shown = [
        each["subject"] for each in node.api("doctor").json["findings"] if each["code"] == "no-consumers"
    ]
    assert sorted(shown) == ["queue 'dead' in vhost '/'", "queue 'ladder' in vhost '/'"]


@pytest.mark.parametrize("exchange", ["", "dead"])
def test_queue_that_dead_letters_go_to_needs_no_consumers(node: Any, exchange: str) -> None:
    assert node.api("exchanges/%2F/dead", "PUT", json={"type": "topic"}).status == 201
    retried = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 3600_000}
    queues: dict[str, Any] = {
        "work": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"},
        "retry": retried,
        "orders": {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "parked"},
        "parked": {},
    }
    for name, arguments in queues.items():
        assert node.api(f"queues/%2F/{name}", "PUT", json={"arguments": arguments}).status == 201
        message = MESSAGE | {"routing_key": name}
        assert node.api("exchanges/%2F/amq.default/publish", "POST", json=message).json == {"routed": True}
    binding = {"routing_key": "*"}
    assert node.api("bindings/%2F/e/dead/q/parked", "POST", json=binding).status == 201
    sample(node, 1 + MINUTE)
    found = [
        (each["code"], each["object"]["name"])
        for each in node.api("doctor").json["findings"]
        if each["object"]
    ]
    assert sorted(found) == [
        ("dead-letters-wait", "parked"),
        ("no-consumers", "orders"),
        ("no-consumers", "work"),  # its dead letters come back after a wait
        ("node-tells-nothing", "n2"),
        ("node-tells-nothing", "n3"),
    ]
    policy = {
        "pattern": ".*",
        "definition": {"dead-letter-exchange": "dead"},
    }  # also for the parking queue itself
    assert node.api("policies/%2F/dead", "PUT", json=policy).status == 201
    sample(node, 2)
    assert codes(node)["dead-letters-wait"] == "queue 'parked' in vhost '/'"
    assert node.api("queues/%2F/orders", "DELETE").status == 204
    assert node.api("policies/%2F/dead", "DELETE").status == 204
    sample(node, 2)
    assert "dead-letters-wait" not in codes(node)


def test_rejected_messages_are_reported_after_a_purge(node: Any) -> None:
    assert node.api("queues/%2F/q", "PUT").status == 201
    sample(node)
    assert node.api("exchanges/%2F/amq.default/publish", "POST", json=MESSAGE).status == 200
    body = {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}
    assert node.api("queues/%2F/q/get", "POST", json=body).status == 200
    sample(node)
    assert codes(node) == {"dead-letters": "queue 'q' in vhost '/'"}
    sample(node, 61)
    assert codes(node) == {}


def test_members_are_judged_without_a_majority(node: Any) -> None:
    management = node.management
    management.group.leader = None
    management.group.known["n1"].hears_leader = 0
    management.group.known["n2"] = management.group.known["n3"] = None
    sample(node)
    shown = node.api("doctor").json
    found = [(each["code"], each["subject"]) for each in shown["findings"] if each["severity"] != "info"]
    assert found == [("no-leader", "cluster"), ("node-down", "node n2"), ("node-down", "node n3")]
    assert shown["verdict"].startswith("1 critical, 2 warnings")
    assert shown["findings"][0]["since"] == "2027-01-15T08:00:00Z"
    sample(node, 3)
    assert node.api("doctor").json["findings"][0]["since"] == "2027-01-15T08:00:00Z"
    management.group.reasons["n3"] = "its cluster secret differs"
    sample(node)
    texts = [each["text"] for each in node.api("doctor").json["findings"] if each["code"] == "node-down"]
    assert texts == ["it does not answer", "there is no link with it: its cluster secret differs"]


def test_members_are_judged_at_the_time_of_the_request(node: Any) -> None:
    """And not as they were at the last sample, seconds ago."""
    group = node.management.group
    known = dict(group.known)
    sample(node)
    group.known["n2"] = None
    assert codes(node) == {"node-down": "node n2"}
    sample(node)
    group.known.update(known)
    assert codes(node) == {}


def test_duplicate_node_name_is_reported_by_the_peers(node: Any) -> None:
    """The second process connects to the peers."""
    management = node.management
    management.group.twice.add("n2")
    sample(node)
    assert codes(node) == {"name-twice": "node n2"}
    _, [finding] = _decode(msgpack.unpackb(pack(management.doctor._answer()))) or pytest.fail(
        "nothing is told"
    )
    assert (finding.code, finding.subject) == ("name-twice", "node n2")


def test_idle_shovel_is_reported_until_it_runs(node: Node[MachineManagement]) -> None:
    shown, key = node.management.carrier.current_reports, ("/", "s")
    value = {"src-uri": "amqp://far", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    assert node.api("parameters/shovel/%2F/s", "PUT", json={"value": value}).status == 201
    sample(node)
    assert codes(node) == {}
    subject = {"shovel-idle": "shovel 's' in vhost '/'"}
    for report in (Report("terminated", "nobody listens", {}), STARTING):
        shown[key] = report
        sample(node)
        assert codes(node) == subject
    [text] = [each["text"] for each in node.api("doctor").json["findings"] if each["code"] == "shovel-idle"]
    assert text == "it moves no messages: nobody listens"
    shown[key] = Report("running", None, {})
    sample(node)
    assert codes(node) == {}
    shown[key] = Report("terminated", "nobody listens", {})
    sample(node)
    assert node.api("parameters/shovel/%2F/s", "DELETE").status == 204
    sample(node)
    assert codes(node) == {}


def test_a_node_that_is_drained_for_long_may_have_been_forgotten(node: Any) -> None:
    group = node.management.group
    held = group.configurations.committed
    [_, member, _] = held.members
    members = [replace(each, is_drained=each is member) for each in held.members]
    group.configurations.committed = replace(held, members=tuple(members))
    sample(node)
    assert codes(node) == {"node-drained": "node n2"}
    for _ in range(61):
        node.clock_ms += 55_000  # samples that are far apart
        sample(node)
    assert codes(node) == {"drain-forgotten": "node n2"}


def test_findings_of_peers_are_included(node: Any) -> None:
    busy = Vitals(
        "n2",
        "9.9",
        100,
        0.004,
        0.001,
        50.0,
        0.008,
        0.1,
        0.4,
        1e6,
        [TenantUse("/", "a", 1e6, 3), TenantUse("/", "b", 0.0, 1)],
    )
    theirs = [busy, [Finding("disk-slow", "node n2", "it is slow", 1_800_000_000_000)]]

    async def shown(name: str, topic: str) -> Any:
        answers: dict[str, Any] = {"n2": theirs, "n3": [["n3"], "nothing that is known"]}
        return msgpack.unpackb(pack(answers[name])) if topic == "diagnosis" else None

    node.management.doctor._queries.query = shown
    sample(node)
    assert codes(node) == {
        "disk-slow": "node n2",
        "limited-by": "cluster",
        "releases-differ": "cluster",
        "tenant-heavy": "user 'a' in vhost '/'",
    }


def test_node_sends_findings_that_its_peers_can_read(node: Any) -> None:
    node.management.broker.alarm = "low on memory"
    sample(node)
    shown = _decode(msgpack.unpackb(pack(node.management.doctor._answer())))
    assert shown is not None
    vitals, [finding] = shown
    assert (vitals.name, finding.code, finding.subject) == ("n1", "memory-alarm", "node n1")
    assert _decode(None) is _decode([]) is _decode([[], []]) is None


def test_certificates_are_read_from_time_to_time(node: Any, tmp_path: Any) -> None:
    authority = trustme.CA()
    ends = datetime.fromtimestamp(1_800_000_000 + 86400 * 3.5, UTC)
    path = tmp_path / "cert.pem"
    authority.issue_cert("localhost", not_after=ends).cert_chain_pems[0].write_to_path(path)
    node.management.certificate_files.append(CertificateFiles("amqp/ssl", str(path), str(tmp_path / "gone")))
    sample(node)
    assert codes(node) == {
        "certificate-ends": f"{path} of node n1",
        "certificate-unreadable": f"{tmp_path}/gone of node n1",
    }


class _Connection:
    """A connection that is only looked at."""

    vhost, user = "/", "guest"
    channel_count = 1

    def __init__(self, number: int) -> None:
        self.id = number
        self.name = f"c{number}"
        self.octets = self.waiting = 0
        self.is_blocked = False
        self.closed_windows = ClosedWindows()

    def facts(self) -> ConnectionFacts:
        traffic = Traffic(self.octets, 1, 0, 0, self.waiting)
        closed = self.closed_windows
        return ConnectionFacts(is_blocked=self.is_blocked, traffic=traffic, closed_windows=closed)


def test_slow_and_blocked_clients_are_reported(node: Any) -> None:
    connections = {number: _Connection(number) for number in range(1, 100)}
    node.management.broker._dispatcher.connections.update(connections)
    connections[7].waiting = 2**20
    connections[8].is_blocked = True
    connections[9].octets = 10**6
    node.management.doctor._vitals._own = node.management.doctor._vitals._own._replace(connections_max=1000)
    sample(node, 7)
    assert node.management.clients.watch.blocked == 1
    assert codes(node) == {"client-reads-slowly": "connection c7"}
    connections[7].waiting = 0
    connections[5].closed_windows = ClosedWindows(1, 100)
    for sent in range(7):  # deliveries leave in this window
        connections[6].closed_windows = ClosedWindows(1, sent)
        sample(node, 1)
    assert codes(node) == {"client-reads-slowly": "connection c5"}
    connections[5].closed_windows = ClosedWindows()
    connections[9].octets += 10**6
    sample(node)
    [tenant] = node.management.clients.watch.tenants
    assert tenant == ("/", "guest", 200_000.0, 99)
    connections[7].waiting = 0
    sample(node)
    assert codes(node) == {}


def test_reached_limit_is_reported_for_a_minute(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [DelayingLimit("vhost", "/", MAX_PUBLISHES, 5, publishers=2)]
    monkeypatch.setattr(node.management.broker.throttle, "delaying_limits", lambda _: held)
    sample(node)
    held.clear()
    sample(node, MINUTE - 2)
    assert codes(node) == {"publishers-held": "vhost '/'"}
    sample(node)
    assert codes(node) == {}


def test_a_node_that_starts_is_not_busy_because_of_that(node: Any) -> None:
    management = node.management
    management.doctor._vitals._own = management.doctor._vitals._own._replace(connections_max=1000)
    loop_times = management.doctor._vitals._group.heartbeat_delays
    sample(node)
    for _ in range(10):
        loop_times.add(3.0)
    sample(node, MINUTE)
    assert codes(node) == {}
    loop_times.add(3.0)
    sample(node)
    assert codes(node) == {"loop-busy": "node n1"}


def test_commits_that_waited_for_an_election_do_not_count(node: Any) -> None:
    broker, vitals = node.management.broker, node.management.doctor._vitals
    sample(node)
    broker.submissions.commit_times.add(2.0)
    sample(node)
    assert vitals.commit_s == 2.0
    broker.submissions.commit_times.add(4.0)
    broker.elections += 1
    sample(node)
    assert vitals.commit_s == 0
    broker.submissions.commit_times.add(0.5)
    sample(node)
    assert vitals.commit_s == 0.5


def test_findings_about_very_many_queues_are_bounded(node: Any) -> None:
    management = node.management
    names = [f"{number}" + "\u20ac" * 80 for number in range(3000)]
    for start in range(0, len(names), 500):
        management.make(
            *(
                DeclareQueue(0, 0, name, False, True, False, False, False, {})
                for name in names[start : start + 500]
            )
        )
    for queue in management.machine.queues():
        queue.backlog.add(1, 0, 1, 10)
    sample(node, MINUTE)
    shown = [each for each in node.api("doctor").json["findings"] if each["code"] == "no-consumers"]
    assert len(shown) == 11
    assert shown[-1]["text"] == "the same holds for 2,990 more"


def test_sinks_with_old_uncommitted_messages_are_reported(node: Any) -> None:
    assert node.api("queues/%2F/q", "PUT").status == 201
    sample(node)
    for sink in ("growing", "silent"):
        node.management.make(OpenSink("/", sink, "guest", 0))
        stage = StageMessages("/", sink, "guest", 0, "a", 0, 2, "", "q", 1, [], NO_PRIORITY, NO_TTL, 0)
        node.management.keep(encode_batch([stage], [b"x", b"y"]))
    sinks = node.management.machine.vhosts["/"].sinks
    for sink in sinks.values():
        sink.used_ms = node.clock_ms  # the fake applies entries at time 0
    sample(node)
    assert not {"sink-silent", "sink-grows"} & codes(node).keys()
    node.clock_ms += SILENT_MS + PASS_MS
    sinks["growing"].used_ms = node.clock_ms
    sample(node)
    found = codes(node)
    assert found["sink-silent"] == "sink 'silent' in vhost '/'"
    assert found["sink-grows"] == "sink 'growing' in vhost '/'"
    [finding] = [each for each in node.api("doctor").json["findings"] if each["code"] == "sink-grows"]
    assert finding["text"].startswith("it has 2 uncommitted messages in 1 attempt, the oldest for 30 minutes")
    assert finding["object"] == {"kind": "sink", "vhost": "/", "name": "growing"}
    node.management.make(*(CloseSink("/", sink, "guest") for sink in list(sinks)))
    sample(node)
    assert not {"sink-silent", "sink-grows"} & codes(node).keys()
