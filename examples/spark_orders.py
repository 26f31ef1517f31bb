"""Orders go from a queue into Parquet files, and from the files into another queue, each exactly once.

The first query reads orders, adds the category of the item and the total, and writes files. The second query reads
these files and publishes the enriched orders. The checkpoints are beside the files. Kill this program, its tasks or
nodes of the cluster at any time, and start it again: it goes on, and no order is lost or doubled.

The queues must exist: `qq declare queue --name orders --type quorum`, and the same for `enriched-orders`.

python spark_orders.py DIRECTORY [URL...]      runs until it is killed; the URLs are those of HTTP ports
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import qq_spark

ORDERS, ENRICHED = "orders", "enriched-orders"
DEFAULT_URLS = [f"http://127.0.0.1:{port}" for port in (15672, 15673, 15674)]
ORDER = "id BIGINT, item STRING, price DECIMAL(12, 2), quantity INT"
CATEGORIES = [("tea", "drinks"), ("coffee", "drinks"), ("bread", "food")]
BATCH = 10_000


def enriched(orders: DataFrame) -> DataFrame:
    categories = orders.sparkSession.createDataFrame(CATEGORIES, "item STRING, category STRING")
    return (
        orders.select(f.from_json("body", ORDER).alias("order"))
        .select("order.*")
        .join(f.broadcast(categories), "item", "left")
        .withColumn("total", f.expr("CAST(price * quantity AS DECIMAL(12, 2))"))
    )


def to_files(spark: SparkSession, url: str, directory: str) -> StreamingQuery:
    orders = (
        spark.readStream.format("qq")
        .options(url=url, queue=ORDERS, group="to-files", maxMessagesPerTrigger=BATCH)
        .schema("body STRING")
        .load()
    )
    return (
        enriched(orders)
        .writeStream.queryName("to-files")
        .format("parquet")
        .option("checkpointLocation", f"{directory}/checkpoints/to-files")
        .start(f"{directory}/orders")
    )


def to_queue(spark: SparkSession, url: str, directory: str) -> StreamingQuery:
    schema = f"item STRING, {ORDER.replace('item STRING, ', '')}, category STRING, total DECIMAL(12, 2)"
    files = spark.readStream.schema(schema).parquet(f"{directory}/orders")
    return (
        files.select(f.to_json(f.struct("*")).alias("body"))
        .writeStream.queryName("to-queue")
        .format("qq")
        .options(url=url, queue=ENRICHED)
        .option("checkpointLocation", f"{directory}/checkpoints/to-queue")
        .start()
    )


def main() -> None:
    directory, url = sys.argv[1], ",".join(sys.argv[2:] or DEFAULT_URLS)
    spark = (
        SparkSession.builder.master("local[2,4]")  # a task may fail four times
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    qq_spark.register(spark)
    to_files(spark, url, directory)
    to_queue(spark, url, directory)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
