"""The manifests: valid, and consistent with each other, with the configuration and with the answers of a node."""

from __future__ import annotations

import copy
import itertools
import subprocess
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest

from qq.cli.client.target import DEFAULT_URL
from qq.cli.root import root
from qq.config import ConfigError, NodeConfig, load
from qq.node.node import LAST_SYNC_S, LEADER_HANDOVER_S
from qq.testing import ClusterNode
from tests.deploy.deployment import DEPLOY, RUNS_AS, document, documents
from tests.deploy.dockerfile import stages
from tests.deploy.how_to import with_a_fourth_node

pytestmark = pytest.mark.xdist_group("deploy")

DIRECTORY = DEPLOY / "kubernetes"
MANIFESTS = {
    (manifest["kind"], manifest["metadata"]["name"]): manifest
    for file in sorted(DIRECTORY.glob("*.yaml"))
    for manifest in documents(file)
}
NETWORK = MANIFESTS["NetworkPolicy", "qq"]["spec"]
SECRET = document(DIRECTORY / "example" / "secret.yaml")
SET = MANIFESTS["StatefulSet", "qq"]
POD = SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
PODS = [f"qq-{number}" for number in range(SET["spec"]["replicas"])]
MOUNTED = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
CERT_MANAGER = {
    (manifest["kind"], manifest["metadata"]["name"]): manifest
    for manifest in documents(DIRECTORY / "cert-manager" / "certificates.yaml")
}
OPERATORS = [document(file) for file in sorted((DIRECTORY / "prometheus-operator").glob("*.yaml"))]
VALUES = {"peer-secret": "s" * 16, "admin-password": "p4ss"}
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}


SETTINGS = MANIFESTS["ConfigMap", "qq"]["data"]["node.toml"]


def config(pod: str, directory: Path, values: dict[str, str] = VALUES, *, text: str = SETTINGS) -> NodeConfig:
    """Return the configuration that the pod would load, with its Secrets in this directory."""
    contents = {
        "secrets": values,
        "tls": dict.fromkeys(("tls.crt", "tls.key"), "PEM"),
        "peer-tls": dict.fromkeys(("tls.crt", "tls.key", "ca.crt"), "PEM"),
    }
    file = directory / "node.toml"
    for volume, files in contents.items():
        (directory / volume).mkdir(parents=True)
        for name, value in files.items():
            (directory / volume / name).write_text(value)
        assert text.count(f"{MOUNTED[volume]}/") == len(files)
        text = text.replace(f"{MOUNTED[volume]}/", f"{directory / volume}/")
    file.write_text(text)
    (name,) = CONTAINER["env"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    return load(file, {name["name"]: pod})


@pytest.mark.parametrize(
    "manifest",
    [*MANIFESTS.values(), SECRET],
    ids=lambda manifest: manifest["kind"] + "-" + manifest["metadata"]["name"],
)
def test_a_manifest_is_valid(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_validator_finds_an_invalid_field() -> None:
    wrong = copy.deepcopy(SET)
    wrong["spec"]["podManagmentPolicy"] = wrong["spec"].pop("podManagementPolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_starts_with_its_configuration(pod: str, tmp_path: Path) -> None:
    loaded = config(pod, tmp_path)
    headless = MANIFESTS["Service", SET["spec"]["serviceName"]]
    assert loaded.name == pod
    assert loaded.address.host == f"{pod}.{headless['metadata']['name']}"
    assert [node.name for node in loaded.nodes] == PODS
    assert loaded.secrets == (VALUES["peer-secret"].encode(),)
    assert loaded.default_password == VALUES["admin-password"]
    assert loaded.default_user not in loaded.loopback_users
    address = loaded.address
    assert {
        "amqps": address.amqps_port,
        "amqp": address.amqp_port,
        "http": address.http_port,
        "peer": address.peer_port,
    } == PORTS
    assert loaded.data_dir.is_relative_to(MOUNTED["data"])
    assert CONTAINER["args"] == ["--config", f"{MOUNTED['config']}/node.toml"]


def test_added_pod_joins_with_the_documented_configuration(tmp_path: Path) -> None:
    """All pods read it from then on."""
    added, begun = (
        config(pod, tmp_path / pod, text=with_a_fourth_node(SETTINGS)) for pod in ("qq-3", "qq-0")
    )
    assert added.address == replace(begun.address, name="qq-3", host="qq-3.qq-nodes")
    assert added.join == begun.join
    assert added.join == tuple((node.host, node.peer_port) for node in added.nodes[: len(PODS)])


@pytest.mark.parametrize("key", VALUES)
def test_no_node_starts_with_the_secret_of_the_example(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        config("qq-0", tmp_path, VALUES | {key: SECRET["stringData"][key]})


def test_volumes_of_a_pod_exist() -> None:
    (claim,) = SET["spec"]["volumeClaimTemplates"]
    config, secrets, *tls = POD["volumes"]
    assert ("ConfigMap", config["configMap"]["name"]) in MANIFESTS
    assert secrets["secret"]["secretName"] == SECRET["metadata"]["name"]
    assert SECRET["stringData"].keys() == VALUES.keys()
    for volume in tls:
        name = volume["secret"]["secretName"]
        assert CERT_MANAGER["Certificate", name]["spec"]["secretName"] == name
    assert MOUNTED.keys() == {claim["metadata"]["name"], *(volume["name"] for volume in POD["volumes"])}


def test_cert_manager_makes_certificates_that_a_node_can_use() -> None:
    """Both sides of a link show the same certificate, and clients know the node under the name of its Service."""
    peers, clients = (CERT_MANAGER["Certificate", name]["spec"] for name in ("qq-peer-tls", "qq-tls"))
    assert {"client auth", "server auth"} <= set(peers["usages"])
    assert {"server auth"} <= set(clients["usages"])
    assert MANIFESTS["Service", "qq"]["metadata"]["name"] in clients["dnsNames"]
    authorities = set()
    for spec in (peers, clients):
        authority = CERT_MANAGER["Issuer", spec["issuerRef"]["name"]]["spec"]["ca"]["secretName"]
        authorities.add(authority)
        signer = CERT_MANAGER["Certificate", authority]["spec"]
        assert (signer["secretName"], signer["isCA"]) == (authority, True)
        assert "selfSigned" in CERT_MANAGER["Issuer", signer["issuerRef"]["name"]]["spec"]
    assert len(authorities) == 2  # the authority that clients trust must not sign nodes


def test_selectors_match_the_pods() -> None:
    labels = SET["spec"]["template"]["metadata"]["labels"]
    (apart,) = POD["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = POD["topologySpreadConstraints"]
    (monitor,) = [manifest for manifest in OPERATORS if manifest["kind"] == "PodMonitor"]
    selectors = [
        SET["spec"]["selector"]["matchLabels"],
        MANIFESTS["PodDisruptionBudget", "qq"]["spec"]["selector"]["matchLabels"],
        apart["labelSelector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
        NETWORK["podSelector"]["matchLabels"],
        monitor["spec"]["selector"]["matchLabels"],
        *(manifest["spec"]["selector"] for (kind, _), manifest in MANIFESTS.items() if kind == "Service"),
    ]
    assert selectors == [labels] * 8


def test_services_lead_to_ports_of_the_container() -> None:
    led = [
        (port["port"], PORTS[port["targetPort"]])
        for (kind, _), manifest in MANIFESTS.items()
        if kind == "Service"
        for port in manifest["spec"]["ports"]
    ]
    assert sorted(led) == [(port, port) for port in sorted(PORTS.values())]


def test_only_nodes_may_connect_to_the_peer_port() -> None:
    """The policy's lists admit peers; without `from` they admit all."""
    names = {port: name for name, port in PORTS.items()}
    admitted: dict[str, list[Any]] = {name: [] for name in PORTS}
    for rule in NETWORK["ingress"]:
        for port in rule["ports"]:
            admitted[names[port["port"]]] += rule.get("from", ["everybody"])
    pods = {"podSelector": NETWORK["podSelector"]}
    assert admitted["peer"] == [pods]
    assert admitted["amqps"] == ["everybody"]
    assert "everybody" not in admitted["amqp"] + admitted["http"]
    outgoing, dns = NETWORK["egress"]
    assert outgoing == {"to": [pods], "ports": [{"port": PORTS["peer"]}]}
    assert {port["port"] for port in dns["ports"]} == {53}


def test_nodes_run_on_separate_machines_and_zones_if_possible() -> None:
    (apart,) = POD["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = POD["topologySpreadConstraints"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert (spread["topologyKey"], spread["maxSkew"]) == ("topology.kubernetes.io/zone", 1)


def test_a_new_cluster_can_form() -> None:
    """It waits for all of its nodes, so no node may wait for a ready peer, and they must find each other."""
    assert SET["spec"]["podManagementPolicy"] == "Parallel"
    headless = MANIFESTS["Service", SET["spec"]["serviceName"]]["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True


def test_a_majority_stays() -> None:
    assert MANIFESTS["PodDisruptionBudget", "qq"]["spec"]["maxUnavailable"] == 1
    assert len(PODS) == 3


def test_a_start_has_time_to_load_the_program() -> None:
    """Reading the log is not included: /livez answers meanwhile (tests/node/test_node_starting.py)."""
    probe = CONTAINER["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 60


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_a_node_answers_the_probes_without_a_login(probe: str, node: ClusterNode) -> None:
    request = CONTAINER[probe]["httpGet"]
    assert request["port"] == "http"
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}{request['path']}") as answer:
        assert answer.status == 200


def test_only_the_readiness_probe_depends_on_a_majority() -> None:
    """Killing does not help a node that is repaired by its peers, or has no majority."""
    paths = {
        probe: CONTAINER[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/healthz"}


def done_before_a_pod_stops(pod: str, directory: Path) -> list[list[str]]:
    """Run the pod's commands before its stop, with positive answers; return them in order."""
    directory.mkdir()
    for command in ("sleep", "qq"):
        file = directory / command
        file.write_text('#!/bin/sh\necho "${0##*/}" "$@"\n')
        file.chmod(0o755)
    (name,) = CONTAINER["env"]
    ran = subprocess.run(
        CONTAINER["lifecycle"]["preStop"]["exec"]["command"],
        env={"PATH": f"{directory}:/usr/bin:/bin", name["name"]: pod},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stderr == ""
    return [line.split() for line in ran.stdout.splitlines()]


def options_of(command: str, arguments: list[str]) -> dict[str, Any]:
    """Return the options of a command line of `qq`, by the command's names for them."""
    context = root.make_context(command, list(arguments))
    while isinstance(context.command, click.Group):
        command_words = [*context._protected_args, *context.args]
        name, called, rest = context.command.resolve_command(context, command_words)
        assert called is not None
        context = called.make_context(name, rest, parent=context)
    return context.params


MOST_PODS = [f"qq-{number}" for number in range(7)]


@pytest.mark.parametrize("pod", MOST_PODS)
def test_pod_checks_safe_to_stop_twice_within_its_grace_period(pod: str, tmp_path: Path) -> None:
    first, request, second, second_request = done_before_a_pod_stops(pod, tmp_path / "commands")
    assert (first[0], second[0]) == ("sleep", "sleep")
    needed_s = int(first[1]) + int(second[1]) + 3 * (LEADER_HANDOVER_S + LAST_SYNC_S)
    for command, *arguments in (request, second_request):
        options = options_of(command, arguments)
        assert (*arguments[:2], options["name"]) == ("check", "safe-to-stop", None)
        assert (options["urls"], DEFAULT_URL) == ((), f"http://127.0.0.1:{PORTS['http']}")
        node = config("qq-0", tmp_path / "-".join(arguments).replace("/", "-"))
        assert options["user"] == node.default_user
        secret = Path(MOUNTED["secrets"], "admin-password")
        assert options["password_file"] == secret
        assert f'default_password_file = "{secret}"' in SETTINGS
        needed_s += options["timeout"]
    assert int(first[1]) >= 5
    assert POD["terminationGracePeriodSeconds"] >= needed_s


def test_simultaneous_pod_stops_are_spread_by_their_pauses(tmp_path: Path) -> None:
    """Statuses of peers are a second old, and a node takes its time to stop."""
    pauses = [int(done_before_a_pod_stops(pod, tmp_path / pod)[2][1]) for pod in MOST_PODS]
    gaps = [later - earlier for earlier, later in itertools.pairwise(pauses)]
    assert min(gaps) >= 1 + LEADER_HANDOVER_S + LAST_SYNC_S


def test_hung_process_is_killed_before_the_grace_period_ends() -> None:
    assert CONTAINER["livenessProbe"]["terminationGracePeriodSeconds"] < POD["terminationGracePeriodSeconds"]


def test_pod_runs_as_the_image_user_without_privileges() -> None:
    (user,) = [step.text for step in stages(DEPLOY / "Dockerfile")["node"] if step.name == "USER"]
    context = POD["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {RUNS_AS}
    assert context["runAsNonRoot"] is True
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
