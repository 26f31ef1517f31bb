"""docker-compose.yml, run by a real engine: `make deploy-test`, which takes minutes.

The tests share a deployment. Each waits for three healthy nodes, which may still recover from the test before.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator
from typing import Any

import pytest

from qq import __version__
from qq.machine.machine import QueueMachine
from tests.deploy.deployment import DEPLOY, NODES, ROOT, RUNS_AS, document, interpolated, published
from tests.deploy.engine import BUILT_FROM, PASSWORD, PROJECT, Deployment, Engine, wait_until
from tests.deploy.publisher import QUEUE, Consumer, Publisher, connect, consumed, publish

pytestmark = [pytest.mark.deployed, pytest.mark.timeout(1800)]

SERVICES: dict[str, dict[str, Any]] = interpolated(document(ROOT / "docker-compose.yml"), {})["services"]
BOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "qq.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
ALERTS = {
    rule["alert"]
    for group in document(DEPLOY / "prometheus" / "alerts.yml")["groups"]
    for rule in group["rules"]
}
# A stopping node hands over; a killed node may be taken for silent, and then an election takes a few seconds.
PAUSE_AFTER_STOP_S = 3.0
PAUSE_AFTER_KILL_S = 8.0
DOWN_S = 180.0
"""A node that cannot start is down for good by then: compose tries six times, and each start may take long."""


def port_of(service: str, inside: int) -> int:
    """Return the port of this machine that leads to a port of a container."""
    return published(SERVICES[service])[inside]


def amqp_ports(*nodes: str) -> list[int]:
    return [port_of(node, 5672) for node in nodes]


def peers_of(node: str) -> list[str]:
    return [name for name in NODES if name != node]


def write(text: str) -> None:
    """Print a figure: that it was measured matters as much as that it was good enough."""
    print(f"    {text}")


@pytest.fixture(scope="session")
def deployed(engine: Engine) -> Generator[Deployment]:
    """A new cluster, removed with its data at the end, also if it does not start."""
    deployment = Deployment(engine)
    deployment.remove()
    try:
        deployment.build(*NODES)
        write(f"healthy after {deployment.start(*NODES):.1f} s")
        yield deployment
    finally:
        deployment.remove()


@pytest.fixture
def cluster(deployed: Deployment) -> Deployment:
    """The deployment with three healthy nodes."""
    deployed.start(*NODES)
    return deployed


# The image


def test_image_has_title_version_and_user(engine: Engine, image: str) -> None:
    (document,) = json.loads(engine.run("image", "inspect", image).stdout)
    config = document["Config"]
    labels = {
        name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()
    }
    assert labels.keys() >= {"title", "description", "licenses", "version", "revision"}
    assert (labels["title"], labels["version"], labels["revision"]) == ("qq", __version__, BUILT_FROM)
    assert config["User"] == f"{RUNS_AS}:{RUNS_AS}"
    write(f"{document['Size'] / 2**20:.0f} MiB")


def test_node_image_contains_neither_chaos_nor_build_tools(engine: Engine, image: str) -> None:
    found = "import importlib.util as u; print([n for n in ('chaos', 'pip', 'setuptools') if u.find_spec(n)])"
    assert engine.run("run", "--rm", "--entrypoint", "python", image, "-c", found).stdout == "[]\n"


@pytest.mark.parametrize(
    ("extra", "module"),
    [("arrow", "pyarrow.ipc"), ("oauth2", "qq.oauth2.verifier"), ("tracing", "qq.tracing.tracer")],
)
def test_image_with_an_extra_imports_its_module(engine: Engine, extra: str, module: str) -> None:
    name = f"{PROJECT}-{extra}"
    via = f"REQUIREMENTS={extra}"
    program = f"from qq.process.packages import find_cluster; find_cluster(); import qq.node, {module}"
    engine.run("build", "-f", "deploy/Dockerfile", "-t", name, "--build-arg", via, ".", shown=True)
    try:
        engine.run("run", "--rm", "--entrypoint", "python", name, "-c", program)
    finally:
        engine.run("rmi", name)


def test_a_node_runs_as_its_own_user_and_owns_its_data(cluster: Deployment) -> None:
    for node in NODES:
        assert cluster.compose("exec", "-T", node, "id", "-u").stdout.strip() == str(RUNS_AS)
        owner = cluster.compose("exec", "-T", node, "stat", "-c", "%u:%g", "/var/lib/qq").stdout.strip()
        assert owner == f"{RUNS_AS}:{RUNS_AS}"


# The cluster


def test_three_voters_agree_on_a_leader(cluster: Deployment) -> None:
    status = json.loads(cluster.qq("n1", "status", "--json").stdout)
    assert {node["name"]: node["standing"] for node in status["nodes"]} == dict.fromkeys(NODES, "voter")
    assert {cluster.qq(node, "leader", "show").stdout.strip() for node in NODES} == {cluster.leader()}


def hurt(cluster: Deployment, queue: str, fault: Callable[[str], None]) -> float:
    """Carry out a fault on the leader while an application publishes at its peers.

    Return the seconds without a confirm. No confirmed message may be lost.
    """
    leader = cluster.leader()
    with Publisher(amqp_ports(*peers_of(leader)), queue) as publisher:
        publisher.wait_for_confirms()
        fault(leader)
        publisher.wait_for_confirms()
        cluster.start(leader)
        publisher.wait_for_confirms()
    assert consumed(amqp_ports(leader)[0], queue) >= {body for _, body in publisher.confirmed}
    return publisher.longest_pause()


def test_publishers_continue_when_the_leader_is_stopped(cluster: Deployment) -> None:
    pause_s = hurt(cluster, "stopped", lambda leader: cluster.compose("stop", leader))
    write(f"leader stopped: nothing was confirmed for {pause_s:.2f} s")
    assert pause_s < PAUSE_AFTER_STOP_S


def test_publishers_continue_when_the_leader_is_killed(cluster: Deployment) -> None:
    pause_s = hurt(cluster, "killed", cluster.kill)
    write(f"leader killed: nothing was confirmed for {pause_s:.2f} s")
    assert pause_s < PAUSE_AFTER_KILL_S


def test_nodes_restart_in_turn_when_safe_to_stop(cluster: Deployment) -> None:
    with Publisher(amqp_ports(*NODES), "restarted") as publisher:
        for node in NODES:
            publisher.wait_for_confirms()
            cluster.wait_until_safe_to_stop(node, via=node)
            cluster.compose("stop", node)
            other = peers_of(node)[0]
            wait_until(
                lambda via=other: cluster.qq(via, "check", "safe-to-stop").returncode == 1,
                10,
                lambda via=other, stopped=node: f"{via} has not said no while {stopped} is away",
            )
            cluster.start(node)
        publisher.wait_for_confirms()
    write(f"rolling restart: nothing was confirmed for {publisher.longest_pause():.2f} s at most")
    assert publisher.longest_pause() < PAUSE_AFTER_STOP_S
    assert consumed(amqp_ports("n1")[0], "restarted") >= {body for _, body in publisher.confirmed}


def test_drained_node_is_unhealthy_but_runs(cluster: Deployment) -> None:
    drained = cluster.qq("n1", "drain", "n3")
    assert drained.stdout == "n3 is under maintenance: it leads nothing and has no clients\n", drained.stderr
    wait_until(
        lambda: cluster.state("n3")["Health"]["Status"] == "unhealthy",
        60,
        lambda: cluster.last_log_lines("n3"),
    )
    assert cluster.state("n3")["Status"] == "running"
    cluster.wait_until_safe_to_stop("n3", via="n1")
    revived = cluster.qq("n1", "revive", "n3")
    assert revived.returncode == 0, revived.stderr
    cluster.wait_healthy("n3")


def test_messages_survive_compose_down_and_up(cluster: Deployment) -> None:
    bodies = {str(number).encode() for number in range(500)}
    with connect(*amqp_ports("n1")) as connection:
        channel = connection.channel()
        channel.queue_declare("kept", **QUEUE)
        channel.confirm_delivery()
        for body in bodies:
            publish(channel, "kept", body)
    cluster.compose("down")
    write(f"healthy {cluster.start(*NODES):.1f} s after down and up")
    assert consumed(amqp_ports("n2")[0], "kept") == bodies


def test_node_with_an_invalid_setting_exits_and_stays_down(cluster: Deployment) -> None:
    cluster.compose("up", "--detach", "--no-build", "n3", QQ_CLUSTER_SECRET="short")
    ended_s = wait_until(
        lambda: cluster.state("n3")["Status"] == "exited", DOWN_S, lambda: cluster.last_log_lines("n3")
    )
    assert cluster.state("n3")["ExitCode"] == 78
    tried = cluster.inspect("n3")["RestartCount"]
    write(f"exit status 78: down for good after {tried} restarts and {ended_s:.1f} s")
    time.sleep(15)
    assert cluster.state("n3")["Status"] == "exited"
    assert cluster.inspect("n3")["RestartCount"] == tried
    assert "SECRET: must have at least 16" in cluster.last_log_lines("n3")
    cluster.start("n3")


# Members and upgrades


@pytest.fixture
def new_cluster(deployed: Deployment, image: str) -> Generator[Deployment]:
    """A deployment without members, for a test that chooses images and members; its members are removed afterwards."""
    deployed.forget()
    yield deployed
    deployed.forget()
    deployed.use(image, *NODES)


def assert_no_message_is_lost(port: int, publisher: Publisher, consumer: Consumer) -> None:
    """Assert that each confirmed message was taken or is still in the queue."""
    confirmed = {body for _, body in publisher.confirmed}
    assert len(consumer.taken) > 100
    lost = confirmed - consumer.taken - consumed(port, "worked")
    write(f"{len(confirmed)} confirmed, {len(lost)} lost")
    write(f"nothing was confirmed for {publisher.longest_pause():.2f} s at most")
    assert not lost
    assert publisher.longest_pause() < PAUSE_AFTER_STOP_S


def test_fourth_node_joins_and_the_leader_is_removed_under_load(new_cluster: Deployment, image: str) -> None:
    new_cluster.use(image, *NODES, "n4")
    new_cluster.start(*NODES)
    ports = amqp_ports(*NODES)
    with Publisher(ports, "worked") as publisher, Consumer(ports, "worked") as consumer:
        publisher.wait_for_confirms()
        write(f"n4 serves after {new_cluster.start('n4'):.1f} s")
        added = new_cluster.qq("n1", "member", "add", "n4", "n4:25672")
        assert added.stdout == "n4 votes\n", added.stderr
        publisher.wait_for_confirms()
        leader = new_cluster.leader()
        removed = new_cluster.qq("n4", "member", "remove", leader)
        assert removed.returncode == 0, removed.stderr
        publisher.wait_for_confirms()
        wait_until(
            lambda: new_cluster.state(leader)["Status"] == "exited",
            DOWN_S,
            lambda: new_cluster.last_log_lines(leader),
        )
        assert new_cluster.state(leader)["ExitCode"] == 78
        publisher.wait_for_confirms()
    roles = {member["name"]: member["role"] for member in new_cluster.members("n4")["members"]}
    assert roles == dict.fromkeys([*peers_of(leader), "n4"], "voter")
    assert_no_message_is_lost(port_of("n4", 5672), publisher, consumer)


def test_release_0_1_is_upgraded_node_by_node_under_load(
    new_cluster: Deployment, release_image: str, image: str
) -> None:
    """The first node is upgraded when all are healthy, because the release has no check.

    Then upgraded nodes run the check.
    """
    new_cluster.use(release_image, *NODES)
    new_cluster.start(*NODES)
    before, after = QueueMachine.versions
    ports = amqp_ports(*NODES)
    with Publisher(ports, "worked") as publisher, Consumer(ports, "worked") as consumer:
        for number, node in enumerate(NODES):
            publisher.wait_for_confirms()
            if number > 0:
                new_cluster.wait_until_safe_to_stop(node, via=NODES[number - 1])
                assert new_cluster.members(NODES[0])["version"] == before
            new_cluster.use(image, node)
            write(f"{node} serves again {new_cluster.start(node):.1f} s after it was told to stop")
        raised_s = wait_until(
            lambda: {new_cluster.members(node)["version"] for node in NODES} == {after},
            60,
            lambda: str([new_cluster.members(node) for node in NODES]),
        )
        write(f"all go by version {after} of the state {raised_s:.1f} s later")
        publisher.wait_for_confirms()
    assert_no_message_is_lost(ports[0], publisher, consumer)


# Prometheus and Grafana


def json_of(url: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} | (headers or {}))
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


@pytest.fixture(scope="session")
def prometheus(deployed: Deployment) -> str:
    """Where Prometheus answers."""
    deployed.compose("up", "--detach", "prometheus")
    url = f"http://127.0.0.1:{port_of('prometheus', 9090)}"
    wait_until(lambda: answers(f"{url}/-/ready"), 60, lambda: deployed.last_log_lines("prometheus"))
    return url


def targets(prometheus: str) -> dict[str, str]:
    """How the nodes are that Prometheus asks, by their names."""
    active = json_of(f"{prometheus}/api/v1/targets?state=active")["data"]["activeTargets"]
    return {target["labels"]["node"]: target["health"] for target in active}


def test_all_nodes_are_targets_of_prometheus(cluster: Deployment, prometheus: str) -> None:
    expected = dict.fromkeys(NODES, "up")
    wait_until(lambda: targets(prometheus) == expected, 60, lambda: str(targets(prometheus)))


def test_a_node_that_joins_becomes_a_target_of_prometheus(
    cluster: Deployment, prometheus: str, image: str
) -> None:
    cluster.use(image, "n4")
    cluster.start("n4")
    added = cluster.qq("n1", "member", "add", "n4", "n4:25672")
    assert added.returncode == 0, added.stderr
    expected = dict.fromkeys((*NODES, "n4"), "up")
    wait_until(lambda: targets(prometheus) == expected, 60, lambda: str(targets(prometheus)))
    removed = cluster.qq("n1", "member", "remove", "n4")
    assert removed.returncode == 0, removed.stderr
    cluster.compose("rm", "--stop", "--force", "n4")


def test_prometheus_evaluates_all_alerts(prometheus: str) -> None:
    def health() -> dict[str, str]:
        groups = json_of(f"{prometheus}/api/v1/rules?type=alert")["data"]["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    wait_until(lambda: health() == dict.fromkeys(ALERTS, "ok"), 60, lambda: str(health()))


def unanswered(query: Callable[[str], bool]) -> list[str]:
    """Return the queries of the board without data, for all clusters and nodes, and the last minute."""
    filled = []
    for text in QUERIES:
        for variable in BOARD["templating"]["list"]:
            text = text.replace(f"${variable['name']}", variable.get("allValue", ".+"))
        filled.append(text.replace("$__rate_interval", "1m"))
    return [text for text in filled if not query(text)]


def test_prometheus_has_data_for_each_query_of_the_board(cluster: Deployment, prometheus: str) -> None:
    def query(text: str) -> bool:
        via = urllib.parse.urlencode({"query": text})
        return bool(json_of(f"{prometheus}/api/v1/query?{via}")["data"]["result"])

    assert len(QUERIES) > 20
    wait_until(lambda: not unanswered(query), 60, lambda: f"no data for {unanswered(query)}")


def test_grafana_shows_the_board_with_data_for_each_query(cluster: Deployment, prometheus: str) -> None:
    cluster.compose("up", "--detach", "grafana")
    url = f"http://127.0.0.1:{port_of('grafana', 3000)}"
    wait_until(lambda: answers(f"{url}/api/health"), 120, lambda: cluster.last_log_lines("grafana"))
    login = {"Authorization": "Basic " + base64.b64encode(f"admin:{PASSWORD}".encode()).decode()}
    shown = json_of(f"{url}/api/dashboards/uid/{BOARD['uid']}", headers=login)["dashboard"]
    assert [panel["title"] for panel in shown["panels"]] == [panel["title"] for panel in BOARD["panels"]]

    def query(text: str) -> bool:
        source = {"type": "prometheus", "uid": "prometheus"}
        via = {"refId": "A", "datasource": source, "expr": text, "range": True, "intervalMs": 5000}
        answer = json_of(f"{url}/api/ds/query", {"from": "now-5m", "to": "now", "queries": [via]}, login)
        return any(frame["data"]["values"] for frame in answer["results"]["A"].get("frames", []))

    wait_until(lambda: not unanswered(query), 60, lambda: f"no data for {unanswered(query)}")


# The chaos workload, through Toxiproxy


def test_the_chaos_workload_finds_no_broken_promise(cluster: Deployment) -> None:
    cluster.build("toxiproxy", "chaos")
    cluster.compose("up", "--detach", "toxiproxy")
    ran = cluster.compose("run", "--rm", "chaos", check=False, CHAOS_FOR="20s")
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    for line in ran.stdout.splitlines():
        write(line)
