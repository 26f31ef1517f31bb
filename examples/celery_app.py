"""A Celery application with tasks that survive the death of a worker or a node.

celery -A celery_app worker
python celery_app.py                 adds 2 and 3 in a worker

The addresses of all nodes are in CELERY_BROKER, separated by `;`.
"""

import os

from celery import Celery

BROKER = os.environ.get(
    "CELERY_BROKER",
    "amqp://guest:guest@127.0.0.1:5672/;amqp://guest:guest@127.0.0.1:5673/;amqp://guest:guest@127.0.0.1:5674/",
)

app = Celery("celery_app", broker=BROKER, backend="rpc://")
app.conf.update(
    task_default_queue="tasks",
    task_default_queue_type="quorum",
    task_default_exchange_type="topic",  # countdowns and ETAs of quorum queues need it
    worker_detect_quorum_queues=True,
    task_acks_late=True,  # a task is acknowledged when it is done, so a dead worker's tasks come again
    task_reject_on_worker_lost=True,
    broker_transport_options={"confirm_publish": True},  # delay() returns when a majority has the task
    broker_heartbeat=10,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,  # for ever
)


@app.task
def add(one: int, other: int) -> int:
    return one + other


if __name__ == "__main__":
    print(add.delay(2, 3).get(timeout=30))
