"""An outbox: stored orders and published messages never differ, and each message is published once.

The application writes an order and the message about it in the same transaction of its database. A relay publishes the
rows of the outbox in order, and removes confirmed rows. When its connection is lost, or it is killed between the
confirm and the removal, it publishes the same rows again, with the same numbers, on any node: the broker knows the
numbers and drops messages that it has already stored.

python outbox.py DATABASE [URL...]      writes 200 orders and relays them
"""

import sqlite3
import sys
import time

import pika
from pika.exceptions import AMQPError, NackError

QUEUE = "orders"
PUBLISHER = "orders-outbox"  # names this outbox only, and stays the same after a restart
DEFAULT_URLS = [f"amqp://guest:guest@127.0.0.1:{port}/" for port in (5672, 5673, 5674)]
TABLES = """
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT);
    CREATE TABLE IF NOT EXISTS outbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT);
"""
BATCH = 50


def open_database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.executescript(TABLES)
    return database


def place_order(database: sqlite3.Connection, item: str) -> None:
    """Store the order and the message about it in the same transaction."""
    with database:
        order = database.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
        database.execute("INSERT INTO outbox (body) VALUES (?)", (f"order {order}: {item}",))


def relay(database: sqlite3.Connection, urls: list[str]) -> None:
    """Publish until the outbox is empty; reconnect if the connection is lost."""
    while True:
        try:
            with pika.BlockingConnection([pika.URLParameters(url) for url in urls]) as connection:
                channel = connection.channel()
                channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
                channel.confirm_delivery()
                while count := publish_some(database, channel):
                    print(f"{count} messages published and confirmed", flush=True)
                print("the outbox is empty: each order is published once", flush=True)
                return
        except NackError:
            time.sleep(1)  # refused, for instance by a full queue: publish it again later
        except AMQPError as error:
            print(f"connection lost ({type(error).__name__}), publishing again", flush=True)
            time.sleep(0.1)


def publish_some(
    database: sqlite3.Connection, channel: pika.adapters.blocking_connection.BlockingChannel
) -> int:
    """Publish the oldest rows in the order of their numbers; return their number."""
    rows = database.execute("SELECT seq, body FROM outbox ORDER BY seq LIMIT ?", (BATCH,)).fetchall()
    for seq, body in rows:
        headers = {"x-publisher-id": PUBLISHER, "x-publish-seq": seq}
        channel.basic_publish(
            "", QUEUE, body, pika.BasicProperties(headers=headers)
        )  # returns when confirmed
    if rows:
        with database:
            database.execute("DELETE FROM outbox WHERE seq <= ?", (rows[-1][0],))
    return len(rows)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    database = open_database(sys.argv[1])
    for number in range(200):
        place_order(database, f"chair {number}")
    relay(database, sys.argv[2:] or DEFAULT_URLS)


if __name__ == "__main__":
    main()
