"""A Celery application as its documentation advises for quorum queues, or with queues at their default.

The worker's processes make it from QQ_INTEROP_BROKER, QQ_INTEROP_RESULTS and QQ_INTEROP_QUEUE_TYPE. A publisher has a
`client` of the same configuration, which knows only the names of tasks.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, shared_task


def client(broker: str, results: str, queue_type: str) -> Celery:
    """Return the client's application. `broker`: addresses separated by `;`. `results`: a directory."""
    app = Celery(f"interop-{queue_type}", broker=broker, backend=Path(results).as_uri(), set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
        task_acks_late=True,
        task_reject_on_worker_lost=True,
    )
    if queue_type == "quorum":
        app.conf.update(
            task_default_queue="tasks",
            task_default_queue_type="quorum",
            task_default_exchange_type="topic",  # delayed delivery needs it
            worker_detect_quorum_queues=True,
        )
    return app


if "QQ_INTEROP_BROKER" in os.environ:
    app = client(*(os.environ[f"QQ_INTEROP_{name}"] for name in ("BROKER", "RESULTS", "QUEUE_TYPE")))
    app.set_default()


@shared_task(name="add")
def add(x: int, y: int) -> int:
    return x + y


@shared_task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@shared_task(name="now")
def now() -> float:
    return time.time()


@shared_task(name="succeed_at_last", bind=True, max_retries=3)
def succeed_at_last(self: Any) -> int:
    """Fail twice, then return the number of retries."""
    if self.request.retries < 2:
        raise self.retry(countdown=1)
    return self.request.retries


@shared_task(name="write_down")
def write_down(directory: str, number: int) -> None:
    """Leave a file for each time that the task was done."""
    time.sleep(0.005)
    Path(directory, f"{number}-{time.monotonic_ns()}").touch()
