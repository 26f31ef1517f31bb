"""`spark_orders.py` neither loses nor doubles an order while its parts die."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pika
import pytest

from chaos.pipeline import java
from tests.qq_spark.pipeline import Drivers, Publisher, declare, drained

if TYPE_CHECKING:
    from qq.testing import LocalCluster

parquet: Any = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.xdist_group("examples")

PROGRAM = Path(__file__).parents[2] / "examples" / "spark_orders.py"
ROUNDS, ORDERS = 3, 300
CATEGORIES = {"tea": "drinks", "coffee": "drinks", "bread": "food"}
QUEUES = ("orders", "enriched-orders")


def order(number: int) -> dict[str, Any]:
    item = ("tea", "coffee", "bread", "soap")[number % 4]
    return {"id": number, "item": item, "price": f"{number % 7}.25", "quantity": number % 5}


def enriched(number: int) -> dict[str, Any]:
    """Return an order as the program must publish it."""
    found = order(number)
    total = Decimal(found["price"]) * found["quantity"]
    found |= {"price": Decimal(found["price"]), "category": CATEGORIES.get(found["item"]), "total": total}
    return {name: value for name, value in found.items() if value is not None}


def rows_of_files(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of the files that the query has committed."""
    paths = {
        unquote(urlsplit(json.loads(line)["path"]).path)
        for file in (directory / "_spark_metadata").glob("[0-9]*")
        for line in file.read_text().splitlines()[1:]
    }
    rows = [row for path in sorted(paths) for row in parquet.read_table(path).to_pylist()]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def messages(cluster: LocalCluster, queue: str) -> int:
    with pika.BlockingConnection(pika.URLParameters(cluster.urls[0])) as connection:
        return connection.channel().queue_declare(queue, passive=True).method.message_count


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_orders_are_exact_when_all_parts_die(cluster: LocalCluster, tmp_path: Path) -> None:
    chance = random.Random(1)
    declare(cluster, *QUEUES)
    urls = [f"http://127.0.0.1:{node.http_port}" for node in cluster.nodes]
    environment = {
        "JAVA_HOME": str(java.find()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # as in an activated environment
    }
    drivers = Drivers(tmp_path, PROGRAM, tmp_path, *urls, **environment)
    drivers.restarts = 10
    committed: set[str] = set()
    in_doubt: set[str] = set()
    try:
        drivers.start()
        for number in range(ROUNDS):
            bodies = [json.dumps(order(number * ORDERS + each)) for each in range(ORDERS)]
            publisher = Publisher(cluster, QUEUES[:1], bodies, chance)
            begun = messages(cluster, QUEUES[1])
            publisher.start()
            drivers.wait(lambda begun=begun: messages(cluster, QUEUES[1]) > begun)
            time.sleep(chance.random())
            cluster.nodes[number].kill()
            drivers.wait(drivers.kill_executors)
            time.sleep(chance.random())
            drivers.kill()
            drivers.start()
            cluster.restore()
            publisher.join()
            committed |= publisher.committed
            in_doubt |= publisher.in_doubt
        wanted = len(committed)
        drivers.wait(lambda: messages(cluster, QUEUES[0]) == 0 and messages(cluster, QUEUES[1]) >= wanted)
        time.sleep(2)  # for orders that would be too many
    finally:
        drivers.kill()
    files = rows_of_files(tmp_path / "orders")
    published = [json.loads(body, parse_float=Decimal) for body in drained(cluster, QUEUES[1])]
    found = [row["id"] for row in files]
    assert sorted(found) == sorted(row["id"] for row in published) == sorted(set(found))
    first, last = (
        {json.loads(body)["id"] for body in bodies} for bodies in (committed, committed | in_doubt)
    )
    assert first <= set(found) <= last
    assert sorted(files, key=lambda row: row["id"]) == [enriched(number) for number in sorted(found)]
    assert sorted(published, key=lambda row: row["id"]) == [enriched(number) for number in sorted(found)]
