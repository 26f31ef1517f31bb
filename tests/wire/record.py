"""Write the tables of octets that the tests compare nodes with.

    python -m tests.wire.record rabbitmq AMQP_PORT HTTP_PORT [NAME...]
    python -m tests.wire.record differences

The first command records the frames of a RabbitMQ into rabbitmq.txt. The RabbitMQ must run on this machine, with the
management plugin and the user guest. The command deletes and makes its virtual host `octets`. Names restrict the
command to exchanges whose names contain a given text; the rest of the table stays.

The second command starts a node and writes its frames into differences.txt, for each listed exchange that still
differs. To allow a new difference, add the name in brackets and a line `# reason` below it, and run the command.
"""

from __future__ import annotations

import sys

from qq.testing import LocalCluster
from tests.wire.exchanges import EXCHANGES
from tests.wire.table import DIFFERENCES, RABBITMQ, read, reasons, written
from tests.wire.wire import set_up, transcript


def record(amqp_port: int, http_port: int, names: list[str]) -> None:
    set_up(http_port)
    known = read(RABBITMQ)
    table: dict[str, list[str]] = {}
    for name, exchange in EXCHANGES.items():
        if name in known and names and not any(part in name for part in names):
            table[name] = known[name]
        else:
            print(name, flush=True)
            table[name] = transcript(amqp_port, exchange)
    RABBITMQ.write_text(written(table))


def record_differences() -> None:
    right, listed = read(RABBITMQ), read(DIFFERENCES)
    table: dict[str, list[str]] = {}
    with LocalCluster(nodes=1) as cluster:
        [node] = cluster.nodes
        set_up(node.http_port)
        for name in EXCHANGES:
            if name in listed:
                lines = transcript(node.amqp_port, EXCHANGES[name])
                if lines != right[name]:
                    table[name] = [*reasons(listed[name]), *lines]
    DIFFERENCES.write_text(written(table))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rabbitmq", amqp_port, http_port, *names]:
            record(int(amqp_port), int(http_port), names)
        case ["differences"]:
            record_differences()
        case _:
            sys.exit(__doc__)
