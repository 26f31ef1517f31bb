"""Celery on quorum queues as its documentation advises, and on classic queues with its defaults."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError

from qq.testing import LocalCluster
from tests.interop.celery_app import client
from tests.interop.celery_worker import Worker, wait_ready, working

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

pytestmark = [pytest.mark.xdist_group("interop-celery"), pytest.mark.timeout(120)]

WAIT_S = 30.0
TASKS = 200


class Tasks(NamedTuple):
    """The parts of a Celery application that the tests use."""

    app: Celery
    worker: Worker

    def task(self, name: str, *arguments: Any) -> Any:
        return self.app.signature(name, args=arguments)


def application(urls: Sequence[str], queue_type: str, directory: Path) -> tuple[Celery, dict[str, str]]:
    """Give a client, and the environment of workers for it."""
    results = directory / "results"
    results.mkdir(exist_ok=True)
    broker = ";".join(urls)
    environment = {
        "QQ_INTEROP_BROKER": broker,
        "QQ_INTEROP_RESULTS": str(results),
        "QQ_INTEROP_QUEUE_TYPE": queue_type,
    }
    return client(broker, str(results), queue_type), environment


@pytest.fixture(scope="module", params=["quorum", pytest.param("classic", marks=pytest.mark.interop)])
def tasks(
    request: pytest.FixtureRequest, shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Tasks]:
    directory = tmp_path_factory.mktemp(request.param)
    app, environment = application(shared_cluster.urls, request.param, directory)
    with app, working(app, environment, directory / "worker.log") as worker:
        yield Tasks(app, worker)
        worker.stop()


def test_tasks_return_results(tasks: Tasks) -> None:
    results = [tasks.task("add", number, number).delay() for number in range(20)]
    assert [result.get(WAIT_S) for result in results] == [2 * number for number in range(20)]


def test_a_task_is_retried(tasks: Tasks) -> None:
    assert tasks.task("succeed_at_last").delay().get(WAIT_S) == 2


def test_task_with_a_countdown_runs_after_the_delay(tasks: Tasks) -> None:
    published = time.time()
    results = {delay: tasks.task("now").apply_async(countdown=delay) for delay in (2, 1)}
    for delay, result in results.items():
        assert delay <= result.get(WAIT_S) - published < delay + 10


def test_chains_groups_and_chords(tasks: Tasks) -> None:
    task = tasks.task
    assert chain(task("add", 1, 2), task("add", 3), task("add", 4)).apply_async().get(WAIT_S) == 10
    assert group([task("add", n, 1) for n in range(5)]).apply_async().get(WAIT_S) == [1, 2, 3, 4, 5]
    assert chord([task("add", n, n) for n in range(5)], task("total")).apply_async().get(WAIT_S) == 20


def test_a_revoked_task_is_not_done(tasks: Tasks, tmp_path: Path) -> None:
    revoked = tasks.task("write_down", str(tmp_path), 1).apply_async(countdown=1)
    tasks.task("write_down", str(tmp_path), 2).apply_async(countdown=2)
    revoked.revoke()
    wait_done(tmp_path, {"2"})
    assert not list(tmp_path.glob("1-*"))
    with pytest.raises(TaskRevokedError):
        revoked.get(WAIT_S)


def test_the_worker_answers_remote_control(tasks: Tasks) -> None:
    control, name = tasks.app.control, tasks.worker.name
    assert control.ping(timeout=WAIT_S, limit=1) == [{name: {"ok": "pong"}}]
    inspect = control.inspect(destination=[name], timeout=2.0)
    assert "succeed_at_last" in inspect.registered()[name]
    [queue] = inspect.active_queues()[name]
    assert queue["name"] in {"tasks", "celery"}
    [reply] = control.rate_limit("add", "100/s", destination=[name], reply=True, timeout=WAIT_S, limit=1)
    assert "ok" in reply[name]


def test_events_of_worker_and_tasks_arrive(tasks: Tasks) -> None:
    wanted = {"worker-heartbeat", "task-received", "task-started", "task-succeeded"}
    seen: set[str] = set()
    listening = threading.Event()

    def listen() -> None:
        with tasks.app.connection_for_read() as connection:
            receiver = tasks.app.events.Receiver(connection, {"*": lambda event: seen.add(event["type"])})
            with receiver.consumer_context() as (consuming, *_):
                listening.set()
                while not wanted <= seen:
                    consuming.drain_events(timeout=WAIT_S)

    listener = threading.Thread(target=listen)
    listener.start()
    assert listening.wait(WAIT_S)
    tasks.task("add", 1, 1).delay().get(WAIT_S)
    listener.join(WAIT_S)
    assert wanted <= seen


@pytest.mark.long
def test_restarted_worker_does_the_tasks_sent_in_between(tasks: Tasks) -> None:
    tasks.worker.stop()
    results = [tasks.task("add", number, 1).delay() for number in range(10)]
    tasks.worker.start()
    assert [result.get(WAIT_S) for result in results] == [number + 1 for number in range(10)]
    wait_ready(tasks.app, tasks.worker)


@pytest.mark.long
def test_every_task_is_done_although_the_leader_is_killed(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    with LocalCluster(3) as cluster:
        leader, *followers = [cluster.leader(), *cluster.followers()]
        # The worker is connected to the leader, and the publisher to a follower.
        app, environment = application([node.url for node in (leader, *followers)], "quorum", tmp_path)
        publisher, _ = application([node.url for node in followers], "quorum", tmp_path)
        with app, publisher, working(app, environment, tmp_path / "worker.log"):
            for number in range(TASKS):
                publisher.send_task("write_down", (str(done), number), ignore_result=True)
                if number == TASKS // 2:
                    leader.kill()
                    leader.start()  # the worker does no tasks while it tries to declare its exchanges there, for 18 s
            wait_done(done, {str(number) for number in range(TASKS)})


def wait_done(directory: Path, expected: set[str]) -> None:
    deadline = time.monotonic() + 2 * WAIT_S
    while missing := expected - {file.name.partition("-")[0] for file in directory.iterdir()}:
        assert time.monotonic() < deadline, f"{len(missing)} tasks were not done, for instance {min(missing)}"
        time.sleep(0.1)
