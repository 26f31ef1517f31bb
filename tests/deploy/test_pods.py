"""The pods of deploy/kubernetes as containers: `make deploy-test`. Features of Kubernetes itself are not tested.

Image, arguments, environment, user, limits, ConfigMap, Secrets and names are those of the manifests, and certificates
are made as docs/how-to/kubernetes.md describes.
"""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.deploy.deployment import DEPLOY, document, documents
from tests.deploy.engine import PASSWORD, PROJECT, Engine, wait_until
from tests.deploy.how_to import secrets_for_kubernetes, with_a_fourth_node

pytestmark = [pytest.mark.deployed, pytest.mark.timeout(1800)]

SET = document(DEPLOY / "kubernetes" / "statefulset.yaml")["spec"]
POD = SET["template"]["spec"]
(CONTAINER,) = POD["containers"]
CONFIG = documents(DEPLOY / "kubernetes" / "config.yaml")[0]["data"]
NAMES = [f"qq-{number}" for number in range(SET["replicas"])]
ADDED = f"qq-{SET['replicas']}"
MOUNTED = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
NETWORK = f"{PROJECT}-pods"


class Pods:
    """The pods' containers, each with a volume, on a network where they have the names that a Service gives them."""

    def __init__(self, engine: Engine, image: str, directory: Path) -> None:
        self.engine = engine
        self.authority = directory / "tls" / "ca.crt"
        self._image = image
        self._directory = directory

    def start(self, name: str) -> None:
        context, pod = CONTAINER["securityContext"], POD["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        options = [
            *("--detach", "--name", self.container(name), "--hostname", name),
            *("--network", NETWORK, "--network-alias", f"{name}.{SET['serviceName']}"),
            *("--user", f"{pod['runAsUser']}:{pod['runAsGroup']}"),
            *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--memory", CONTAINER["resources"]["limits"]["memory"].removesuffix("i").lower()),
            *("--env", f"{CONTAINER['env'][0]['name']}={name}"),
            *("--publish", f"127.0.0.1::{PORTS['amqps']}", "--publish", f"127.0.0.1::{PORTS['http']}"),
            *("--volume", f"{self.container(name)}:{MOUNTED['data']}"),
        ]
        for volume in MOUNTED.keys() - {"data"}:
            options += ["--volume", f"{self._directory / volume}:{MOUNTED[volume]}:ro"]
        # Kubernetes gives a volume to the pod's group. A new volume of the engine has the owner of the image's
        # directory.
        self.engine.run("run", *options, self._image, *CONTAINER["args"])

    def container(self, name: str) -> str:
        return f"{PROJECT}-pod-{name}"

    def configure(self, settings: str) -> None:
        """Change the ConfigMap: pods read it when they start."""
        (self._directory / "config" / "node.toml").write_text(settings)

    def qq(self, name: str, *arguments: str) -> str:
        """Run the command in a pod as in the documentation, and return its output."""
        login = ("--user", "admin", "--password-file", f"{MOUNTED['secrets']}/admin-password")
        return self.engine.run("exec", self.container(name), "qq", *arguments, *login).stdout

    def is_ready(self, name: str) -> bool:
        url = f"http://127.0.0.1:{self.port(name, 'http')}{CONTAINER['readinessProbe']['httpGet']['path']}"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except OSError:
            return False

    def port(self, name: str, of: str) -> int:
        shown = self.engine.run("port", self.container(name), str(PORTS[of])).stdout
        return int(shown.splitlines()[0].rpartition(":")[2])

    def state(self, name: str) -> dict[str, Any]:
        return self.engine.inspect(self.container(name))["State"]

    def logged(self, name: str) -> str:
        logged = self.engine.run("logs", "--tail", "20", self.container(name))
        return logged.stdout + logged.stderr

    def delete(self, name: str) -> None:
        """Delete a pod and its volume, if they are there."""
        self.engine.run("rm", "--force", self.container(name), check=False)
        self.engine.run("volume", "rm", self.container(name), check=False)

    def remove(self) -> None:
        for name in (*NAMES, ADDED):
            self.delete(name)
        self.engine.run("network", "rm", NETWORK, check=False)


def write_volumes(directory: Path) -> None:
    """Write the files of the ConfigMap and of the Secrets, by the names of the volumes."""
    made = directory / "made"
    made.mkdir()
    certificates = secrets_for_kubernetes(made)
    contents = {
        "config": CONFIG,
        "secrets": {"peer-secret": "a secret of the pods' test", "admin-password": PASSWORD},
        "tls": {key: file.read_text() for key, file in certificates["qq-tls"].items()},
        "peer-tls": {key: file.read_text() for key, file in certificates["qq-peer-tls"].items()},
    }
    assert contents.keys() == MOUNTED.keys() - {"data"}
    for volume, files in contents.items():
        (directory / volume).mkdir()
        for name, text in files.items():
            (directory / volume / name).write_text(text)
            # The pod's group reads it in Kubernetes. Its owner here is the user of the test.
            (directory / volume / name).chmod(0o644)


@pytest.fixture(scope="module")
def pods(engine: Engine, image: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Pods]:
    directory = tmp_path_factory.mktemp("pods")
    write_volumes(directory)
    pods = Pods(engine, image, directory)
    pods.remove()
    engine.run("network", "create", NETWORK)
    for name in NAMES:
        pods.start(name)
    yield pods
    pods.remove()


def test_pods_become_ready(pods: Pods) -> None:
    for name in NAMES:
        wait_until(
            lambda stopping=name: pods.is_ready(stopping), 60, lambda stopping=name: pods.logged(stopping)
        )


def test_status_of_pods_is_shown_as_documented(pods: Pods) -> None:
    shown = pods.qq("qq-0", "status")
    assert [name for name in NAMES if name not in shown] == []
    assert shown.count("voter  voter") == len(NAMES)  # role and standing


def test_a_client_that_knows_the_authority_is_served_over_tls(pods: Pods) -> None:
    tls = ssl.create_default_context(cafile=str(pods.authority))
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        pods.port("qq-1", "amqps"),
        credentials=pika.PlainCredentials("admin", PASSWORD),
        ssl_options=pika.SSLOptions(tls, "qq"),
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("in-a-pod", durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_publish("", "in-a-pod", b"hello", mandatory=True)
        _, _, body = channel.basic_get("in-a-pod", auto_ack=True)
    assert body == b"hello"


def test_pod_stops_within_its_grace_period(pods: Pods) -> None:
    pods.engine.run("exec", pods.container("qq-2"), *CONTAINER["lifecycle"]["preStop"]["exec"]["command"])
    pods.engine.run("stop", "-t", str(POD["terminationGracePeriodSeconds"]), pods.container("qq-2"))
    assert pods.state("qq-2")["ExitCode"] == 0
    assert all(pods.is_ready(name) for name in ("qq-0", "qq-1"))
    pods.engine.run("start", pods.container("qq-2"))
    wait_until(lambda: pods.is_ready("qq-2"), 60, lambda: pods.logged("qq-2"))


def test_pod_delays_its_stop_until_a_majority_remains(pods: Pods) -> None:
    """It is told yes twice, as the command asks. Whether it leads, which it says too, is as the elections went."""
    pods.engine.run("stop", pods.container("qq-0"))
    before_stop = ("exec", pods.container("qq-1"), *CONTAINER["lifecycle"]["preStop"]["exec"]["command"])
    with ThreadPoolExecutor() as threads:
        stopping = threads.submit(pods.engine.run, *before_stop)
        time.sleep(30)
        assert not stopping.done()
        pods.engine.run("start", pods.container("qq-0"))
        lines = stopping.result(120).stdout.splitlines()
    assert [line.partition(";")[0] for line in lines] == ["qq-1 may be stopped: qq-0, qq-2 go on"] * 2


def test_pod_is_added_and_removed_as_documented(pods: Pods) -> None:
    """A pod that began the cluster goes on with the changed ConfigMap, too."""
    pods.configure(with_a_fourth_node(CONFIG["node.toml"]))
    pods.start(ADDED)
    assert pods.qq("qq-0", "member", "add", ADDED, f"{ADDED}.{SET['serviceName']}:{PORTS['peer']}") == (
        f"{ADDED} votes\n"
    )
    pods.engine.run("restart", pods.container("qq-1"))
    for name in ("qq-1", ADDED):
        wait_until(
            lambda stopping=name: pods.is_ready(stopping), 60, lambda stopping=name: pods.logged(stopping)
        )
    assert pods.qq("qq-1", "member", "list").count(" voter ") == len(NAMES) + 1
    pods.qq("qq-0", "member", "remove", ADDED)
    wait_until(lambda: pods.state(ADDED)["Status"] == "exited", 60, lambda: pods.logged(ADDED))
    assert pods.state(ADDED)["ExitCode"] == 78
    assert pods.qq("qq-1", "member", "list").count(" voter ") == len(NAMES)


def test_pod_with_a_lost_volume_joins_again(pods: Pods) -> None:
    pods.delete("qq-1")
    pods.start("qq-1")
    wait_until(lambda: pods.is_ready("qq-1"), 60, lambda: pods.logged("qq-1"))
    assert pods.qq("qq-0", "member", "list").count(" voter ") == len(NAMES)
