"""Health checks under RabbitMQ's paths, on a fake node with a state set by the test."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from cluster.raft.messages import Alarm
from qq.machine.protocol.commands import ClearPermissions
from qq.management.reports.nodes import CertificateFiles, Listener
from tests.http.fakes import FakeManagement
from tests.http.http_node import Node, login

Fake = Node[FakeManagement]
OK = {"status": "ok"}


@pytest.fixture
def node() -> Fake:
    node = Node(FakeManagement())
    node.management.listeners += [Listener("http", "10.0.0.1", 15672), Listener("amqp", "10.0.0.1", 5672)]
    return node


def check(node: Fake, path: str, **options: Any) -> tuple[int, Any]:
    answer = node.api(f"health/checks/{path}", **options)
    return answer.status, answer.json


def failed(reason: str, **more: Any) -> tuple[int, Any]:
    return 503, {"status": "failed", "reason": reason, **more}


ALWAYS_WELL = [
    "alarms",
    "local-alarms",
    "metadata-store/initialized",
    "metadata-store/initialized/with-data",
    "certificate-expiration/1/days",
    "virtual-hosts",
    "quorum-queues-without-elected-leaders/all-vhosts/",
    "quorum-queues-without-elected-leaders/vhost/%2F/",
    "quorum-queues-without-elected-leaders/all-vhosts/pattern/%5Eo",
    "quorum-queues-without-elected-leaders/vhost/%2F/pattern/x",
    "is-in-service",
    "below-node-connection-limit",
    "ready-to-serve-clients",
]


@pytest.mark.parametrize("path", ALWAYS_WELL)
def test_healthy_node_passes(node: Fake, path: str) -> None:
    assert check(node, path) == (200, OK)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("is-in-service", 200),
        ("below-node-connection-limit", 200),
        ("ready-to-serve-clients/", 200),
        ("reached-target-cluster-size", 503),
        ("alarms", 401),
        ("is-in-service/x", 401),
    ],
)
def test_checks_for_load_balancers_need_no_login(node: Fake, path: str, status: int) -> None:
    assert node.request(f"/api/health/checks/{path}").status == status


def test_alarms_of_reachable_nodes_are_listed(node: Fake) -> None:
    node.management.group.known["n2"].alarm = Alarm.DISK | Alarm.MEMORY
    both = [{"resource": "memory", "node": "n2"}, {"resource": "disk space", "node": "n2"}]
    assert check(node, "alarms") == failed("There are alarms in effect in the cluster", alarms=both)
    assert check(node, "local-alarms") == (200, OK)
    node.management.group.known |= {"n2": None, "n1": SimpleNamespace(alarm=Alarm.DISK)}
    mine = [{"resource": "disk space", "node": "n1"}]
    assert check(node, "local-alarms") == failed("There are alarms in effect on the node", alarms=mine)
    assert check(node, "alarms")[1]["alarms"] == mine


def test_a_node_that_is_repaired_is_not_initialized(node: Fake) -> None:
    node.management.group.flaw = "it is a learner"
    text = "Metadata store has not yet reported as initialized: it is a learner"
    assert check(node, "metadata-store/initialized") == failed(text)
    assert check(node, "metadata-store/initialized/with-data") == failed(text)
    down = {"virtual-hosts": ["/", "empty"]}
    assert check(node, "virtual-hosts") == failed("Some virtual hosts are down: it is a learner", **down)


def test_checks_of_a_node_that_does_not_serve_give_the_reason(node: Fake) -> None:
    node.view.reason = "no leader"
    text = "rabbit node is not currently available to serve: no leader"
    assert check(node, "is-in-service") == failed(f"this {text}")
    assert check(node, "ready-to-serve-clients") == failed(f"the {text}")
    assert node.api("aliveness-test/%2F").json == failed("no leader")[1]
    assert node.api("healthchecks/node").json == failed("no leader")[1]


def test_node_without_an_amqp_listener_is_not_ready(node: Fake) -> None:
    del node.management.listeners[1]
    assert check(node, "ready-to-serve-clients") == failed("no active listeners for AMQP/AMQPS")


def test_node_at_its_connection_limit_is_not_ready(node: Fake) -> None:
    connections: Any = node.management.broker.connections
    connections.update(dict.fromkeys(range(2)))
    assert check(node, "below-node-connection-limit") == (200, OK)
    connections[2] = None
    assert check(node, "below-node-connection-limit") == failed("node connection limit is reached")
    assert check(node, "ready-to-serve-clients") == failed("node connection limit is reached", connections=3)


def test_a_cluster_is_complete_when_all_members_are_up(node: Fake) -> None:
    reason = "target cluster size not reached: 1 of 2 nodes are online"
    assert check(node, "reached-target-cluster-size") == failed(reason, online=1, target=2)
    status = node.view.cluster_status()
    node.view.cluster_status = lambda: status._replace(nodes=status.nodes[:1])
    assert check(node, "reached-target-cluster-size") == (200, OK)


def test_quorum_queues_without_a_leader_are_listed(node: Fake) -> None:
    node.management.group.leader = None
    node.management.queues.names = ["orders", "other"]
    path = "quorum-queues-without-elected-leaders"
    for form, names in (
        ("all-vhosts/", ["orders", "other"]),
        ("vhost/%2F/pattern/%5Eord", ["orders"]),
        ("all-vhosts/pattern/nothing", []),
        ("vhost/empty/", []),
    ):
        status, document = check(node, f"{path}/{form}")
        assert status == (503 if names else 200)
        assert [queue["name"] for queue in document.get("queues", [])] == names
    assert document == OK


def test_health_check_of_a_missing_virtual_host_is_404(node: Fake) -> None:
    path = "quorum-queues-without-elected-leaders/vhost/prodution"
    assert check(node, path)[0] == check(node, f"{path}/pattern/x")[0] == 404


def test_a_pattern_may_have_braces(node: Fake) -> None:
    node.management.group.leader = None
    path = "quorum-queues-without-elected-leaders/all-vhosts/pattern/o%7B1,2%7Drders"
    assert check(node, path)[0] == 503


@pytest.mark.parametrize("pattern", ["%28", "(" * 20, "x" * 5000])
def test_invalid_pattern_is_400(node: Fake, pattern: str) -> None:
    assert check(node, f"quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}")[0] == 400


def test_a_pattern_that_would_take_for_ever_takes_no_time(node: Fake) -> None:
    node.management.group.leader = None
    node.management.queues.names = ["a" * 200] * 20
    pattern = "%28a%2B%29%2B%24b"  # (a+)+$b
    assert check(node, f"quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}") == (200, OK)


def test_only_open_ports_and_protocols_pass(node: Fake) -> None:
    assert check(node, "port-listener/5672") == (200, OK | {"port": 5672})
    assert check(node, "port-listener/1") == failed("No active listener", missing=1, ports=[5672, 15672])
    for port in ("x", "-1", "1" * 5000, "%C2%B2"):
        assert check(node, f"port-listener/{port}") == (
            400,
            {"error": "bad_request", "reason": "Invalid port"},
        )
    protocols = ["amqp", "http"]
    for form in ("amqp", "AMQP091", "amqp0-9-1,management"):
        assert check(node, f"protocol-listener/{form}") == (
            200,
            OK | {"protocol": form.lower(), "protocols": protocols},
        )
    missing = failed("No active listener", missing=["amqp/ssl", "mqtt"], protocols=protocols)
    assert check(node, "protocol-listener/amqps,mqtt,amqp") == missing


def test_aliveness_test_needs_a_visible_virtual_host(node: Fake) -> None:
    assert node.api("aliveness-test/%2F").json == OK
    assert node.api("aliveness-test/other").status == 404
    node.add_user("ann", "monitoring", vhosts=("/",))
    assert node.api("aliveness-test/%2F", user="ann").json == OK
    assert node.api("aliveness-test/empty", user="ann").status == 404


def test_a_node_is_checked_by_name(node: Fake) -> None:
    assert node.api("healthchecks/node").json == node.api("healthchecks/node/n1").json == OK
    assert node.api("healthchecks/node/n2").json == failed("n2 is down")[1]
    node.management.group.known["n1"].alarm = Alarm.MEMORY
    assert node.api("healthchecks/node/n1").json == failed("resource alarm(s) in effect: memory")[1]
    assert node.api("healthchecks/node/n9").status == 404


# --- checks that the accepting thread answers


def repeated(node: Fake, path: str, user: str = "guest") -> tuple[int, Any] | None:
    """Return the thread's answer to a check that was requested before; None if the event loop must answer."""
    node.repeated.update()
    authorization = login(user)["Authorization"] if user else ""
    found = node.repeated.find("127.0.0.1", f"/api/{path}", authorization)
    return found and (found[0], json.loads(found[1]))


def test_repeated_checks_follow_the_state_of_the_node(node: Fake) -> None:
    paths = [
        *(f"health/checks/{path}" for path in ALWAYS_WELL if not path.startswith("certificate")),
        "aliveness-test/%2F",
        "healthchecks/node/n1",
    ]
    for path in paths:
        assert repeated(node, path) is None
        answer = node.api(path)
        assert answer.headers["Connection"] == "close"
        assert repeated(node, path) == (answer.status, answer.json) == (200, OK)
    node.view.reason = "no leader"
    assert repeated(node, "healthchecks/node/n1") == failed("no leader")
    assert repeated(node, "health/checks/alarms") == (200, OK)


def test_repeated_check_needs_the_same_login_and_address(node: Fake) -> None:
    path = "health/checks/alarms"
    node.add_user("ann", "monitoring")
    assert node.api(path).status == 200
    assert repeated(node, path) == (200, OK)
    for user in ("ann", ""):
        assert repeated(node, path, user) is None
    assert node.repeated.find("127.0.0.2", f"/api/{path}", login("guest")["Authorization"]) is None


def test_repeated_check_ends_when_the_account_changes(node: Fake) -> None:
    path = "health/checks/alarms"
    node.add_user("ann", "monitoring")
    assert node.api(path, user="ann").status == 200
    assert repeated(node, path, "ann") == (200, OK)
    node.view.tags["ann"] = []
    assert repeated(node, path, "ann") is None


def test_refused_login_leaves_no_repeated_check(node: Fake) -> None:
    assert node.api("health/checks/alarms", user="nobody").status == 401
    assert repeated(node, "health/checks/alarms", "nobody") is None


def test_open_check_is_repeated_without_a_login(node: Fake) -> None:
    path = "health/checks/is-in-service"
    assert node.request(f"/api/{path}").status == 200
    assert repeated(node, path, "") == (200, OK)


def test_aliveness_test_of_a_hidden_virtual_host_is_not_repeated(node: Fake) -> None:
    node.add_user("ann", "management", vhosts=("/",))
    assert node.api("aliveness-test/%2F", user="ann").json == OK
    assert repeated(node, "aliveness-test/%2F", "ann") == (200, OK)
    node.management.make(ClearPermissions("ann", "/"))
    assert repeated(node, "aliveness-test/%2F", "ann") is None


def test_repeated_checks_read_no_list_of_virtual_hosts(node: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4,000 virtual hosts, 32 repeated checks held up the event loop for 66 ms, four times a second."""
    with_data, up = "health/checks/metadata-store/initialized/with-data", "health/checks/virtual-hosts"
    monkeypatch.setattr(node.management.catalog, "vhosts", list)
    for path in (with_data, up):
        assert node.api(path).json == OK
        assert repeated(node, path) == (200, OK)
    node.management.group.flaw = "it is a learner"
    assert node.api(up).status == 503
    assert repeated(node, up) is None
    assert repeated(node, with_data) is not None


def test_check_that_fails_with_an_error_is_not_repeated(node: Fake) -> None:
    assert node.api("health/checks/local-alarms").status == 200
    node.view.broken = True
    assert repeated(node, "health/checks/local-alarms") is None


# --- certificates


@pytest.fixture
def certificate(tmp_path: Path) -> CertificateFiles:
    """It expires in ten days, and the certificate of its authority in years."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", not_after=datetime.now(UTC) + timedelta(days=10, hours=1))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    return CertificateFiles("amqp/ssl", str(tmp_path / "cert.pem"), str(tmp_path / "ca.pem"))


def test_certificates_that_expire_within_the_period_are_reported(
    node: Fake, certificate: CertificateFiles
) -> None:
    node.management.certificate_files.append(certificate)
    node.management.listeners.append(Listener("amqp/ssl", "10.0.0.1", 5671, uses_tls=True))
    for within in ("9/days", "1/weeks"):
        assert check(node, f"certificate-expiration/{within}") == (200, OK)
    for within in ("11/days", "2/WEEKS", "1/months", "1/years"):
        status, document = check(node, f"certificate-expiration/{within}")
        assert (status, document["reason"]) == (503, "Certificates expiring")
        [expired] = document["expired"]
        [when] = expired.pop("certfile_expires_on")
        ends = datetime.strptime(when, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        assert timedelta(days=10) < ends - datetime.now(UTC) < timedelta(days=10, hours=1)
        assert expired == {
            "node": "n1",
            "protocol": "amqp/ssl",
            "interface": "10.0.0.1",
            "port": 5671,
            "certfile": certificate.cert,
            "cacertfile": certificate.ca,
            "cacertfile_expires_on": [],
        }
    [expired] = check(node, "certificate-expiration/999999999/years")[1]["expired"]
    assert len(expired["cacertfile_expires_on"]) == 1


def test_a_certificate_that_cannot_be_read_has_no_time_to_expire(
    node: Fake, certificate: CertificateFiles, tmp_path: Path
) -> None:
    torn = tmp_path / "torn.pem"
    torn.write_bytes(Path(certificate.cert).read_bytes()[:300])
    files = certificate._replace(cert=str(torn), ca=str(tmp_path / "none.pem"))
    node.management.certificate_files.append(files)
    [expired] = check(node, "certificate-expiration/1/days")[1]["expired"]
    assert expired["certfile_expires_on"] == ["there is no certificate in it"]
    assert expired["cacertfile_expires_on"] == ["it cannot be read: No such file or directory"]


@pytest.mark.parametrize(
    ("within", "reason"),
    [
        ("x/days", "Invalid expiration value."),
        ("-1/days", "Invalid expiration value."),
        (f"{'9' * sys.int_info.default_max_str_digits}9/days", "Invalid expiration value."),
        ("1/hours", "Time unit not recognised. Supported units: days, weeks, months, years."),
    ],
)
def test_invalid_expiration_period_is_400(node: Fake, within: str, reason: str) -> None:
    assert check(node, f"certificate-expiration/{within}") == (
        400,
        {"error": "bad_request", "reason": reason},
    )
