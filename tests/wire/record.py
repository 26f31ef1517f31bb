"""Write the tables of frames that the tests compare nodes with.

    python -m tests.wire.record rabbitmq AMQP_PORT HTTP_PORT [NAME...]
    python -m tests.wire.record differences

The first command records the frames of a RabbitMQ into rabbitmq.txt and rabbitmq_amqp10.txt. The RabbitMQ must run on
this machine, with the management plugin and the user guest. The command deletes and makes its virtual host `octets`.
Names restrict the command to exchanges and conversations whose names contain a given text; the rest stays.

The second command starts a node and writes its frames into differences.txt and differences_amqp10.txt, for each listed
exchange that still differs. To allow a new difference, add the name in brackets and a line `# reason` below it, and run
the command.
"""

from __future__ import annotations

import sys

from qq.testing import LocalCluster
from tests.wire.recordings import RECORDINGS, Ports
from tests.wire.table import read, reasons, written
from tests.wire.wire import set_up


def record(ports: Ports, parts: list[str]) -> None:
    set_up(ports.http)
    for recording in RECORDINGS.values():
        known = read(recording.rabbitmq)
        table: dict[str, list[str]] = {}
        for name in recording.names:
            if name in known and parts and not any(part in name for part in parts):
                table[name] = known[name]
            else:
                print(name, flush=True)
                table[name] = recording.transcript(ports, name, None)
        recording.rabbitmq.write_text(written(table))


def record_differences() -> None:
    with LocalCluster(nodes=1) as cluster:
        [node] = cluster.nodes
        ports = Ports(node.amqp_port, node.http_port)
        set_up(ports.http)
        for recording in RECORDINGS.values():
            right, listed = read(recording.rabbitmq), read(recording.differences)
            table: dict[str, list[str]] = {}
            for name in recording.names:
                if name in listed:
                    lines = recording.transcript(ports, name, None)
                    if recording.compared(lines) != recording.compared(right[name]):
                        table[name] = [*reasons(listed[name]), *lines]
            recording.differences.write_text(written(table))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rabbitmq", amqp_port, http_port, *names]:
            record(Ports(int(amqp_port), int(http_port)), names)
        case ["differences"]:
            record_differences()
        case _:
            sys.exit(__doc__)
