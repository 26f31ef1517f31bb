"""Runs a client's own tests in a process of its own, and judges the result by the table of known failures.

    [[SUITE]]
    tests = ["module.Class.test[parameter]", "module.*"]
    because = "what is missing, or how the client's test differs from what RabbitMQ does"
    run = false             # optional: it is not even started, because it would hang

`*` is the only wildcard. `MODULE.*` with `run = false` is a file that is left out.

Invariant: a test that fails and is not in the table, a test in the table that passes, and a file of tests that is
neither run nor in the table, are failures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests.interop.sources import GO_ENVIRONMENT
from tests.interop.wildcards import matching

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).parent
PLUGINS = HERE / "plugins"
TEST_TIMEOUT_S = 60
TAIL_LINES = 40
MESSAGE_SHOWN = 300
# Watermill names a test's parts after the queues that it makes.
_RANDOM = re.compile("/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


@dataclass(frozen=True)
class Known:
    """Tests of a suite that do not pass, and the reason."""

    tests: Sequence[str]
    because: str
    run: bool = True


@dataclass
class Outcome:
    """Names of a suite's tests by result."""

    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    """With the message."""
    skipped: set[str] = field(default_factory=set)

    def judge(self, known: Sequence[Known]) -> list[str]:
        """Return sentences about differences from the table."""
        problems = []
        excused: set[str] = set()
        for entry in known:
            for pattern in entry.tests:
                if not entry.run:
                    continue
                matches = matching(pattern, [*self.passed, *self.failed, *self.skipped])
                if not matches:
                    problems.append(f"{pattern}: no test has this name; take it off the list")
                problems += [
                    f"{name} passes; take it off the list ({entry.because})"
                    for name in sorted(matches)
                    if name in self.passed
                ]
                excused |= matches
        problems += [
            f"{name} fails: {message}" for name, message in self.failed.items() if name not in excused
        ]
        return problems


def in_part(known: Sequence[Known], outcome: Outcome) -> list[Known]:
    names = [*outcome.passed, *outcome.failed, *outcome.skipped]
    return [
        Known([pattern for pattern in entry.tests if matching(pattern, names)], entry.because, entry.run)
        for entry in known
    ]


def check(outcome: Outcome, known: Sequence[Known], passed_min: int) -> None:
    problems = outcome.judge(known)
    assert not problems, "\n".join(problems)
    assert len(outcome.passed) >= passed_min


def known_failures(suite: str) -> list[Known]:
    table = tomllib.loads((HERE / "known_failures.toml").read_text())
    return [Known(**entry) for entry in table.get(suite, [])]


def unaccounted(
    source: Path, patterns: Sequence[str], tests: Sequence[str], known: Sequence[Known]
) -> list[str]:
    """Return the files that match glob patterns, and are neither run nor left out with a reason."""
    left_out = [test for entry in known if not entry.run for test in entry.tests]
    files = sorted(path.relative_to(source) for pattern in patterns for path in source.glob(pattern))
    return [
        f"{file} is neither run nor on the list"
        for file in map(str, files)
        if not any(file == test or file.startswith(f"{test}/") for test in tests)
        and not any(matching(test, [f"{file.removesuffix('.py').replace('/', '.')}."]) for test in left_out)
    ]


def run_pytest(
    directory: Path,
    tests: Sequence[str],
    report: Path,
    *,
    port: int,
    tls_port: int,
    http_port: int,
    timeout_s: float,
    options: Sequence[str] = (),
    packages: Path | None = None,
) -> Outcome:
    """Run test files of an unpacked source package with pytest, without its configuration and ours.

    `packages`: a directory of packages that are not in the environment.
    """
    command = [sys.executable, "-m", "pytest", "-v", "-c", os.devnull, f"--rootdir={directory}"]
    command += [f"--confcutdir={directory}", "-p", "pytest_timeout", f"--timeout={TEST_TIMEOUT_S}"]
    command += ["-W", "ignore", "-p", "no:cacheprovider", f"--junit-xml={report}", *options, *tests]
    settings = {
        "PYTHONPATH": os.pathsep.join(
            [str(PLUGINS), *([str(packages)] if packages else []), os.environ.get("PYTHONPATH", "")]
        ),
        # The virtual environment need not be active, and some tests run the client's commands.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "QQ_INTEROP_PORT": str(port),
        "QQ_INTEROP_TLS_PORT": str(tls_port),
        # kombu and py-amqp
        "RABBITMQ_HOST": "127.0.0.1",
        "RABBITMQ_5672_TCP": str(port),
        "RABBITMQ_5671_TCP": str(tls_port),
        # Celery; the other result store that it could use, Redis, is no part of this
        "TEST_BROKER": f"pyamqp://guest:guest@127.0.0.1:{port}//",
        "TEST_BACKEND": report.with_suffix(".results").as_uri(),
        # AMQPStorm
        "AMQP_HOST": "127.0.0.1",
        "AMQP_USERNAME": "guest",
        "AMQP_PASSWORD": "guest",
        "AMQP_URI": f"amqp://guest:guest@127.0.0.1:{port}/%2F",
        "AMQP_HTTP_URL": f"http://127.0.0.1:{http_port}",
        # rabbitpy
        "RABBITMQ_URL": f"amqp://guest:guest@127.0.0.1:{port}/%2f",
        # oslo.messaging
        "RPC_TRANSPORT_URL": f"rabbit://guest:guest@127.0.0.1:{port}//",
        "NOTIFY_TRANSPORT_URL": f"rabbit://guest:guest@127.0.0.1:{port}//",
    }
    report.with_suffix(".results").mkdir()
    run_suite(command, directory, report, settings, timeout_s)
    return read_report(report)


def run_mocha(files: Sequence[Path], report: Path, settings: Mapping[str, str], timeout_s: float) -> Outcome:
    """Run test files for mocha's "tdd" interface with Node.js."""
    mocha = {"QQ_INTEROP_FILES": " ".join(map(str, files)), "QQ_INTEROP_REPORT": str(report)}
    command = ["node", "--require", str(PLUGINS / "redirect.js"), str(PLUGINS / "mocha_tdd.js")]
    run_suite(command, report.parent, report, mocha | settings, timeout_s)
    document = json.loads(report.read_text())
    return Outcome(set(document["passed"]), document["failed"])


def run_go(
    directory: Path,
    scratch: Path,
    options: Sequence[str],
    *,
    amqp_port: int,
    http_port: int,
    timeout_s: float,
) -> Outcome:
    """Run the tests of a Go module, those that need a broker too; a test's parts are `TEST/PART`."""
    overlay = scratch / "overlay.json"
    overlay.write_text(json.dumps({"Replace": _redirected(directory, scratch, amqp_port, http_port)}))
    url = f"amqp://guest:guest@127.0.0.1:{amqp_port}/"
    addresses = {"AMQP_URL": url, "WATERMILL_TEST_AMQP_URI": url, "AMQP_BROKER_ADDR": url}
    command = ["go", "test", "-json", "-overlay", str(overlay), *options]
    output = run_command(command, directory, GO_ENVIRONMENT | addresses, timeout_s)
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    results: dict[str, dict[str, list[str]]] = {"pass": {}, "fail": {}, "skip": {}}
    reports: dict[str, list[str]] = {}
    for event in events:
        name = _RANDOM.sub("", event["Test"]) if "Test" in event else None
        if event["Action"] == "output":
            reports.setdefault(name, []).append(event["Output"])
        elif name and event["Action"] in results:
            results[event["Action"]][name] = reports.get(name, [])
    assert results["pass"], f"no test has passed:\n{_tail(output)}"
    failed = {name: _shown("".join(lines)) for name, lines in results["fail"].items()}
    if not failed and events[-1]["Action"] == "fail":
        failed["the package"] = _shown("".join(reports[None]))
    return Outcome(set(results["pass"]), failed, set(results["skip"]))


def run_rspec(
    directory: Path,
    patterns: Sequence[str],
    report: Path,
    *,
    port: int,
    tls_port: int,
    http_port: int,
    timeout_s: float,
) -> Outcome:
    """Run test files of a Ruby package with RSpec; a test is `FILE.DESCRIPTION`."""
    settings = {
        "QQ_INTEROP_PORT": str(port),
        "QQ_INTEROP_TLS_PORT": str(tls_port),
        "QQ_INTEROP_HTTP_PORT": str(http_port),
    }
    files = [str(file.relative_to(directory)) for pattern in patterns for file in directory.glob(pattern)]
    command = ["rspec", f"-I{PLUGINS / 'ruby'}", "-Ilib", "--no-color", "--format", "documentation"]
    command += ["--format", "json", "--out", str(report), *sorted(files)]
    run_suite(command, directory, report, settings, timeout_s)
    document = json.loads(report.read_text())
    outcome = Outcome()
    for example in document["examples"]:
        name = f"{Path(example['file_path']).stem}.{example['full_description']}"
        if example["status"] == "passed":
            outcome.passed.add(name)
        elif example["status"] == "pending":
            outcome.skipped.add(name)
        else:
            outcome.failed[name] = _shown(example["exception"]["message"])
    assert not document["summary"]["errors_outside_of_examples_count"], document["messages"]
    # Two tests of a file may have the same description.
    outcome.passed -= outcome.failed.keys()
    return outcome


def run_phpunit(
    directory: Path, options: Sequence[str], report: Path, settings: Mapping[str, str], timeout_s: float
) -> Outcome:
    """Run tests of a PHP package with PHPUnit, without its configuration."""
    command = ["phpunit", "--no-configuration", "--log-junit", str(report), *options]
    run_suite(command, directory, report, settings, timeout_s)
    return read_report(report)


def run_prove(directory: Path, files: Sequence[str], timeout_s: float) -> Outcome:
    """Run test files of a Perl package; each file is a test."""
    outcome = Outcome()
    for file in files:
        output = run_command(["prove", "--verbose", file], directory, {}, timeout_s)
        if "Result: PASS" in output:
            outcome.passed.add(file)
        else:
            # A file that skips itself has found no broker.
            outcome.failed[file] = _shown(_tail(output))
    return outcome


def moved(source: Path, directory: Path, ports: Mapping[int, int], patterns: Sequence[str]) -> Path:
    """Copy a source package whose tests know only the standard ports, and replace the ports in its files."""
    copy = shutil.copytree(source, directory)
    for file in [file for pattern in patterns for file in copy.glob(pattern)]:
        text = file.read_text(errors="surrogateescape")
        for standard, port in ports.items():
            text = text.replace(str(standard), str(port))
        file.write_text(text, errors="surrogateescape")
    return copy


def run_maven(
    directory: Path, classes: Sequence[str], left_out: Sequence[str], *, http_port: int, timeout_s: float
) -> Outcome:
    """Run test classes of the Java client, in its repository: it leaves its build there. `left_out`: CLASS#METHOD."""
    reports = directory / "target" / "failsafe-reports"
    shutil.rmtree(reports, ignore_errors=True)
    command = [
        "mvn",
        "--batch-mode",
        "verify",
        "-Dspotless.check.skip=true",
        "-Dmaven.test.failure.ignore=true",
    ]
    command += [f"-Drabbitmqctl.bin={PLUGINS / 'rabbitmqctl'}", "-Dtest-broker.A.nodename=n1"]
    command.append("-Dit.test=" + ",".join([*classes, *(f"!{name}" for name in left_out)]))
    output = run_command(command, directory, {"QQ_INTEROP_HTTP_PORT": str(http_port)}, timeout_s)
    outcome = Outcome()
    for report in reports.glob("TEST-*.xml"):
        part = read_report(report)
        outcome.passed |= part.passed
        outcome.failed |= part.failed
        outcome.skipped |= part.skipped
    assert outcome.passed, f"no test has passed:\n{_tail(output)}"
    return outcome


def run_conversations(
    command: Sequence[str], directory: Path, timeout_s: float, settings: Mapping[str, str] | None = None
) -> Outcome:
    """Run a program that prints a line for each test: `pass NAME`, or `fail NAME: ERROR`."""
    output = run_command(command, directory, settings or {}, timeout_s)
    outcome = Outcome()
    for line in output.splitlines():
        result, _, name = line.partition(" ")
        if result == "pass":
            outcome.passed.add(name)
        elif result == "fail":
            name, _, message = name.partition(": ")
            outcome.failed[name] = _shown(message)
    assert outcome.passed, f"no test has passed:\n{_tail(output)}"
    return outcome


def run_ginkgo(directory: Path, report: Path, timeout_s: float) -> Outcome:
    """Run the specs of a Go package, against a broker at the standard ports; a spec is `CONTAINER / TEXT`."""
    run_suite(
        ["go", "test", ".", f"-ginkgo.json-report={report}"], directory, report, GO_ENVIRONMENT, timeout_s
    )
    outcome = Outcome()
    for spec in json.loads(report.read_text())[0]["SpecReports"]:
        name = " / ".join([*(spec["ContainerHierarchyTexts"] or []), spec["LeafNodeText"]])
        if spec["State"] == "skipped":
            outcome.skipped.add(name)
        elif spec["State"] != "passed":
            outcome.failed[name] = _shown(spec["Failure"]["Message"])
        elif spec["LeafNodeType"] == "It":
            outcome.passed.add(name)
    outcome.passed -= outcome.failed.keys()
    return outcome


def _redirected(directory: Path, scratch: Path, amqp_port: int, http_port: int) -> dict[str, str]:
    """Write copies of the files that know only the standard ports; return the replacement to compile for each file."""
    replaced = {}
    for file in directory.rglob("*.go"):
        text = file.read_text()
        moved = text.replace("localhost:15672", f"127.0.0.1:{http_port}").replace('"15672"', f'"{http_port}"')
        if moved != text:
            copy = scratch / f"{len(replaced)}-{file.name}"
            copy.write_text(moved)
            replaced[str(file)] = str(copy)
    return replaced


def run_suite(
    command: Sequence[str], directory: Path, report: Path, settings: Mapping[str, str], timeout_s: float
) -> None:
    """Run a command that writes a report. Raises AssertionError if there is no report in time."""
    output = run_command(command, directory, settings, timeout_s)
    assert report.exists(), f"no report was written:\n{_tail(output)}"


def run_command(
    command: Sequence[str], directory: Path, settings: Mapping[str, str], timeout_s: float
) -> str:
    """Run a command and return its output. Raises AssertionError if it is not done in time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"not done after {timeout_s:g} s:\n{_so_far(output)}") from None
    return output


def _shown(message: str) -> str:
    return " ".join(message.split())[:MESSAGE_SHOWN]


def _so_far(output: str) -> str:
    """Return the failures that a suite has reported so far, and its last lines."""
    failed = [line for line in output.splitlines() if re.search(" (FAILED|ERROR)", line)]
    return "\n".join([*failed, _tail(output)])


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-TAIL_LINES:])


def read_report(report: Path) -> Outcome:
    """Read a JUnit report. A test that fails at its end, after it has passed, is in it twice."""
    outcome = Outcome()
    for case in ET.parse(report).iter("testcase"):
        # Tests of PHP that are a file each have no class.
        group = case.get("classname", "")
        name = f"{group}.{case.get('name', '')}" if group else Path(case.get("name", "")).name
        trouble = [element for element in case if element.tag in ("failure", "error")]
        if trouble:
            outcome.failed[name] = _shown(trouble[0].get("message") or trouble[0].text or "")
        elif case.find("skipped") is not None:
            outcome.skipped.add(name)
        else:
            outcome.passed.add(name)
    outcome.passed -= outcome.failed.keys()
    return outcome
