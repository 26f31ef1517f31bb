"""Requests and replies with direct reply-to: no queue for replies, and client and server may be at different nodes.

Replies are delivered at most once: a client without a reply in time must repeat the request or give up.

python rpc.py serve [URL]
python rpc.py ask NUMBER [URL]
"""

import sys
import time
import uuid

import pika

REQUESTS = "rpc.fibonacci"
TIMEOUT_S = 10


def fibonacci(number: int) -> int:
    one, other = 0, 1
    for _ in range(number):
        one, other = other, one + other
    return one


def serve(channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
    channel.basic_qos(prefetch_count=1)
    print("serving", flush=True)
    for method, properties, body in channel.consume(REQUESTS):
        reply = str(fibonacci(int(body))).encode()
        answer = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, reply, answer)
        channel.basic_ack(method.delivery_tag)


def ask(channel: pika.adapters.blocking_connection.BlockingChannel, number: str) -> str | None:
    """Return the reply, or None after the timeout."""
    question = str(uuid.uuid4())
    replies: list[str] = []

    def on_reply(_channel: object, _method: object, properties: pika.BasicProperties, body: bytes) -> None:
        if properties.correlation_id == question:
            replies.append(body.decode())

    # The consumer of replies must exist before the request is published.
    channel.basic_consume("amq.rabbitmq.reply-to", on_reply, auto_ack=True)
    request = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id=question)
    channel.basic_publish("", REQUESTS, number.encode(), request)
    until = time.monotonic() + TIMEOUT_S
    while not replies and time.monotonic() < until:
        channel.connection.process_data_events(time_limit=until - time.monotonic())
    return replies[0] if replies else None


def main() -> None:
    if sys.argv[1:2] != ["serve"] and len(sys.argv) < 3:
        sys.exit(__doc__)
    command, *rest = sys.argv[1:]
    number = rest.pop(0) if command == "ask" else ""
    url = rest[0] if rest else "amqp://guest:guest@127.0.0.1:5672/"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(REQUESTS, durable=True, arguments={"x-queue-type": "quorum"})
        if command == "serve":
            serve(channel)
        else:
            print(ask(channel, number))


if __name__ == "__main__":
    main()
