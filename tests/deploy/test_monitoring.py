"""Prometheus and Grafana: their queries match the metrics of a node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from qq.testing import LocalCluster
from tests.deploy.deployment import DEPLOY, ROOT, document
from tests.harness.certificates import Authority

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
(SCRAPED_IN_KUBERNETES,) = document(DEPLOY / "prometheus" / "kubernetes.yml")["scrape_configs"]
OPERATOR = DEPLOY / "kubernetes" / "prometheus-operator"
POD = document(DEPLOY / "kubernetes" / "statefulset.yaml")["spec"]["template"]
CLUSTER = {"cluster", "namespace"}
"""Labels that distinguish clusters within a Prometheus. Each may be missing."""
FROM_PROMETHEUS = {"node", "job"} | CLUSTER
"""Labels that are not the node's own."""
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="there is no promtool: put that of Prometheus on PATH (CONTRIBUTING.md)"
)


def expressions() -> list[str]:
    return [
        *(rule["expr"] for rule in RULES),
        *(target["expr"] for panel in PANELS for target in panel["targets"]),
    ]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Labels by name of the metric, from a node with a certificate that has been read."""
    authority = Authority(tmp_path_factory.mktemp("ca"))
    files, context = authority.issue("server"), authority.context()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QQ_HTTP_TLS_CERT", str(files.cert))
        patched.setenv("QQ_HTTP_TLS_KEY", str(files.key))
        with LocalCluster(nodes=1) as cluster:
            url = f"https://localhost:{cluster.nodes[0].http_port}/metrics"
            text = ""
            while "rabbitmq_certificate" not in text:
                time.sleep(0.2)
                with urllib.request.urlopen(url, context=context) as answer:
                    text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    found: dict[str, set[str]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_node_exports_every_metric_used_in_expressions(shown: dict[str, set[str]]) -> None:
    used = {name for text in expressions() for name in re.findall(r"\brabbitmq_\w+", text)}
    assert len(used) > 30
    assert sorted(used - shown.keys()) == []


def test_node_exports_every_label_used_in_expressions(shown: dict[str, set[str]]) -> None:
    used = {
        (name, label)
        for text in expressions()
        for name, labels in re.findall(r"\b(\w+)\{([^}]*)\}", text)
        for label in re.findall(r"(\w+)[=!]", labels)
        if label not in FROM_PROMETHEUS
    }
    assert used
    assert [(name, label) for name, label in used if label not in shown[name]] == []


def selectors() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield every metric in a query, with the conditions on its labels."""
    for text in expressions():
        for name, labels in re.findall(r"\b(up|rabbitmq_\w+)\b(?:\{([^}]*)\})?", text):
            yield name, dict(re.findall(r'(\w+)(?:=~?|!=)"([^"]*)"', labels))


def test_expressions_select_only_targets_of_job_qq() -> None:
    """RabbitMQ, which an application is moved away from, shows metrics of the same names to the same Prometheus."""
    assert {labels.get("job") for _, labels in selectors()} == {"qq"}


def test_dashboard_selects_clusters_by_variable() -> None:
    chosen = {label: f"${label}" for label in CLUSTER}
    targets = {target["expr"] for panel in PANELS for target in panel["targets"]}
    used = [labels for text in targets for labels in re.findall(r"\{([^}]*)\}", text)]
    assert used
    for labels in used:
        assert chosen.items() <= dict(re.findall(r'(\w+)=~"([^"]*)"', labels)).items(), labels


def test_no_alert_mixes_clusters() -> None:
    """Except the alert for absent metrics, which has no labels."""
    for rule in RULES:
        aggregated = re.findall(r"\b(sum|max|count|absent|scalar)\b(?: by \(([\w, ]+)\))?", rule["expr"])
        for function, by in aggregated:
            assert set(by.split(", ")) >= CLUSTER or function == "absent", rule["alert"]
        for on in re.findall(r"\bon \(([\w, ]+)\)", rule["expr"]):
            assert set(on.split(", ")) == CLUSTER, rule["alert"]


# The labels that Prometheus gives


def relabeled(rules: list[dict[str, Any]], target: dict[str, str]) -> dict[str, str]:
    """Carry out relabel_configs, as far as ours use them; a target that is not kept has no labels."""
    labels = dict(target)
    for rule in rules:
        assert rule.keys() <= {"source_labels", "regex", "target_label", "action"}
        (source,) = rule["source_labels"]
        found = re.fullmatch(rule.get("regex", "(.*)"), labels.get(source, ""))
        if rule.get("action") == "keep" and found is None:
            return {}
        if "target_label" in rule and found is not None:
            labels[rule["target_label"]] = found[1]
    return {name: value for name, value in labels.items() if not name.startswith("__")}


def scraped_by_compose() -> list[dict[str, str]]:
    (static,) = SCRAPED["static_configs"]
    return [as_compose_labels({"__address__": at}) for at in static["targets"]]


def as_compose_labels(target: dict[str, str]) -> dict[str, str]:
    return relabeled(SCRAPED["relabel_configs"], target | {"job": SCRAPED["job_name"]})


def pods() -> Iterator[dict[str, str]]:
    """Yield the targets that Prometheus finds in Kubernetes: each port of each pod."""
    (container,) = POD["spec"]["containers"]
    for number in range(3):
        for port in container["ports"]:
            name = {"__meta_kubernetes_pod_name": f"qq-{number}", "__meta_kubernetes_namespace": "orders"}
            yield {"__meta_kubernetes_pod_container_port_name": port["name"]} | name


def scraped_in_kubernetes() -> list[dict[str, str]]:
    (discovery,) = SCRAPED_IN_KUBERNETES["kubernetes_sd_configs"]
    (selector,) = discovery["selectors"]
    label, value = selector["label"].split("=")
    assert POD["metadata"]["labels"][label] == value
    job = {"job": SCRAPED_IN_KUBERNETES["job_name"]}
    found = [relabeled(SCRAPED_IN_KUBERNETES["relabel_configs"], pod | job) for pod in pods()]
    return [labels for labels in found if labels]


def scraped_by_the_operator() -> list[dict[str, str]]:
    """The operator adds the label `namespace` by itself, and further unused labels."""
    spec = document(OPERATOR / "monitor.yaml")["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    rules = [
        {re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", key): value for key, value in rule.items()}
        for rule in endpoint["relabelings"]
    ]
    port = {"__meta_kubernetes_pod_container_port_name": endpoint["port"]}
    given = {"job": POD["metadata"]["labels"][spec["jobLabel"]], "namespace": "orders"}
    return [relabeled(rules, pod | given) for pod in pods() if pod.items() >= port.items()]


@pytest.mark.parametrize(
    ("scraped", "config", "cluster"),
    [
        (scraped_by_compose, DEPLOY / "compose" / "node.toml", {}),
        (scraped_in_kubernetes, DEPLOY / "kubernetes" / "config.yaml", {"namespace": "orders"}),
        (scraped_by_the_operator, DEPLOY / "kubernetes" / "config.yaml", {"namespace": "orders"}),
    ],
)
def test_prometheus_scrapes_all_nodes_and_names_them(
    scraped: Callable[[], list[dict[str, str]]], config: Path, cluster: dict[str, str]
) -> None:
    """In Kubernetes a cluster is known by its namespace."""
    names = re.findall(r'^ *name = "(\w+|qq-\d)"\n *host', config.read_text(), re.MULTILINE)
    assert len(names) == 3
    assert scraped() == [{"job": "qq", "node": name} | cluster for name in names]


def test_prometheus_finds_a_joining_node_by_dns() -> None:
    """The name of a service leads to its container while it exists."""
    (found,) = SCRAPED["dns_sd_configs"]
    (table,) = tomllib.loads((DEPLOY / "compose" / "n4.toml").read_text())["nodes"]
    assert table["host"] in COMPOSE["services"]
    assert (found["names"], found["type"], found["port"]) == ([table["host"]], "A", table["http_port"])
    target = {"__address__": f"172.18.0.9:{found['port']}", "__meta_dns_name": table["host"]}
    assert as_compose_labels(target) == {"job": "qq", "node": table["name"]}


def test_expressions_use_only_labels_and_jobs_that_exist(shown: dict[str, set[str]]) -> None:
    """Labels that no metric of a node has, and values of `job`, which come from Prometheus alone."""
    texts = [
        *expressions(),
        *(panel_target.get("legendFormat", "") for panel in PANELS for panel_target in panel["targets"]),
        *(text for rule in RULES for text in rule["annotations"].values()),
        *(variable["definition"] for variable in DASHBOARD["templating"]["list"]),
    ]
    places = (
        r"\bby \(([\w, ]+)\)",
        r"\{\{(\w+)\}\}",
        r"\$labels\.(\w+)",
        r"label_values\(.*, (\w+)\)",
        r"[{,] *(\w+)[=!]",
    )
    used = {
        label
        for text in texts
        for place in places
        for labels in re.findall(place, text)
        for label in labels.split(", ")
    }
    of_nodes = {label for labels in shown.values() for label in labels}
    assert used - of_nodes == FROM_PROMETHEUS
    jobs = {job for text in texts for job in re.findall(r'job=~?"([^"]*)"', text)}
    assert jobs == {labels["job"] for labels in scraped_by_compose()}


def test_pods_are_scraped_once() -> None:
    assert "annotations" not in POD["metadata"]


def test_prometheus_configuration_has_only_known_keys() -> None:
    assert PROMETHEUS.keys() == {"global", "rule_files", "scrape_configs"}
    assert SCRAPED.keys() == {"job_name", "static_configs", "dns_sd_configs", "relabel_configs"}
    for file in PROMETHEUS["rule_files"]:
        assert (DEPLOY / "prometheus" / file).exists()


def test_the_operators_rules_are_the_alerts() -> None:
    rules = document(OPERATOR / "rules.yaml")
    assert (rules["kind"], rules["spec"]) == ("PrometheusRule", ALERTS)


@needs_promtool
@pytest.mark.parametrize(
    ("verb", "subject", "file"),
    [
        ("check", "config", DEPLOY / "prometheus" / "prometheus.yml"),
        ("check", "config", DEPLOY / "prometheus" / "kubernetes.yml"),
        ("check", "rules", DEPLOY / "prometheus" / "alerts.yml"),
        ("test", "rules", Path(__file__).with_name("alerts.yml")),
    ],
)
def test_promtool_takes_the_files_and_alerts_fire(verb: str, subject: str, file: Path) -> None:
    command = [str(PROMTOOL), verb, subject, str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alert_has_severity_and_summary_and_names_its_node() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 8
    for rule in RULES:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        # A summary can name the node only if the expression has kept it.
        is_aggregated = (
            re.match(r"(?:sum|max|count|absent)\b", rule["expr"]) is not None
            and "group_right" not in rule["expr"]
        )
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
    mounted = {where: subject for subject, where in volumes.items()}
    (provider,) = PROVIDER["providers"]
    assert (ROOT / mounted[provider["options"]["path"]] / "qq.json").exists()
    assert (ROOT / mounted["/etc/grafana/provisioning"]).samefile(GRAFANA / "provisioning")


def test_panels_use_the_declared_datasource() -> None:
    (source,) = DATASOURCE["datasources"]
    used = [panel["datasource"] for panel in PANELS]
    used += [target["datasource"] for panel in PANELS for target in panel["targets"]]
    used += [variable["datasource"] for variable in DASHBOARD["templating"]["list"]]
    assert all(one == {"type": source["type"], "uid": source["uid"]} for one in used)


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
