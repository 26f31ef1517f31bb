"""Prometheus and Grafana: what they ask for is what a node shows."""

from __future__ import annotations

import json
import re
import urllib.request
from itertools import combinations
from typing import Any

import pytest
from deployment import DEPLOY, ROOT, document
from prometheus_client.parser import text_string_to_metric_families

from qq.config import load
from qq.testing import ClusterNode

pytestmark = pytest.mark.xdist_group("deploy")

COMPOSE = document(ROOT / "docker-compose.yml")
PROMETHEUS = document(DEPLOY / "prometheus" / "prometheus.yml")
ALERTS = document(DEPLOY / "prometheus" / "alerts.yml")
GRAFANA = DEPLOY / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "qq.json").read_text())
DATASOURCE = document(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")
PROVIDER = document(GRAFANA / "provisioning" / "dashboards" / "qq.yml")

RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
(SCRAPED,) = PROMETHEUS["scrape_configs"]
FROM_PROMETHEUS = {"node", "job"}
"""Labels that are not the node's own."""


def expressions() -> list[str]:
    return [
        *(rule["expr"] for rule in RULES),
        *(target["expr"] for panel in PANELS for target in panel["targets"]),
    ]


@pytest.fixture(scope="module")
def shown(node: ClusterNode) -> dict[str, set[str]]:
    """Labels by name of the metric."""
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found: dict[str, set[str]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_a_node_shows_every_metric_that_somebody_asks_for(shown: dict[str, set[str]]) -> None:
    asked = {name for text in expressions() for name in re.findall(r"\brabbitmq_\w+", text)}
    assert len(asked) > 30
    assert sorted(asked - shown.keys()) == []


def test_a_node_shows_every_label_that_somebody_asks_for(shown: dict[str, set[str]]) -> None:
    asked = {
        (name, label)
        for text in expressions()
        for name, labels in re.findall(r"\b(\w+)\{([^}]*)\}", text)
        for label in re.findall(r"(\w+)[=!]", labels)
        if label not in FROM_PROMETHEUS
    }
    assert asked
    assert [(name, label) for name, label in asked if label not in shown[name]] == []


def test_prometheus_scrapes_all_nodes_and_gives_them_their_names() -> None:
    (static,) = SCRAPED["static_configs"]
    loaded = load(
        DEPLOY / "compose" / "node.toml",
        {"QQ_NODE_NAME": "n1", "QQ_CLUSTER_SECRET": "x" * 16, "QQ_USERS_DEFAULT_PASSWORD": "x"},
    )
    assert static["targets"] == [f"{node.host}:{node.http_port}" for node in loaded.nodes]
    (rule,) = SCRAPED["relabel_configs"]
    assert (rule["source_labels"], rule["target_label"]) == (["__address__"], "node")
    names = [re.fullmatch(rule["regex"], target) for target in static["targets"]]
    assert [name and name[1] for name in names] == [node.name for node in loaded.nodes]


def test_prometheus_is_configured_with_what_it_knows() -> None:
    assert PROMETHEUS.keys() == {"global", "rule_files", "scrape_configs"}
    assert SCRAPED.keys() == {"job_name", "static_configs", "relabel_configs"}
    for file in PROMETHEUS["rule_files"]:
        assert (DEPLOY / "prometheus" / file).exists()
    for expression in expressions():
        for job in re.findall(r'job="(\w+)"', expression):
            assert job == SCRAPED["job_name"]


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 8
    for rule in RULES:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        # A summary can name the node only if the expression has kept it.
        is_aggregated = re.match(r"(?:sum|max|count)\(", rule["expr"]) is not None
        assert ("$labels.node" in rule["annotations"]["summary"]) is not is_aggregated


def test_brackets_are_closed() -> None:
    for expression in expressions():
        left = re.sub(r'"[^"]*"|[^()\[\]{}]', "", expression)
        while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", left)) != left:
            left = shorter
        assert left == "", expression


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = DATASOURCE["datasources"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()
    assert any(published.endswith(f":{port}") for published in COMPOSE["services"][host]["ports"])
    volumes = dict(volume.split(":")[:2] for volume in COMPOSE["services"]["grafana"]["volumes"])
    mounted = {where: what for what, where in volumes.items()}
    (provider,) = PROVIDER["providers"]
    assert (ROOT / mounted[provider["options"]["path"]] / "qq.json").exists()
    assert (ROOT / mounted["/etc/grafana/provisioning"]).samefile(GRAFANA / "provisioning")


def test_every_panel_asks_the_datasource_that_there_is() -> None:
    (source,) = DATASOURCE["datasources"]
    asked = [panel["datasource"] for panel in PANELS]
    asked += [target["datasource"] for panel in PANELS for target in panel["targets"]]
    asked += [variable["datasource"] for variable in DASHBOARD["templating"]["list"]]
    assert all(one == {"type": source["type"], "uid": source["uid"]} for one in asked)


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_variables_of_expressions_are_grafanas_or_the_dashboards() -> None:
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    used = {name for expression in expressions() for name in re.findall(r"\$(\w+)", expression)}
    assert used == known
