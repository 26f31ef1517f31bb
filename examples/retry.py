"""Retries with growing delays, and a queue for jobs that always fail: arguments of a queue, no ladder of queues.

A job that fails is rejected. It waits, half a second after its first delivery, a second after its second and so on, and
is delivered again. When it has failed too often, it goes to the queue of parked jobs, with the reason in its headers.

python retry.py [URL]
"""

import sys

import pika

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@127.0.0.1:5672/"
ATTEMPTS = 3
JOBS = {
    "x-queue-type": "quorum",
    "x-delayed-retry-type": "all",  # a returned message waits before it is delivered again
    "x-delayed-retry-min": 500,  # in ms, multiplied by the number of deliveries
    "x-delayed-retry-max": 60_000,
    "x-delivery-limit": ATTEMPTS - 1,  # returns of a job at most
    "x-dead-letter-exchange": "",  # the default exchange: the key is the name of the queue
    "x-dead-letter-routing-key": "jobs.parked",
}


def declare(channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
    channel.queue_declare("jobs", durable=True, arguments=JOBS)
    channel.queue_declare("jobs.parked", durable=True, arguments={"x-queue-type": "quorum"})


def work(body: bytes, attempt: int) -> bool:
    """Do the job; False if it failed. A flaky job works at its second attempt."""
    return body == b"flaky" and attempt > 1


def main() -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        declare(channel)
        channel.confirm_delivery()
        for job in (b"flaky", b"hopeless"):
            channel.basic_publish("", "jobs", job)
        channel.basic_qos(prefetch_count=1)
        left = 2
        for method, properties, body in channel.consume("jobs"):
            attempt = (properties.headers or {}).get("x-delivery-count", 0) + 1
            if work(body, attempt):
                channel.basic_ack(method.delivery_tag)
                print(f"{body.decode()}: done at attempt {attempt}")
                left -= 1
            else:
                channel.basic_reject(method.delivery_tag, requeue=True)
                print(f"{body.decode()}: failed at attempt {attempt}")
                left -= attempt == ATTEMPTS
            if not left:
                break
        channel.cancel()
        _, properties, body = next(channel.consume("jobs.parked", auto_ack=True))
        print(f"{body.decode()}: parked, because of {properties.headers['x-first-death-reason']}")


if __name__ == "__main__":
    main()
