"""Clients of other languages, with their own tests where these are published, else with programs of ours."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qq import testing
from qq.cli.local_files import AMQPS_PORT_OFFSET
from qq.testing import LocalCluster
from tests.interop.debian import debian_source
from tests.interop.needed import fetched, installed, needs
from tests.interop.queues import declare_queue
from tests.interop.requests import ALL, request
from tests.interop.sources import CARGO_ENVIRONMENT, go_source, java_clients, node_clients, python_clients
from tests.interop.upstream import (
    check,
    known_failures,
    moved,
    run_conversations,
    run_ginkgo,
    run_go,
    run_mocha,
    run_phpunit,
    run_prove,
    run_pytest,
    run_rspec,
)

if TYPE_CHECKING:
    from qq.testing import ClusterNode

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-suites"), pytest.mark.timeout(1000)]

HERE = Path(__file__).parent
SUITE_S, FILE_S = 600.0, 60.0
AMQP_PORT, AMQPS_PORT = 5672, 5671
# Objects that bunny's tests expect at a broker (bin/ci/before_build.sh).
FOR_BUNNY = {
    "vhosts/bunny_testbed": {},
    "vhosts/bunny_dqt_classic": {"default_queue_type": "classic"},
    "vhosts/bunny_dqt_quorum": {"default_queue_type": "quorum"},
    "users/bunny_gem": {"password": "bunny_password", "tags": ""},
    "users/bunny_reader": {"password": "reader_password", "tags": ""},
    "permissions/bunny_testbed/bunny_gem": ALL,
    "permissions/bunny_dqt_classic/bunny_gem": ALL,
    "permissions/bunny_dqt_quorum/bunny_gem": ALL,
    "permissions/bunny_testbed/guest": ALL,
    "permissions/bunny_testbed/bunny_reader": {"configure": "^---$", "write": "^---$", "read": ".*"},
}
AUTOLOAD = """<?php
spl_autoload_register(function ($class) {
    $places = ['Tests\\\\Functional\\\\' => 'tests/Functional/', '' => 'PhpAmqpLib/'];
    foreach ($places as $namespace => $directory) {
        $prefix = 'PhpAmqpLib\\\\' . $namespace;
        $file = __DIR__ . "/../$directory" . strtr(substr($class, strlen($prefix)), '\\\\', '/') . '.php';
        if (str_starts_with($class, $prefix) && is_file($file)) {
            require $file;
            return;
        }
    }
});
require 'phpseclib3/autoload.php';
"""
"""The autoloader that Composer would make."""


@pytest.fixture
def node(cluster: LocalCluster) -> ClusterNode:
    return cluster.followers()[0]


@pytest.mark.parametrize(
    ("program", "passed_min"),
    [("cloudamqp_client.js", 19), ("connection_manager.js", 6), ("rascal.js", 7), ("rhea.js", 9)],
    ids=["cloudamqp-client", "amqp-connection-manager", "rascal", "rhea"],
)
@pytest.mark.skipif(shutil.which("npm") is None, reason="no Node.js here: apt-get install nodejs npm")
def test_node_client_passes_our_tests(
    node: ClusterNode, tmp_path: Path, program: str, passed_min: int
) -> None:
    settings = {
        "NODE_PATH": str(fetched(node_clients)),
        "URL": f"amqp://127.0.0.1:{node.amqp_port}",
        "QQ_INTEROP_PORT": str(node.amqp_port),
        "QQ_INTEROP_HTTP": f"http://127.0.0.1:{node.http_port}",
    }
    outcome = run_mocha([HERE / "node" / program], tmp_path / "report.json", settings, SUITE_S)
    check(outcome, [], passed_min)


@pytest.mark.parametrize(
    ("program", "passed_min"),
    [
        ("puka_tests.py", 10),
        ("faststream_tests.py", 8),
        ("proton_tests.py", 14),
        ("rabbitmq_amqp_tests.py", 6),
    ],
)
def test_python_client_passes_our_tests(
    node: ClusterNode, tmp_path: Path, program: str, passed_min: int
) -> None:
    outcome = run_pytest(
        HERE / "python",
        [program],
        tmp_path / "report.xml",
        port=node.amqp_port,
        tls_port=node.amqp_port + AMQPS_PORT_OFFSET,
        http_port=node.http_port,
        timeout_s=SUITE_S,
        packages=fetched(python_clients),
    )
    check(outcome, [], passed_min)


@pytest.mark.parametrize(
    ("program", "passed_min"), [("QpidJms", 11), ("ProtonJ2", 8), ("RabbitMqAmqp", 9), ("SpringAmqp", 8)]
)
def test_java_client_passes_our_tests(cluster: LocalCluster, program: str, passed_min: int) -> None:
    needs("java", "mvn")
    followers = cluster.followers()
    declare_queue(followers[0], program)
    command = ["java", "-cp", f"{fetched(java_clients)}/*", f"{program}.java"]
    ports = [str(each.amqp_port) for each in (cluster.leader(), *followers)]
    outcome = run_conversations([*command, ports[1], program, *ports], HERE / "java", SUITE_S)
    check(outcome, known_failures(program), passed_min)


def test_rust_client_passes_our_tests(node: ClusterNode) -> None:
    needs("cargo")
    declare_queue(node, "fe2o3")
    command = ["cargo", "run", "--quiet", "--locked", "--", str(node.amqp_port), "fe2o3"]
    outcome = run_conversations(command, HERE / "rust", SUITE_S, CARGO_ENVIRONMENT)
    check(outcome, known_failures("fe2o3-amqp"), 4)


def test_watermill_passes_its_own_tests(node: ClusterNode, tmp_path: Path) -> None:
    needs("go")
    source = fetched(go_source, "watermill-amqp")
    ports = {"amqp_port": node.amqp_port, "http_port": node.http_port}
    outcome = run_go(source, tmp_path, ["-short", "./pkg/amqp"], **ports, timeout_s=SUITE_S)
    check(outcome, known_failures("watermill-amqp"), 100)


def test_go_amqp_passes_its_own_tests(node: ClusterNode, tmp_path: Path) -> None:
    needs("go")
    source = fetched(go_source, "go-amqp")
    ports = {"amqp_port": node.amqp_port, "http_port": node.http_port}
    outcome = run_go(source, tmp_path, ["."], **ports, timeout_s=SUITE_S)
    check(outcome, known_failures("go-amqp"), 400)


def test_go_client_of_rabbitmq_passes_its_own_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("go")
    source = fetched(go_source, "rabbitmq-amqp-go-client")
    # The tests know only the standard ports.
    monkeypatch.setattr(testing, "_reserve_ports", lambda *_: AMQP_PORT)
    # From this version on, the client uses direct replies.
    with LocalCluster(settings={"product": {"version": "4.2.0"}}) as cluster:
        definitions = json.loads((source / ".ci/ubuntu/definitions.json").read_text())
        request(cluster.nodes[0], "POST", "definitions", definitions)
        outcome = run_ginkgo(source / "pkg/rabbitmqamqp", tmp_path / "report.json", SUITE_S)
    check(outcome, known_failures("rabbitmq-amqp-go-client"), 175)


def test_bunny_passes_its_own_tests(node: ClusterNode, tmp_path: Path, certificates: Path) -> None:
    installed("ruby-bunny", "ruby-rspec")
    source = shutil.copytree(fetched(debian_source, "ruby-bunny"), tmp_path / "bunny")
    shutil.copytree(certificates, source / "spec" / "tls", dirs_exist_ok=True)
    for path, document in FOR_BUNNY.items():
        request(node, "PUT", path, document)
    outcome = run_rspec(
        source,
        ["spec/*_level_api/**/*_spec.rb", "spec/issues/*_spec.rb"],
        tmp_path / "report.json",
        port=node.amqp_port,
        tls_port=node.amqp_port + AMQPS_PORT_OFFSET,
        http_port=node.http_port,
        timeout_s=SUITE_S,
    )
    check(outcome, known_failures("bunny"), 290)


def test_php_amqplib_passes_its_own_tests(node: ClusterNode, tmp_path: Path, certificates: Path) -> None:
    installed("php-amqplib", "phpunit", "openssl")
    source = moved(
        fetched(debian_source, "php-amqplib"),
        tmp_path / "source",
        {AMQPS_PORT: node.amqp_port + AMQPS_PORT_OFFSET},
        ["tests/**/*.php"],
    )
    shutil.copytree(certificates, source / "tests" / "certs", dirs_exist_ok=True)
    shutil.copy(certificates / "ca_certificate.pem", source / "tests" / "certs" / "hashed")
    subprocess.run(["openssl", "rehash", source / "tests" / "certs" / "hashed"], check=True)
    (source / "vendor").mkdir()
    (source / "vendor" / "autoload.php").write_text(AUTOLOAD)
    settings = {"TEST_RABBITMQ_HOST": "127.0.0.1", "TEST_RABBITMQ_PORT": str(node.amqp_port)}
    options = ["--bootstrap", "tests/bootstrap.php", "tests/Functional"]
    outcome = run_phpunit(source, options, tmp_path / "report.xml", settings, SUITE_S)
    check(outcome, known_failures("php-amqplib"), 80)


def test_php_amqp_passes_its_own_tests(node: ClusterNode, tmp_path: Path) -> None:
    installed("php-amqp", "php-cli", "phpunit")
    source = moved(
        fetched(debian_source, "php-amqp"), tmp_path / "source", {AMQP_PORT: node.amqp_port}, ["tests/*.phpt"]
    )
    version = subprocess.check_output(["php", "-r", "echo phpversion('amqp');"], text=True)
    if not fetched(debian_source, "php-amqp").name.startswith(f"php-amqp-{version}-"):
        pytest.skip(f"php-amqp {version} is installed, whose tests are not pinned in sources_debian.txt")
    known = known_failures("php-amqp")
    for left_out in [test for entry in known if not entry.run for test in entry.tests]:
        (source / "tests" / left_out).unlink()
    (tmp_path / "ini").mkdir()
    (tmp_path / "ini" / "test.ini").write_text(
        f"amqp.port={node.amqp_port}\ninclude_path={source / 'tests'}:/usr/share/php\n"
    )
    # The directory of the machine's settings, and ours.
    settings = {"PHP_INI_SCAN_DIR": f":{tmp_path / 'ini'}"}
    options = ["--test-suffix", ".phpt", "tests"]
    outcome = run_phpunit(source, options, tmp_path / "report.xml", settings, SUITE_S)
    check(outcome, known, 150)


def test_anyevent_rabbitmq_passes_its_own_tests(node: ClusterNode, tmp_path: Path) -> None:
    installed("libanyevent-rabbitmq-perl", "libtest-exception-perl")
    source = moved(
        fetched(debian_source, "libanyevent-rabbitmq-perl"),
        tmp_path / "source",
        {AMQP_PORT: node.amqp_port},
        ["xt/*.t"],
    )
    files = ["xt/04_anyevent.t", "xt/05_multi_channel.t", "xt/06_close.t"]
    check(run_prove(source, files, FILE_S), [], len(files))
