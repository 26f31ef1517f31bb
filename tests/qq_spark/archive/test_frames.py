"""Filters, the analysis and its page, and the commands, in a real Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pika
import pytest

from chaos.pipeline import java
from chaos.pipeline.spark import QUICK
from qq.testing import LocalCluster
from qq_spark.archive.analysis import ALIVE, Counts, counted, shape_of, shown, write_page
from qq_spark.archive.frames import Selection, archived_messages, snapshot_messages, topic_pattern
from qq_spark.archive.store import Archive
from tests.docs.documents import ROOT
from tests.qq_spark.archive.local_archive import publish, ready, run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from qq_spark import Access

EVIL = "<script>alert(1)</script>\x1b[31m\u202e"


@pytest.mark.parametrize(
    ("pattern", "keys", "others"),
    [
        ("a.b", ["a.b"], ["a.bc", "a", "axb"]),
        ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["ab", "b.a"]),
        ("#.a", ["a", "b.a", "c.b.a"], ["ba", "a.b"]),
        ("#.*", ["", "a", "a.b"], []),
        ("a.#.b", ["a.b", "a.c.b", "a.c.d.b"], ["ab", "a"]),
        ("#.#.a.#", ["a", "b.a.c"], ["b"]),
        ("#", ["", "a", "a.b\nc"], []),
        ("a+(b)", ["a+(b)"], ["aab"]),
        ("", [""], ["a"]),
    ],
)
def test_pattern_matches_as_in_a_topic_exchange(pattern: str, keys: list[str], others: list[str]) -> None:
    compiled = re.compile(topic_pattern(pattern).replace(r"\z", r"\Z"))
    assert [key for key in (*keys, *others) if compiled.match(key)] == keys


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (b"", "empty; up to 0 bytes"),
        (b'{"b": 1, "a": {}}', "JSON object with a, b; up to 32 bytes"),
        (b"[1]", "JSON array; up to 4 bytes"),
        (b"12345678", "JSON int; up to 8 bytes"),
        (b"123456789 ", "JSON int; up to 16 bytes"),
        (b"hello", "text; up to 8 bytes"),
        (b"\xff\0abc", "binary, begins with ff006162; up to 8 bytes"),
        (b"[" * 100_000, "text; up to 131,072 bytes"),
    ],
)
def test_shape_names_kind_and_length(body: bytes, shape: str) -> None:
    assert shape_of(body) == shape


def test_shape_names_some_keys_of_a_large_object() -> None:
    body = "{" + ", ".join(f'"key{number:02}": 1' for number in range(20)) + "}"
    assert shape_of(body.encode()).endswith("key11 and 8 more; up to 256 bytes")


def test_shown_text_has_neither_html_nor_control_characters() -> None:
    assert shown(EVIL) == "&lt;script&gt;alert(1)&lt;/script&gt;\\u{1b}[31m\\u{202e}"


@pytest.fixture(scope="module")
def archive(cluster: LocalCluster, access: Access, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """An archive of 7 dead letters in the queue `letters`, and of 2 messages in the queue `1`."""
    with pika.BlockingConnection(pika.URLParameters(cluster.nodes[0].url)) as connection:
        channel = connection.channel()
        for name, more in (
            ("letters", {}),
            ("work", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}),
        ):
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", **more})
        channel.tx_select()
        for number in range(6):
            headers = {"x-publisher-id": EVIL, "x-publish-seq": number + 1, "tenant": "a", "size": number % 2}
            properties = pika.BasicProperties(headers=headers, content_type="application/json")
            channel.basic_publish("", "work", b'{"<b>": %d}' % number, properties)
        properties = pika.BasicProperties(expiration="1", timestamp=1_000_000_000)
        channel.basic_publish("", "work", EVIL.encode(), properties)
        channel.tx_commit()
        while channel.queue_declare("letters", passive=True).method.message_count < 1:
            pass
        for _ in range(6):
            method, _, _ = channel.basic_get("work")
            channel.basic_nack(method.delivery_tag, requeue=False)
        channel.tx_commit()
        while channel.queue_declare("letters", passive=True).method.message_count < 7:
            pass
    publish(cluster, "1", ["one", "two"], app_id="shop")
    directory = tmp_path_factory.mktemp("archive")
    run(directory, access, "letters", keep=True)
    run(directory, access, "1")
    return Archive(str(directory))


# PySpark leaves the sockets of results to the garbage collector.
of_spark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@of_spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_filters_select_archived_messages(spark: SparkSession, archive: Archive) -> None:
    def count(**conditions: object) -> int:
        return archived_messages(spark, archive, Selection(**conditions)).count()  # type: ignore[arg-type]

    now = datetime.now(UTC)
    assert count() == 9
    assert count(queues=("1",)) == 2
    assert count(queues=("letters",), reason="expired") == count(reason="expired") == 1
    assert count(reason="rejected", headers={"tenant": "a", "size": 1}) == 3
    assert count(headers={"tenant": "b"}) == count(reason="maxlen") == 0
    assert count(routing_key="letters") == count(routing_key="*") - 2 == 7
    assert count(routing_key="#") == 9
    assert count(since=now - timedelta(hours=1), until=now + timedelta(hours=1)) == 8
    assert count(until=datetime(2001, 9, 9, 2, tzinfo=UTC)) == 1


@of_spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_analysis_counts_dead_letters_of_a_queue_as_of_an_archive(
    spark: SparkSession, archive: Archive, cluster: LocalCluster, access: Access, tmp_path: Path
) -> None:
    found = counted(archived_messages(spark, archive, Selection(queues=("letters",))))
    assert found.messages == 7
    assert [tuple(row) for row in found.by_queue] == [("work", "expired", 1), ("work", "rejected", 6)]
    assert [tuple(row) for row in found.by_publisher] == [(EVIL, "rejected", 6), ("unknown", "expired", 1)]
    assert sum(row["messages"] for row in found.by_time) == 7
    assert {row["hour"].year for row in found.by_time} == {datetime.now(UTC).year}
    assert [(row["shape"], row["content_type"], row["messages"]) for row in found.by_shape] == [
        ("JSON object with <b>; up to 16 bytes", "application/json", 6),
        ("text; up to 64 bytes", "", 1),
    ]
    with snapshot_messages(spark, access, "letters", Selection()) as frame:
        snapshot = counted(frame)
    assert snapshot == found
    assert ready(cluster, "letters") == 7
    alive = counted(archived_messages(spark, archive, Selection(queues=("1",))))
    assert [tuple(row) for row in alive.by_publisher] == [("shop", ALIVE, 2)]
    check_page(found, tmp_path / "page.html")


def check_page(counts: Counts, page: Path) -> None:
    write_page(counts, f"Dead letters of {EVIL}", page)
    text = page.read_text()
    of_library = text[text.index("<script>") : text.index("</script>")]
    own = text.replace(of_library, "")
    assert "<script>alert" not in own
    assert "\x1b" not in own
    assert "\u202e" not in own
    assert "<b>" not in own
    assert "JSON object with &lt;b&gt;; up to 16 bytes" in own
    assert not re.search(r"""(?:src|href)\s*=""", own)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env=os.environ | {"JAVA_HOME": str(java.find())},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_commands_archive_and_list(cluster: LocalCluster, access: Access, tmp_path: Path) -> None:
    """Beside the test of the commands that are killed, this compares their output."""
    publish(cluster, "commands", map(str, range(100)))
    spark = ("--master", "local[2]", *(part for name in QUICK.items() for part in ("--conf", "=".join(name))))
    done = command(
        "qq", "archive", "messages", f"{tmp_path}/a", "--pattern", "comm.*", *spark, "--url", access.urls[0]
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("archived 100 messages of 'commands' in 1 files, ")
    listed = command("qq_spark.archive", "list", f"{tmp_path}/a")
    assert "  commands  100 messages  1 files  " in listed.stdout


@pytest.mark.slow
def test_commands_list_and_check(cluster: LocalCluster, access: Access, tmp_path: Path) -> None:
    publish(cluster, "listed", map(str, range(100)))
    run(tmp_path / "a", access, "listed")
    listed = command("qq_spark.archive", "list", f"{tmp_path}/a")
    assert "  listed  100 messages  1 files  " in listed.stdout
    checked = command("qq", "archive", "check", f"{tmp_path}/a")
    assert checked.stdout == "100 messages in 1 files: unchanged\n"
