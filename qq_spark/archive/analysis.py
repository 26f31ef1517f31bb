"""Counts of dead letters, and a page that shows them.

Invariant: the page loads nothing. Names and payloads on it are escaped text: neither HTML nor control characters.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from qq_spark.archive.frames import last_death, message_time
from qq_spark.archive.store import PACKAGES, ArchiveError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row

BARS_MAX = 20
"""Most queues and publishers of a plot."""
HOURS_MAX = 1_000
SHAPES_MAX = 30
EXAMPLE_BYTES = 120
KEYS_MAX = 12
"""Most keys of a JSON object that its shape names."""
ALIVE = "no dead letter"
UNKNOWN = "unknown"


class Counts(NamedTuple):
    """Dead letters by several groups, the largest groups first."""

    messages: int
    by_time: list[Row]
    """`hour`, `reason`, `messages`."""
    by_queue: list[Row]
    """`queue`, `reason`, `messages`: the queue in which a message died."""
    by_publisher: list[Row]
    """`publisher`, `reason`, `messages`."""
    by_shape: list[Row]
    """`shape`, `content_type`, `messages`, `shortest`, `longest`, `example`."""


def counted(frame: DataFrame) -> Counts:
    """Count the messages of an archive or a snapshot."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only jobs need it

    properties = f.from_json("properties", "map<string, string>")
    named = f.coalesce(
        "publisher_id", properties.getItem("user_id"), properties.getItem("app_id"), f.lit(UNKNOWN)
    )
    death = last_death()
    died = frame.select(
        f.coalesce(death["reason"], f.lit(ALIVE)).alias("reason"),
        f.coalesce(death["queue"], "queue").alias("queue"),
        named.alias("publisher"),
        f.date_trunc("hour", f.coalesce(f.timestamp_seconds(death["time"]), message_time())).alias("hour"),
        f.coalesce(properties.getItem("content_type"), f.lit("")).alias("content_type"),
        "body",
    ).cache()
    shape = f.udf(shape_of, "string", useArrow=False)("body")
    shapes = (
        died.withColumn("shape", shape)
        .groupBy("shape", "content_type")
        .agg(
            f.count("*").alias("messages"),
            f.min(f.length("body")).alias("shortest"),
            f.max(f.length("body")).alias("longest"),
            f.min(f.substring("body", 1, EXAMPLE_BYTES)).alias("example"),
        )
        .orderBy(f.desc("messages"), "shape")
    )
    try:
        return Counts(
            died.count(),
            _largest(died, "hour", HOURS_MAX),
            _largest(died, "queue", BARS_MAX),
            _largest(died, "publisher", BARS_MAX),
            shapes.limit(SHAPES_MAX).collect(),
        )
    finally:
        died.unpersist()


def _largest(died: DataFrame, name: str, most: int) -> list[Row]:
    """Count by a column and the reason, for the largest groups of the column."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only jobs need it

    chosen = died.groupBy(name).agg(f.count("*").alias("all")).orderBy(f.desc("all"), name).limit(most)
    counts = died.groupBy(name, "reason").agg(f.count("*").alias("messages"))
    return (
        counts.join(chosen, counts[name].eqNullSafe(chosen[name]))
        .orderBy(f.desc("all"), counts[name], "reason")
        .select(counts[name], "reason", "messages")
        .collect()
    )


def shape_of(body: bytes) -> str:
    """Return what a payload is like: its kind, the keys of a JSON object, and its length as a power of two."""
    size = f"{1 << max(len(body) - 1, 0).bit_length():,} bytes" if body else "0 bytes"
    return f"{_kind(body)}; up to {size}"


def _kind(body: bytes) -> str:
    if not body:
        return "empty"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"binary, begins with {body[:4].hex()}"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return "text"
    if isinstance(document, dict):
        keys = sorted(map(str, document))
        more = f" and {len(keys) - KEYS_MAX} more" if len(keys) > KEYS_MAX else ""
        return f"JSON object with {', '.join(keys[:KEYS_MAX])}{more}"
    return f"JSON {'array' if isinstance(document, list) else type(document).__name__}"


# The page


def write_page(counts: Counts, title: str, path: Path) -> None:
    """Write the page. Raise ArchiveError if plotly is missing, or the file cannot be written."""
    try:
        from plotly import io, offline  # noqa: PLC0415 - only the page needs it
    except ImportError:
        raise ArchiveError(f"a page needs the package plotly: {PACKAGES}") from None
    figures = [
        _bars(heading, name, rows)
        for name, heading, rows in (
            ("hour", "Reasons by hour (UTC)", counts.by_time),
            ("queue", "Reasons by queue", counts.by_queue),
            ("publisher", "Reasons by publisher", counts.by_publisher),
        )
        if rows
    ]
    plots = "\n".join(io.to_html(figure, include_plotlyjs=False, full_html=False) for figure in figures)
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{shown(title)}</title>
<style>body {{font-family: sans-serif; margin: 2em}} td, th {{text-align: left; padding: 0.2em 1em 0.2em 0;
vertical-align: top}} code {{word-break: break-all}}</style>
<script>{offline.get_plotlyjs()}</script></head><body>
<h1>{shown(title)}</h1>
<p>{counts.messages:,} messages</p>
{plots}
<h2>Payloads</h2>
<table><tr><th>messages</th><th>payload</th><th>content type</th><th>bytes</th><th>example</th></tr>
{"".join(map(_table_row, counts.by_shape))}
</table></body></html>
"""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror}") from None


def _bars(heading: str, name: str, rows: list[Row]) -> dict[str, Any]:
    """Return a figure with a bar for each group, divided by reason."""
    bars = [
        {
            "type": "bar",
            "name": shown(reason),
            "x": [shown(row[name]) for row in rows if row["reason"] == reason],
            "y": [row["messages"] for row in rows if row["reason"] == reason],
        }
        for reason in sorted({row["reason"] for row in rows})
    ]
    axes = {"xaxis": {"title": {"text": name}}, "yaxis": {"title": {"text": "messages"}}}
    return {
        "data": bars,
        "layout": {"title": {"text": heading}, "barmode": "stack", "showlegend": True, **axes},
    }


def _table_row(row: Row) -> str:
    example = bytes(row["example"]).decode(errors="backslashreplace")
    return (
        f"<tr><td>{row['messages']:,}</td><td>{shown(row['shape'])}</td><td>{shown(row['content_type'])}</td>"
        f"<td>{row['shortest']:,} to {row['longest']:,}</td><td><code>{shown(example)}</code></td></tr>\n"
    )


def shown(value: Any) -> str:
    """Return a value as HTML text, with control characters and such escaped."""
    text = "unknown" if value is None else str(value)
    visible = "".join(each if each.isprintable() else f"\\u{{{ord(each):x}}}" for each in text)
    return escape(visible)
