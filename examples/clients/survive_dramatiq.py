"""Send 2,000 numbered messages to an actor and work on them with Dramatiq, on nodes that may be killed.

python survive_dramatiq.py [URL...]      the address of each node; by default the nodes of `qq up`

It needs: pip install 'dramatiq[rabbitmq]'
"""

import random
import sys
import threading
import time

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.errors import BrokerConnectionError

URLS = sys.argv[1:] or [f"amqp://guest:guest@127.0.0.1:{port}/" for port in (5672, 5673, 5674)]
MESSAGES = 2000
# Heartbeats notice a host that is gone, which refuses no connection either: hence the other two. All in s.
SETTINGS = "heartbeat=5&socket_timeout=5&stack_timeout=5"

broker = RabbitmqBroker(
    # They are tried in their order: in a random one, clients spread over the nodes.
    url=[f"{url}?{SETTINGS}" for url in random.sample(URLS, len(URLS))],
    confirm_delivery=True,
)
dramatiq.set_broker(broker)
seen: set[int] = set()
all_seen = threading.Event()


@dramatiq.actor(queue_name="survive-dramatiq")
def handle(number: int) -> None:
    """Do the work: doing it twice does no harm. The message is acknowledged when this returns."""
    seen.add(number)
    if len(seen) == MESSAGES:
        all_seen.set()


def send(number: int) -> None:
    """Send a message until it is confirmed."""
    while True:
        try:
            handle.send(number)
        except BrokerConnectionError as error:
            # Whether this message is stored is unknown, so it is sent again: it may come twice.
            print(f"publisher: {error!r} at message {number}", flush=True)
            time.sleep(1)
        else:
            return


def main() -> None:
    worker = dramatiq.Worker(broker)  # as the command `dramatiq` starts, in a process of its own
    worker.start()
    for number in range(1, MESSAGES + 1):
        send(number)
    print(f"{MESSAGES} messages are confirmed", flush=True)
    all_seen.wait()
    print(f"{MESSAGES} messages are consumed", flush=True)
    worker.stop()
    broker.close()


if __name__ == "__main__":
    main()
