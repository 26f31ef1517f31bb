"""Single active consumer: of several processes that consume a queue, a single process gets all messages.

When it dies, the next process takes over.

Use it where messages have to be handled in their order, and the work has to go on when a worker dies.

python single_active.py NAME [URL]      start it several times, and kill the active process
"""

import sys
import time

import pika

QUEUE = "ledger"


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    name = sys.argv[1]
    url = sys.argv[2] if len(sys.argv) > 2 else "amqp://guest:guest@127.0.0.1:5672/"
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    channel.queue_declare(QUEUE, durable=True, arguments=arguments)
    # A single message at a time: if this process dies, the next process gets the unacknowledged message first.
    channel.basic_qos(prefetch_count=1)
    print(f"{name}: waiting", flush=True)
    for method, _, body in channel.consume(QUEUE):
        print(f"{name}: {body.decode()}", flush=True)
        time.sleep(0.01)
        channel.basic_ack(method.delivery_tag)


if __name__ == "__main__":
    main()
