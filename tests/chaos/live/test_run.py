"""The course of a run and its command line: wrong options, and reasons for which a run fails."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from chaos import history, phases, report
from chaos.live import releases
from chaos.live import run as run_module
from chaos.live.cluster import LiveCluster
from chaos.live.command import (
    OptionError,
    _options,
    _parser,
    main,
    parse_duration,
    parse_endpoints,
    without_password,
)
from chaos.live.nemesis import GROUPS, UPGRADE
from chaos.live.run import Options, RunResult, plan_of
from chaos.phases import Course, Plan
from chaos.pipeline import job
from chaos.workloads.catalog import WORKLOADS, chosen
from chaos.workloads.messages import Delivery, arrived, body_of
from chaos.workloads.transport import Endpoint, LostError
from chaos.workloads.world import Client, Pace, Rotation, World
from cluster.config import GroupConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Never

HERE = Endpoint("n1", "127.0.0.1", 1)
OTHERS = (Endpoint("n2", "127.0.0.1", 2), Endpoint("n3", "127.0.0.1", 3))


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[history.Recorder]:
    with history.Recorder(tmp_path / "history" / "h.jsonl") as recorder:
        yield recorder


@pytest.fixture
def world(recorder: history.Recorder) -> World:
    return World("confirm", (HERE, *OTHERS), Nowhere(), recorder, seed=1, rate=100.0, run="r")


class Nowhere:
    """A transport to a cluster whose nodes do not answer."""

    protocol = "AMQP 0-9-1"

    async def connect(self, endpoint: Endpoint, lost: Callable[[str], None]) -> Never:
        raise LostError(f"{endpoint.node} does not answer")


@pytest.fixture
def course(recorder: history.Recorder) -> Course:
    plan = Plan(chosen(["tx"]), seed=1, rate=100.0, peace_s=0.0, quiet_s=0.01)
    return Course(plan, (HERE,), {"aio-pika": Nowhere(), "pika": Nowhere()}, recorder)


# The command line


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("60s", 60), ("1.5m", 90), ("2h", 7200)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-5s", "5 minutes", "5x", "s"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is no duration: write 60s, 5m or 1h"):
        parse_duration(text)


def test_command_in_a_report_hides_passwords() -> None:
    given = ["--user", "u", "--password", "geheim", "--password=geheim", "--seed", "1"]
    assert without_password(given) == ["--user", "u", "--password", "...", "--password=...", "--seed", "1"]


def test_the_password_is_that_of_a_file_or_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("geheim\n")

    def login(*arguments: str) -> tuple[str, str]:
        options = _options(_parser().parse_args(arguments), "")
        return options.user, options.password

    assert login() == ("guest", "guest")
    assert login("--user", "app", "--password-file", str(file)) == ("app", "geheim")
    monkeypatch.setenv("QQ_USER", "app")
    monkeypatch.setenv("QQ_PASSWORD", "of the environment")
    assert login() == ("app", "of the environment")
    assert login("--password", "seen") == ("app", "seen")


def test_endpoints_are_the_nodes_in_their_order() -> None:
    assert parse_endpoints("a:1, [::1]:5672") == (Endpoint("n1", "a", 1), Endpoint("n2", "::1", 5672))


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":5672", "host:amqp", "host:0", "host:65536", "a:1,,b:2"]
)
def test_invalid_endpoint_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"is no endpoint: write host:port,host:port"):
        parse_endpoints(text)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--workloads", "confirm,juggle"], "unknown workload 'juggle'; there are confirm, priority,"),
        (["--nemesis", "frogs"], "unknown nemesis 'frogs'"),
        (["--nemesis", "frogs", "--endpoints", "127.0.0.1:1"], "unknown nemesis 'frogs'"),
        (
            ["--nemesis", "pause", "--endpoints", "127.0.0.1:1"],
            "--nemesis pause and --endpoints: a cluster that",
        ),
        (
            ["--nemesis", "all", "--endpoints", "127.0.0.1:1"],
            "--nemesis all and --endpoints: a cluster that is",
        ),
        (["--for", "soon"], "'soon' is no duration"),
        (["--rate", "0"], "no messages"),
        (["--rate", "nan"], "no messages"),
        (["--endpoints", "nowhere"], "'nowhere' is no endpoint"),
        (["--endpoints", "127.0.0.1:1", "--http", "127.0.0.1:2"], "'127.0.0.1:2' is no address"),
        (["--http", "http://127.0.0.1:2"], "it belongs to --endpoints"),
        (["--endpoints", "127.0.0.1:1", "--workloads", "leases"], "leases are read over HTTP: say --http"),
        (
            ["--nemesis", "upgrade", "--workloads", "tx,leases"],
            "workload leases: release 0.1, from which nodes",
        ),
    ],
)
def test_invalid_option_is_reported_in_a_single_line(
    arguments: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("chaos run: ")
    assert error in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        ([], GROUPS["all"]),
        (["--nemesis", "none"], ()),
        (["--nemesis", "pause,disk"], ("pause", *GROUPS["disk"])),
        (["--endpoints", "127.0.0.1:1"], ()),
        (["--endpoints", "127.0.0.1:1", "--nemesis", "none"], ()),
    ],
)
def test_only_our_own_cluster_gets_faults_by_default(arguments: list[str], faults: tuple[str, ...]) -> None:
    assert _options(_parser().parse_args(arguments), "").nemesis == faults


@pytest.mark.parametrize(
    ("arguments", "protocols"),
    [([], ("0-9-1", "1.0")), (["--protocol", "1.0"], ("1.0",)), (["--protocol", "0-9-1"], ("0-9-1",))],
)
def test_clients_speak_the_protocols_of_the_option(arguments: list[str], protocols: tuple[str, ...]) -> None:
    options = _options(_parser().parse_args(arguments), "")
    assert plan_of(options).protocols == protocols


def test_unreachable_endpoints_are_named_in_a_single_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert main(["--endpoints", f"{address},{address}", "--out", str(tmp_path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("chaos run: unreachable: n1 at 127.0.0.1:")
    assert "; n2 at 127.0.0.1:" in line
    assert list(tmp_path.iterdir()) == []


def test_run_does_not_overwrite_an_earlier_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "history").mkdir()
    assert main(["--endpoints", "127.0.0.1:1", "--out", str(tmp_path)]) == 2
    assert "has a run already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "error"), [(None, "is not in this clone: fetch the whole history"), ("", "there is no git")]
)
def test_upgrade_run_without_git_history_is_refused(
    path: str | None,
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(releases.COMMITS, "0.1", "0" * 40)
    if path is not None:
        monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "run"
    assert main(["--nemesis", UPGRADE, "--out", str(out)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("chaos run: ")
    assert error in line
    assert not out.exists()


@pytest.mark.parametrize(("faults", "known"), [(["wipe"], 3), (["member_add"], 5), (["replace"], 5)])
def test_clients_know_the_first_nodes_and_the_spares(faults: list[str], known: int, tmp_path: Path) -> None:
    endpoints = run_module._endpoints_of(LiveCluster(tmp_path), faults)
    assert [endpoint.node for endpoint in endpoints] == [f"n{number + 1}" for number in range(known)]
    assert len({endpoint.port for endpoint in endpoints}) == known


@pytest.mark.parametrize(
    ("valid", "problems", "status"), [(True, [], 0), (False, [], 1), (True, ["the cluster does not heal"], 1)]
)
def test_run_passes_only_when_valid_and_without_problems(
    valid: bool,
    problems: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def run(options: Options) -> RunResult:
        assert options.seed == 7
        assert options.command == "python -m chaos run --seed 7"
        return RunResult(tmp_path, problems)

    verdict = job.Verdict(valid=valid, error=None if valid else "it recorded nothing")
    monkeypatch.setattr("chaos.live.command.run", run)
    monkeypatch.setattr(job, "check", lambda _: verdict)
    monkeypatch.setattr(report, "write", lambda directory: directory / "report.html")
    assert main(["--seed", "7"]) == status
    printed = capsys.readouterr().out
    assert str(tmp_path / "report.html") in printed
    assert all(f"PROBLEM: {problem}" in printed for problem in problems)


def test_a_seed_that_chance_has_chosen_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Options] = []

    async def run(options: Options) -> RunResult:
        given.append(options)
        return RunResult(tmp_path, [])

    monkeypatch.setattr("chaos.live.command.run", run)
    for _ in range(2):
        assert main(["--no-check"]) == 0
        assert capsys.readouterr().out.startswith(f"seed {given[-1].seed}\n")
        assert given[-1].command == f"python -m chaos run --no-check --seed {given[-1].seed}"
    assert given[0].seed != given[1].seed


# The course


def test_drain_of_a_foreign_cluster_waits_for_silent_nodes() -> None:
    evicted_after_s = GroupConfig("n1", {}, "c").silent_origin_grace_s
    quiet_s = plan_of(Options(endpoints=(HERE,))).quiet_s
    assert run_module.QUIET_S < evicted_after_s + 5 < quiet_s < phases.DRAIN_PATIENCE_S
    assert plan_of(Options(endpoints=(HERE,), quiet_s=0.5)).quiet_s == 0.5


def test_leases_are_left_out_where_clients_cannot_read_them() -> None:
    def names(options: Options) -> set[str]:
        return {workload.name for workload in plan_of(options).workloads}

    without = WORKLOADS.keys() - {"leases"}
    assert names(Options()) == WORKLOADS.keys()
    assert names(Options(nemesis=("all",))) == WORKLOADS.keys()
    assert names(Options(nemesis=(UPGRADE, "pause"))) == without
    assert names(Options(endpoints=(HERE,), nemesis=())) == without
    assert names(Options(endpoints=(HERE,), nemesis=(), http=("http://a:1",))) == WORKLOADS.keys()


def test_course_connects_to_the_next_node_without_members(
    recorder: history.Recorder,
) -> None:
    options: list[str] = []

    class Last(Nowhere):
        async def connect(self, endpoint: Endpoint, lost: Callable[[str], None]) -> Any:
            options.append(endpoint.node)
            return await super().connect(endpoint, lost) if endpoint.node != "n3" else "connection"

    plan = Plan(chosen(["tx"]), seed=1, rate=100.0, peace_s=0.0, quiet_s=0.01)
    course = Course(plan, (HERE, *OTHERS), {"aio-pika": Last()}, recorder)
    assert asyncio.run(course._connect()) == "connection"
    assert options == ["n1", "n2", "n3"]


class Stuck(Client):
    async def run(self) -> None:
        await asyncio.Event().wait()

    def stop(self) -> None: ...


class Broken(Client):
    async def run(self) -> None:
        raise ZeroDivisionError

    def stop(self) -> None: ...


def test_a_client_that_does_not_end_is_a_problem(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end() -> None:
        course._start([Stuck("con-1")])
        await course._end(list(course._tasks))

    monkeypatch.setattr(phases, "STOP_PATIENCE_S", 0.01)
    asyncio.run(end())
    assert course.problems == ["con-1 still waits for an answer after 0.01 s"]


def test_undrained_queue_is_a_problem_and_not_judged_as_lost(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no node, so messages are not consumed."""
    monkeypatch.setattr(phases, "DRAIN_PATIENCE_S", 0.05)
    asyncio.run(course._drain())
    course.write_meta(tmp_path, {})
    queues = json.loads((tmp_path / "meta.json").read_text())["queues"]
    assert [queue["drained"] for queue in queues.values()] == [False] * len(queues)
    [problem] = course.problems
    assert problem.startswith("these queues do not drain: ")
    assert all(plan.name in problem for _, plan in course.plans.values() if plan.drained)


def test_meta_file_gives_the_final_number_of_rows(
    course: Course, recorder: history.Recorder, tmp_path: Path
) -> None:
    late = recorder.process("tx-1").invoke("publish", queue="tx-a", id="tx-1-a:1")
    course.write_meta(tmp_path, {})
    late.unknown("the answer came when nobody waited any more")
    assert json.loads((tmp_path / "meta.json").read_text())["rows"] == 1
    assert len(history.read(tmp_path / "history")) == 1


def test_a_client_that_breaks_breaks_off_the_run(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        course._start([Stuck("con-1"), Broken("pub-1")])
        try:
            await course._work_for(60.0)
        finally:
            await course._abandon()

    monkeypatch.setattr(phases, "WATCH_S", 0.01)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(work())


def test_faults_that_overlap_are_each_recorded_from_begin_to_end(
    course: Course, recorder: history.Recorder, tmp_path: Path
) -> None:
    course.record_fault("invoke", "kill", ["n1", "n2"], "{}")
    course.record_fault("invoke", "latency", ["n1"], '{"ms": 5}')
    course.record_fault("fail", "kill", ["n1", "n2"], "would not die")
    course.record_fault("info", "pause", [], "left out")
    course.record_fault("ok", "latency", ["n1"], '{"ms": 5}')
    recorder.flush()
    rows = history.read(tmp_path / "history")
    assert [(row["call"], row["type"], row["fault"], row.get("node")) for row in rows] == [
        (1, "invoke", "kill", "n1,n2"),
        (2, "invoke", "latency", "n1"),
        (1, "fail", "kill", "n1,n2"),
        (3, "info", "pause", None),
        (2, "ok", "latency", "n1"),
    ]
    assert course.problems == ["fault kill of n1,n2: would not die"]


# Shared parts of workloads


def test_all_means_every_workload() -> None:
    assert [workload.name for workload in chosen(["all"])] == list(WORKLOADS)
    assert [workload.name for workload in chosen(["tx", "confirm"])] == ["confirm", "tx"]


def test_no_queue_belongs_to_two_workloads() -> None:
    names = [plan.name for workload in WORKLOADS.values() for plan in workload.queues()]
    assert len(names) == len(set(names))


def test_client_rotates_through_the_nodes_starting_at_its_home(world: World) -> None:
    rotation = Rotation(world, 1, "con-1", pinned=False)
    tried = []
    for _ in range(4):
        tried.append(rotation.next().node)
        rotation.failed()
    assert tried == ["n2", "n3", "n1", "n2"]
    rotation.worked()
    assert rotation.next().node == "n2"


def test_pinned_client_retries_its_node_with_growing_pauses(world: World) -> None:
    rotation = Rotation(world, 2, "con-1", pinned=True)
    rests = []
    for _ in range(100):
        assert rotation.next().node == "n3"
        rests.append(rotation.failed())
    assert rests[0] < 0.2
    assert all(0.25 <= rest <= 0.75 for rest in rests[50:])


def test_delayed_publisher_does_not_catch_up_with_a_burst() -> None:
    now_s = 100.0

    async def kept_waiting() -> None:
        nonlocal now_s
        asyncio.get_running_loop().time = lambda: now_s
        pace = Pace(10.0)
        assert pace.wait_s() == pytest.approx(0.1)
        now_s += 60.0
        assert [pace.wait_s(), pace.wait_s()] == pytest.approx([0.0, 0.1])

    asyncio.run(kept_waiting())


@pytest.mark.parametrize("size_bytes", [0, 3, 8, 100])
def test_a_whole_body_is_recognized(size_bytes: int) -> None:
    fields = _arrived("p:1", body_of("p:1", size_bytes))
    assert (fields["id"], fields["publisher"], fields["sequence"]) == ("p:1", "p", 1)


@pytest.mark.parametrize(
    ("message_id", "body"),
    [
        ("p:1", b""),
        ("p:1", b"p:1 "),
        ("p:1", b"p:1 400 "),
        ("p:1", body_of("p:1", 100)[:60]),
        ("p:1", body_of("p:2", 100)),
        ("p", body_of("p", 10)),
        (None, body_of("None", 10)),
    ],
)
def test_damaged_message_is_recorded_as_corrupt(message_id: str | None, body: bytes) -> None:
    fields = _arrived(message_id, body)
    assert fields["id"] == f"corrupt {message_id}"
    assert "publisher" not in fields


def test_delivery_count_and_deaths_are_read_from_headers() -> None:
    death = {"queue": "q", "reason": "rejected", "count": 2, "exchange": "", "time": None}
    headers = {"x-delivery-count": 3, "x-death": [death]}
    fields = arrived(Delivery(1, "p:1", body_of("p:1", 9), headers, redelivered=True, priority=5))
    assert fields["delivery_count"] == 3
    assert fields["deaths"] == [{"queue": "q", "reason": "rejected", "count": 2}]
    assert (fields["redelivered"], fields["priority"]) == (True, 5)


def _arrived(message_id: str | None, body: bytes) -> history.Arrived:
    return arrived(Delivery(1, message_id, body, {}, redelivered=False, priority=None))
