"""docker-compose.yml: valid, open to this machine only, and consistent with the files that it mounts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import Draft202012Validator

from chaos.live import toxiproxy
from chaos.live.command import _parser, parse_duration, parse_endpoints
from qq.cli.client import credentials
from qq.config import ConfigError, NodeConfig, load
from qq.node.node import LAST_SYNC_S, LEADER_HANDOVER_S
from tests.deploy.deployment import DEPLOY, NODES, ROOT, document, interpolated, published
from tests.deploy.dockerfile import stages

FILE = ROOT / "docker-compose.yml"
COMPOSE = interpolated(document(FILE), {})
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROXIES = json.loads((DEPLOY / "toxiproxy" / "proxies.json").read_text())


def dockerfile_of(service: str) -> Path:
    build = SERVICES[service]["build"]
    return ROOT / build["context"] / build["dockerfile"]


def mistakes(text: str) -> list[str]:
    """Return the errors that the schema of compose files, which is part of check-jsonschema, finds in a text."""
    validator = Draft202012Validator(get_builtin_schema("vendor.compose-spec"))
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


def mounts(service: str) -> dict[str, str]:
    """Return the mounted source of each path in the container."""
    split = [volume.split(":") for volume in SERVICES[service]["volumes"]]
    return {where: mounted_source for mounted_source, where, *_ in split}


def config(name: str, **environ: str) -> NodeConfig:
    file = ROOT / mounts(name)["/etc/qq/node.toml"]
    return load(file, SERVICES[name]["environment"] | environ)


def test_the_file_is_valid() -> None:
    assert mistakes(FILE.read_text()) == []


def test_schema_finds_an_invalid_field() -> None:
    (mistake, *_) = mistakes(FILE.read_text().replace("stop_grace_period", "stop_grace"))
    assert "stop_grace" in mistake


@pytest.mark.parametrize("name", NODES)
def test_a_node_starts_with_its_configuration(name: str) -> None:
    loaded = config(name)
    assert loaded.name == loaded.address.host == name
    assert {node.name for node in loaded.nodes} == set(NODES)
    assert loaded.default_user not in loaded.loopback_users
    assert {loaded.amqp_host, loaded.http_host, loaded.peer_host} == {"0.0.0.0"}
    assert mounts(name)[str(loaded.data_dir)] == name
    assert set(published(SERVICES[name])) == {loaded.address.amqp_port, loaded.address.http_port}


def test_fourth_node_has_its_own_profile_and_joins_the_cluster() -> None:
    """Otherwise it has the configuration of the first three."""
    assert SERVICES["n4"]["profiles"] == ["n4"]
    joining, beginning = config("n4"), config("n3")
    assert joining.join == tuple((name, config(name).address.peer_port) for name in NODES)
    assert joining.nodes == (joining.address,)
    own = {"name": "n3", "nodes": beginning.nodes, "join": ()}
    assert replace(joining, **own) == beginning
    assert joining.address == replace(beginning.address, name="n4", host="n4")
    assert set(published(SERVICES["n4"])) == {joining.address.amqp_port, joining.address.http_port}


def test_nodes_need_a_secret() -> None:
    with pytest.raises(ConfigError, match="SECRET: must have at least 16"):
        config("n1", QQ_CLUSTER_SECRET="short")


def test_password_and_secret_come_from_the_environment() -> None:
    given = interpolated(document(FILE), {"QQ_PASSWORD": "p4ss", "QQ_CLUSTER_SECRET": "s" * 16})["services"]
    for name in NODES:
        assert given[name]["environment"]["QQ_USERS_DEFAULT_PASSWORD"] == "p4ss"
        assert given[name]["environment"]["QQ_CLUSTER_SECRET"] == "s" * 16
    assert given["chaos"]["environment"]["QQ_PASSWORD"] == "p4ss"
    assert not any("p4ss" in argument for argument in given["chaos"]["command"]), (
        "processes are seen by others"
    )


def test_variables_of_the_file_start_a_node_outside_a_container() -> None:
    used = set(re.findall(r"\$\{(QQ_\w+)", FILE.read_text()))
    assert used
    settings = dict.fromkeys(used - {*credentials.VARIABLES}, "s" * 16)
    load(ROOT / mounts("n1")["/etc/qq/node.toml"], SERVICES["n1"]["environment"] | settings)


def test_no_two_services_take_the_same_port_of_the_machine() -> None:
    ports = [
        port for service in SERVICES.values() if "ports" in service for port in published(service).values()
    ]
    assert len(set(ports)) == len(ports) == 8 + 4 + 2


def test_mounted_files_exist_and_volumes_are_declared() -> None:
    sources = {source for name in SERVICES for source in mounts(name).values()}
    files = {source for source in sources if source.startswith("./")}
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert sources - files == set(COMPOSE["volumes"])


def test_images_are_stages_or_pinned() -> None:
    for name, service in SERVICES.items():
        if "build" in service:
            assert service["build"]["target"] in stages(dockerfile_of(name))
        else:
            assert service["image"].rpartition(":")[2].removeprefix("v")[0].isdigit(), name


def test_built_images_have_distinct_tags() -> None:
    built = {name: service for name, service in SERVICES.items() if "build" in service}
    tags = [service.get("image", f"{COMPOSE['name']}-{name}") for name, service in built.items()]
    assert built.keys() > set(NODES)
    assert len(set(tags)) == len(tags)


def test_each_node_has_a_proxy() -> None:
    listening = {int(proxy["listen"].removeprefix("0.0.0.0:")) for proxy in PROXIES}
    assert {proxy["name"] for proxy in PROXIES} == set(NODES)
    for proxy in PROXIES:
        assert proxy["upstream"] == f"{proxy['name']}:{config(proxy['name']).address.amqp_port}"
    api = 8474
    assert set(published(SERVICES["toxiproxy"])) == listening | {api}
    steps = stages(dockerfile_of("toxiproxy"))
    installed = [step.text for step in steps["build"] if step.name == "RUN"]
    assert installed == [f"go install {toxiproxy.MODULE}@{toxiproxy.VERSION}"]
    assert steps["toxiproxy"][-1].arguments == ["/server"]
    command = [option.partition("=")[2] for option in SERVICES["toxiproxy"]["command"]]
    assert command == ["0.0.0.0", *mounts("toxiproxy")]


def test_chaos_workload_uses_the_proxies_and_waits_for_the_nodes() -> None:
    service = SERVICES["chaos"]
    assert service["profiles"] == ["chaos"]
    assert set(service["depends_on"]) == {*NODES, "toxiproxy"}
    verb, *options = service["command"]
    parsed = _parser().parse_args(options)
    assert verb == "run"
    assert [(endpoint.host, endpoint.port) for endpoint in parse_endpoints(parsed.endpoints)] == [
        ("toxiproxy", int(proxy["listen"].rpartition(":")[2])) for proxy in PROXIES
    ]
    assert parse_duration(parsed.duration) == 60
    node = config("n1")
    login = credentials.client_login(
        parsed.user, parsed.password, parsed.password_file, service["environment"]
    )
    assert login == (node.default_user, node.default_password)
    (home,) = [step.text for step in stages(DEPLOY / "Dockerfile")["chaos"] if step.name == "WORKDIR"]
    assert set(mounts("chaos")) == {home}


def test_compose_gives_a_node_time_to_stop() -> None:
    for name in NODES:
        given_s = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert given_s >= 3 * (LEADER_HANDOVER_S + LAST_SYNC_S)


def test_failed_node_is_restarted_5_times_at_most() -> None:
    """No engine can tell a mistake in the settings (exit status 78) from other failures."""
    for name in NODES:
        policy, _, attempts = SERVICES[name]["restart"].partition(":")
        assert (policy, int(attempts)) == ("on-failure", 5)
