"""The clients' own tests, as they ship them, against a cluster of three."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from qq import testing
from qq.cli.local_files import AMQPS_PORT_OFFSET
from qq.testing import LocalCluster
from tests.interop.sources import SourceMissingError, amqplib_source, go_source, python_clients, python_source
from tests.interop.upstream import (
    Known,
    Outcome,
    check,
    in_part,
    known_failures,
    run_command,
    run_go,
    run_maven,
    run_mocha,
    run_pytest,
    unaccounted,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.xdist_group("interop-suites")

SHORT_S, LONG_S = 170.0, 1800.0
IN_ASYNCIO = ("-p", "instead_of_docker", "-p", "aiomisc_pytest")
KOMBU = ("-o", "python_classes=test_*")


@dataclass(frozen=True)
class Suite:
    """The tests of a source package to run."""

    name: str
    tests: Sequence[str]
    options: Sequence[str]
    passed_min: int
    """Least number of passed tests: a suite that runs no tests is no success."""
    is_whole: bool = True
    """A part is not blamed for known failures that it does not contain."""
    certificates: str = ""
    """Directory of the tests' certificates, if the package has none."""
    files: Sequence[str] = ()
    """Glob patterns: all files of its tests that are for a broker."""
    is_apart: bool = False
    """Whether it is not among the packages of the environment, like its dependencies (`python_clients`)."""


def besides(*names: str) -> str:
    """Return pytest's expression for tests without these names."""
    return " and ".join(f"not {name}" for name in names)


OF_AIO_PIKA = ("ack", "declar", "deliver", "dlx", "expiration", "receive", "reject", "return", "transaction")
SHORT = [
    Suite(
        "aio-pika",
        ["tests/test_amqp.py"],
        [
            *IN_ASYNCIO,
            "-k",
            f"({' or '.join(OF_AIO_PIKA)}) and {besides('robust', 'NoConfirms', 'publisher_confirms')}",
        ],
        20,
        is_whole=False,
    ),
]
"""Tests of clients with special requests to a broker. Tests that wait for seconds are in `LONG`, and so are aiormq,
on which aio-pika is based, amqp and kombu, on which Celery is based (test_celery.py), and tests over HTTP."""
LONG = [
    Suite(
        "amqpstorm",
        ["amqpstorm/tests/functional"],
        [],
        150,
        files=["amqpstorm/tests/functional/**/test_*.py"],
    ),
    Suite(
        "rabbitpy",
        ["tests/integration", "tests/test_integration.py"],
        [],
        40,
        files=["tests/**/test_*.py"],
        is_apart=True,
    ),
    Suite(
        "dramatiq",
        ["tests/test_rabbitmq.py"],
        ["-p", "for_dramatiq", "--import-mode=importlib"],
        28,
        files=["tests/test_*.py"],
        is_apart=True,
    ),
    Suite(
        "oslo.messaging",
        ["oslo_messaging/tests/functional/test_functional.py"],
        [],
        20,
        files=["oslo_messaging/tests/functional/**/test_*.py"],
        is_apart=True,
    ),
    Suite(
        "amqp",
        ["t/integration/test_rmq.py"],
        ["-o", "python_classes=test_*"],
        25,
        certificates="t/certs",
        files=["t/integration/test_*.py"],
    ),
    Suite("kombu", ["t/integration/test_py_amqp.py"], KOMBU, 50, files=["t/integration/test_*.py"]),
    Suite("aio-pika", ["tests"], IN_ASYNCIO, 870),
    Suite("aiormq", ["tests"], IN_ASYNCIO, 500),
    Suite(
        "celery",
        [
            "t/integration/test_beat.py",
            "t/integration/test_canvas.py",
            "t/integration/test_inspect.py",
            "t/integration/test_loader.py",
            "t/integration/test_serialization.py",
            "t/integration/test_tasks.py",
            "t/integration/test_worker.py",
        ],
        ["-p", "celery.contrib.pytest", "-o", "python_classes=test_*"],
        230,
        files=["t/integration/test_*.py", "t/smoke/tests/**/test_*.py"],
    ),
]
PIKA = Suite(
    "pika",
    [
        "tests/acceptance/blocking_adapter_test.py",
        "tests/acceptance/async_adapter_tests.py",
        "tests/acceptance/enforce_one_basicget_test.py",
        "tests/acceptance/thread_safe_connection_test.py",
        "tests/acceptance/thread_safe_bounded_queue_test.py",
    ],
    [],
    290,
    files=["tests/acceptance/*_test*.py"],
)
PIKA_SOURCE = os.environ.get("PIKA_SOURCE", "")
JAVA_CLIENT_SOURCE = os.environ.get("JAVA_CLIENT_SOURCE", "")
JAVA_S = 3600.0
STANDARD_PORT = 5672


class Scratch(NamedTuple):
    """Paths that a suite's run may write, and its further needs."""

    directory: Path
    certificates: Path


@pytest.fixture
def scratch(tmp_path: Path, certificates: Path) -> Scratch:
    return Scratch(tmp_path, certificates)


def run_python_suite(suite: Suite, cluster: LocalCluster, scratch: Scratch, timeout_s: float) -> None:
    try:
        packages = python_clients() if suite.is_apart else None
        source = python_source(suite.name, packages)
    except SourceMissingError as error:
        pytest.fail(str(error), pytrace=False)
    run_unpacked(suite, source, cluster, scratch, timeout_s, packages)


def run_unpacked(
    suite: Suite,
    source: Path,
    cluster: LocalCluster,
    scratch: Scratch,
    timeout_s: float,
    packages: Path | None = None,
) -> None:
    if suite.certificates:
        source = shutil.copytree(source, scratch.directory / "source")
        shutil.copytree(scratch.certificates, source / suite.certificates)
    known = known_failures(suite.name)
    missing = unaccounted(source, suite.files, suite.tests, known)
    assert not missing, "\n".join(missing)
    left_out = [f"--deselect-glob={test}" for entry in known if not entry.run for test in entry.tests]
    node = cluster.followers()[0]
    port = node.amqp_port
    outcome = run_pytest(
        source,
        suite.tests,
        scratch.directory / "report.xml",
        port=port,
        tls_port=port + AMQPS_PORT_OFFSET,
        http_port=node.http_port,
        timeout_s=timeout_s,
        options=["-p", "left_out", *left_out, *suite.options],
        packages=packages,
    )
    check(outcome, known if suite.is_whole else in_part(known, outcome), suite.passed_min)


def test_unexpected_outcome_of_a_test_is_reported() -> None:
    outcome = Outcome(passed={"a", "b[1]"}, failed={"c": "no route", "d[2]": "refused"})
    assert outcome.judge([Known(["c", "d[*]"], "coming")]) == []
    assert outcome.judge([Known(["c"], "coming")]) == ["d[2] fails: refused"]
    assert outcome.judge([Known(["a", "c", "d*"], "coming")]) == ["a passes; take it off the list (coming)"]
    assert outcome.judge([Known(["c", "d*", "e"], "coming")]) == [
        "e: no test has this name; take it off the list"
    ]


def test_file_neither_run_nor_listed_is_reported(tmp_path: Path) -> None:
    for name in ("test_run.py", "test_out.py", "deeper/test_in.py", "deeper/test_new.py", "helper.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    known = [
        Known(["test_out.*", "deeper.test_in.*"], "no broker", run=False),
        Known(["test_run.*"], "wrong"),
    ]
    reported = unaccounted(tmp_path, ["**/test_*.py"], ["test_run.py"], known)
    assert reported == ["deeper/test_new.py is neither run nor on the list"]
    assert not unaccounted(tmp_path, ["**/test_*.py"], ["test_run.py", "deeper"], known)


def test_failures_of_a_suite_that_timed_out_are_reported(tmp_path: Path) -> None:
    suite = "print('a FAILED', *range(100), 'b', sep='\\n', flush=True); import time; time.sleep(60)"
    with pytest.raises(AssertionError, match=r"(?s)not done after 2 s:\na FAILED\n.*\nb\Z"):
        run_command([sys.executable, "-c", suite], tmp_path, {}, 2.0)


@pytest.mark.timeout(SHORT_S + 60)
@pytest.mark.parametrize("suite", SHORT, ids=lambda suite: suite.name)
def test_a_python_client_passes_its_own_tests(suite: Suite, cluster: LocalCluster, scratch: Scratch) -> None:
    run_python_suite(suite, cluster, scratch, SHORT_S)


@pytest.mark.interop
@pytest.mark.timeout(LONG_S + 60)
@pytest.mark.parametrize("suite", LONG, ids=lambda suite: suite.name)
def test_a_python_client_passes_all_of_its_own_tests(
    suite: Suite, cluster: LocalCluster, scratch: Scratch
) -> None:
    run_python_suite(suite, cluster, scratch, LONG_S)


@pytest.mark.interop
@pytest.mark.timeout(SHORT_S + 60)
@pytest.mark.skipif(
    not PIKA_SOURCE,
    reason="pika's source package has no tests in it: PIKA_SOURCE=DIR names a checkout of its repository",
)
def test_pika_passes_its_acceptance_tests(cluster: LocalCluster, scratch: Scratch) -> None:
    run_unpacked(PIKA, Path(PIKA_SOURCE), cluster, scratch, SHORT_S)


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("npm") is None, reason="no Node.js here: apt-get install nodejs npm")
@pytest.mark.timeout(SHORT_S)
@pytest.mark.parametrize(
    ("files", "passed_min"),
    [(["test/channel_api.js"], 33), (["test/connect.js", "test/callback_api.js"], 30)],
    ids=["promises", "callbacks"],
)
def test_amqplib_passes_its_own_tests(
    cluster: LocalCluster, tmp_path: Path, files: Sequence[str], passed_min: int
) -> None:
    try:
        source = amqplib_source()
    except SourceMissingError as error:
        pytest.skip(str(error))
    port = cluster.followers()[0].amqp_port
    settings = {"URL": f"amqp://127.0.0.1:{port}", "QQ_INTEROP_PORT": str(port)}
    outcome = run_mocha([source / file for file in files], tmp_path / "report.json", settings, SHORT_S / 2)
    check(outcome, in_part(known_failures("amqplib"), outcome), passed_min)


@pytest.mark.interop
@pytest.mark.timeout(LONG_S + 60)
def test_amqp091_go_passes_its_own_tests(cluster: LocalCluster, tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.fail("no Go here: apt-get install golang", pytrace=False)
    try:
        source = go_source("amqp091-go")
    except SourceMissingError as error:
        pytest.fail(str(error), pytrace=False)
    node = cluster.followers()[0]
    ports = {"amqp_port": node.amqp_port, "http_port": node.http_port}
    outcome = run_go(source, tmp_path, ["-tags", "integration", "."], **ports, timeout_s=LONG_S)
    check(outcome, known_failures("amqp091-go"), 300)


@pytest.mark.interop
@pytest.mark.timeout(JAVA_S + 60)
@pytest.mark.skipif(
    not JAVA_CLIENT_SOURCE,
    reason="the Java client's tests are not published: JAVA_CLIENT_SOURCE=DIR names a checkout of its repository",
)
def test_the_java_client_passes_its_own_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(JAVA_CLIENT_SOURCE).absolute()
    known = known_failures("java")
    left_out = [test.removeprefix("*.") for entry in known if not entry.run for test in entry.tests]
    # The tests know only the standard ports.
    monkeypatch.setattr(testing, "_reserve_ports", lambda *_: STANDARD_PORT)
    with LocalCluster() as cluster:
        outcome = run_maven(
            source, java_classes(source), left_out, http_port=cluster.nodes[0].http_port, timeout_s=JAVA_S
        )
    check(outcome, known, 550)


def java_classes(source: Path) -> list[str]:
    """Return the classes of the client's suites; if run as suites, the report would not name the classes."""
    suites = source / "src/test/java/com/rabbitmq/client/test"
    names = ("ClientTestSuite", "functional/FunctionalTestSuite", "server/ServerTestSuite")
    return [
        name
        for suite in names
        for name in re.findall(r"(\w+)\.class", (suites / f"{suite}.java").read_text())
    ]
