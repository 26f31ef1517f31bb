"""The page of a run: its contents, escaped values, and no external resources."""

from __future__ import annotations

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plotly.offline import get_plotlyjs

from chaos.report import ReportError, main, write
from chaos.timeline import Tables, figure

STARTED_NS = 1_790_000_000 * 10**9
SECONDS = 60
NODES = ("n1", "n2", "n3")
EVIL = '<script>alert("1")</script>'
FAULT = ("fault", "node", "start", "end", "outcome", "detail", "outage", "node_outage", "recovery")
FAULTS = (
    ("kill_leader", "n1", 5.0, 5.1, "ok", "", 0.3, 1.5, 1.4),
    ("partition_ring", "n1,n2,n3", 12.0, 17.0, "ok", "each node loses one neighbour", 0.0, 0.6, 0.6),
    ("slow_fsync", "n2", 15.0, 21.0, "ok", '{"delay_ms": 200}', 0.0, 0.3, 0.3),
    ("kill_leader", "n2", 27.0, 27.1, "ok", "", 0.25, 1.7, 1.7),
    ("clock_jump", "n3", 33.0, 33.2, "ok", '{"seconds": -300}', 0.0, 0.0, 0.1),
    ("disk_full", "n1", 38.0, 45.0, "fail", EVIL, 0.0, 6.5, 0.0),
)
PROMISES = (
    ("lost", "A confirmed message was delivered or is still in its queue."),
    ("phantom", "Nothing is delivered that nobody published."),
    ("unmarked_duplicate", "What comes again is marked redelivered."),
    ("dedup_duplicate", "With deduplication, nothing is in a queue twice."),
    ("order", "Of one publisher, a queue's messages come in order."),
    ("tx_atomic", "Of a transaction, all or nothing happens."),
)
VERSIONS = {
    "qq": "0.1.0",
    "commit": "0123456789ab",
    "toxiproxy": "2.12.0",
    "python": "3.11.2",
    "pika": "1.3.2",
}

Rows = list[dict[str, Any]]


def at(second: float) -> int:
    return STARTED_NS + int(second * 10**9)


def row(second: float, process: str, call: int, type_: str, op: str, **fields: Any) -> dict[str, Any]:
    return {"time_ns": at(second), "process": process, "call": call, "type": type_, "op": op} | fields


LOST: Rows = [
    row(27.01, "pub-3", 117, "invoke", "publish", node="n2", queue="orders", id="pub-3:117", attempt=1),
    row(27.02, "pub-3", 117, "ok", "publish", node="n2", queue="orders", id="pub-3:117", attempt=1),
]
TWICE: Rows = [
    row(5.01, "pub-1", 40, "invoke", "publish", node="n1", queue="orders", id="pub-1:40", attempt=1),
    row(5.2, "pub-1", 40, "unknown", "publish", node="n1", queue="orders", id="pub-1:40", detail=EVIL),
    row(5.9, "pub-1", 41, "invoke", "publish", node="n2", queue="orders", id="pub-1:40", attempt=2),
    row(6.0, "pub-1", 41, "ok", "publish", node="n2", queue="orders", id="pub-1:40", attempt=2),
    row(6.1, "con-2", 9, "ok", "deliver", node="n3", queue="orders", id="pub-1:40", redelivered=False),
    row(6.4, "con-4", 3, "ok", "deliver", node="n2", queue="orders", id="pub-1:40", redelivered=False),
]


def promise(name: str, text: str, examples: Rows) -> dict[str, Any]:
    return {
        "name": name,
        "holds": not examples,
        "checked": 0 if name == "tx_atomic" else 41_233,
        "violations": len(examples),
        "examples": examples,
        "text": text,
    }


def verdict(examples: dict[str, Rows]) -> dict[str, Any]:
    return {
        "format": 1,
        "valid": not examples,
        "rows": 171_204,
        "seconds": 8.71,
        "operations": {
            "publish": {"ok": 41_233, "fail": 12, "unknown": 87},
            "deliver": {"ok": 42_001},
        },
        "promises": [promise(name, text, examples.get(name, [])) for name, text in PROMISES],
        "figures": {
            "confirm_p50_ms": 4.25,
            "confirm_p99_ms": 61.0,
            "longest_unavailability_s": 1.733,
            "published": 41_332,
            "lost": len(examples.get("lost", [])),
        },
        "error": None,
    }


BROKEN = verdict({"lost": LOST[1:], "unmarked_duplicate": TWICE[5:]})
HELD = verdict({})
NOTHING_RECORDED = HELD | {"valid": False, "promises": [], "figures": {}, "error": f"recorded nothing {EVIL}"}


def write_run(directory: Path, document: dict[str, Any], history: Rows) -> None:
    meta = {
        "format": 1,
        "seed": 1234567,
        "nodes": 3,
        "seconds": float(SECONDS),
        "nemesis": sorted({name for name, *_ in FAULTS}),
        "workloads": ["confirm", "dedup"],
        "started_ns": STARTED_NS,
        "heal_ns": at(50),
        "ended_ns": at(SECONDS),
        "versions": VERSIONS,
        "command": "python -m chaos run --nodes 3 --for 60s --nemesis all --seed 1234567",
        "queues": {},
    }
    (directory / "meta.json").write_text(json.dumps(meta))
    (directory / "verdict.json").write_text(json.dumps(document))
    (directory / "history").mkdir()
    lines = [json.dumps(entry) for entry in history]
    (directory / "history" / "clients-1.jsonl").write_text("\n".join(lines[::2]))
    (directory / "history" / "clients-2.jsonl").write_text(
        "\n".join([*lines[1::2], '{"id": "pub-3:117", "ti'])
    )


def is_down(second: float, node: str) -> bool:
    return any(
        fault == "kill_leader" and node == target and start <= second <= start + 2
        for fault, target, start, *_ in FAULTS
    )


def write_tables(directory: Path) -> None:
    chance = random.Random(7)
    tables = directory / "tables"
    tables.mkdir()
    throughput, latency = [], []
    for second in range(SECONDS):
        for node in NODES:
            published = 0 if is_down(second, node) else chance.randint(180, 260)
            throughput.append(
                {
                    "second": second,
                    "node": node,
                    "published": published,
                    "confirmed": max(0, published - chance.randint(0, 9)),
                    "delivered": chance.randint(150, 250) if published else 0,
                    "unknown": 0 if published else 3,
                }
            )
        hurt = any(start <= second <= end + 1 for _, _, start, end, *_ in FAULTS)
        for kind, base in (("confirm", 4.0), ("deliver", 9.0)):
            p50 = base * chance.uniform(0.8, 1.4) * (3 if hurt else 1)
            p99 = p50 * chance.uniform(3, 20)
            latency.append({"second": second, "kind": kind, "p50": p50, "p99": p99, "max": p99 * 2})
    unavailable = [
        {"start": start + 0.05, "end": start + 1.5, "node": node}
        for fault, node, start, *_ in FAULTS
        if fault == "kill_leader"
    ]
    faults = [dict(zip(FAULT, fault, strict=True)) for fault in FAULTS]
    for name, rows in (
        ("throughput", throughput),
        ("latency", latency),
        ("unavailable", unavailable),
        ("faults", faults),
    ):
        pq.write_table(pa.Table.from_pylist(rows), tables / f"{name}.parquet")


class Page(HTMLParser):
    """The page as a browser parses it, without plotly's own code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html.replace(get_plotlyjs(), "")
        assert len(self.html) < len(html)
        self.text = ""
        self.scripts = 0
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(self.html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.scripts += tag == "script"
        self.loaded += [given[name] for name in ("src", "data", "srcset") if name in given]
        if "id" in given:
            self.ids.append(given["id"])
        if "href" in given:
            self.links.append(given["href"])
        if tag in {"td", "th", "h1", "h2", "h3", "p", "dd", "dt", "tr"}:
            self.text += "\n" if tag == "tr" else " "

    def handle_data(self, data: str) -> None:
        self.text += data

    def section(self, title: str) -> str:
        return self.text.split(title, 1)[1]


def page(directory: Path) -> Page:
    return Page(write(directory).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Page:
    directory = tmp_path_factory.mktemp("run")
    write_run(directory, BROKEN, [*LOST, *TWICE, row(1, "con-2", 1, "ok", "deliver", id="pub-9:1")])
    write_tables(directory)
    return page(directory)


def test_the_verdict_names_the_broken_promises(broken: Page) -> None:
    assert '<header class="broken"><h1>BROKEN</h1>' in broken.html
    assert "promises that did not hold: lost, unmarked_duplicate" in broken.text


def test_the_run_can_be_repeated_from_the_page(broken: Page) -> None:
    assert "seed 1234567 · 3 nodes · 60 s · 171,204 rows of history" in broken.text
    assert "python -m chaos run --nodes 3 --for 60s --nemesis all --seed 1234567" in broken.text
    assert "qq 0.1.0, commit 0123456789ab, toxiproxy 2.12.0, python 3.11.2, pika 1.3.2" in broken.text


def test_every_promise_has_a_line(broken: Page) -> None:
    assert re.search(r"lost ✘ broken 41,233 1 A confirmed message was", broken.text)
    assert re.search(r"phantom ✔ held 41,233 0 Nothing is delivered", broken.text)
    assert re.search(r"tx_atomic not judged 0 0 Of a transaction", broken.text)


def test_figures_have_their_units_and_operations_their_outcomes(broken: Page) -> None:
    assert "confirm p50 4.25 ms" in broken.text
    assert "longest unavailability 1.73 s" in broken.text
    assert "published 41,332" in broken.text
    assert "publish 41,233 12 87" in broken.text
    assert "deliver 42,001 0 0" in broken.text


def test_links_lead_to_offending_operations_and_messages(broken: Page) -> None:
    assert broken.links == [
        "#broken-lost",
        "#broken-unmarked_duplicate",
        "#broken-lost-1",
        "#broken-unmarked_duplicate-1",
    ]
    assert set(broken.links) <= {f"#{name}" for name in broken.ids}
    assert len(set(broken.ids)) == len(broken.ids)


def test_message_is_shown_with_its_rows_and_the_offending_marked(broken: Page) -> None:
    story = broken.section("Message pub-1:40").strip().splitlines()
    assert [line.split()[:2] for line in story[1:]] == [
        ["5.010", "pub-1"],
        ["5.200", "pub-1"],
        ["5.900", "pub-1"],
        ["6.000", "pub-1"],
        ["6.100", "con-2"],
        ["6.400", "con-4"],
    ]
    marked = re.findall(r'<tr class="mark"><td>([\d.]+)', broken.html)
    assert marked == ["27.020", "6.400"]
    assert "pub-9:1" not in broken.text


def test_a_history_may_be_of_parquet_files(tmp_path: Path) -> None:
    write_run(tmp_path, BROKEN, [])
    pq.write_table(pa.Table.from_pylist([*TWICE, *LOST]), tmp_path / "history" / "clients.parquet")
    assert "5.900 pub-1 41 invoke publish" in page(tmp_path).section("Message pub-1:40")


def test_faults_are_listed_with_outcome_and_cost(broken: Page) -> None:
    faults = broken.section("recovery, s")
    assert re.search(r"kill_leader n1 5 0\.1 ok 0\.3 1\.5 1\.4", faults)
    assert re.search(r"disk_full n1 38 7 fail 0 6\.5 0 <script>", faults)
    assert broken.html.count('<b class="bad">fail</b>') == 1


def test_recorded_text_is_never_markup(broken: Page) -> None:
    assert broken.text.count(EVIL) == 2  # a row of the history and a fault
    assert EVIL not in broken.html
    assert broken.scripts == 2  # plotly and the timeline


def test_report_page_loads_no_resources(broken: Page) -> None:
    assert broken.loaded == []
    assert all(link.startswith("#") for link in broken.links)
    assert "default-src 'none'" in broken.html


def test_the_timeline_shows_sums_gaps_and_bands(tmp_path: Path) -> None:
    tables = Tables(
        throughput=[
            {"second": 0, "node": "n1", "published": 5, "confirmed": 4, "delivered": 3},
            {"second": 0, "node": "n2", "published": 6, "confirmed": 5, "delivered": 4},
            {"second": 2, "node": "n1", "published": 1, "confirmed": 1, "delivered": 1},
        ],
        latency=[
            {"second": 0, "kind": "confirm", "p50": 1.0, "p99": 9.0},
            {"second": 2, "kind": "confirm", "p50": 2.0, "p99": 8.0},
        ],
        unavailable=[{"start": 0.5, "end": 1.75, "node": "n2"}],
        faults=[
            {"start": 1.0, "end": 2.0, "fault": "kill", "node": "n1", "detail": EVIL},
            {"start": 3.0, "end": 4.0, "fault": "kill", "node": "n2", "detail": None},
        ],
        leaders=[{"start": 0.0, "end": 4.0, "node": "n2", "term": 3}],
        log_lines=[{"second": 0.25, "node": "n1", "level": "WARNING", "text": EVIL}],
    )
    drawn = figure(tables, 5.0)
    lines = {trace.name: list(trace.y) for trace in drawn.data if trace.type == "scatter"}
    assert lines["published"] == [11, 0, 1]
    assert lines["delivered"] == [7, 0, 1]
    assert lines["confirm p99"] == [9.0, None, 8.0]
    unavailable, leaders, faults = (trace for trace in drawn.data if trace.type == "bar")
    [log_lines] = [trace for trace in drawn.data if trace.type == "scatter" and trace.mode == "markers"]
    assert (list(leaders.y), list(leaders.base), list(leaders.x)) == (["n2"], [0.0], [4.0])
    assert leaders.customdata[0][1] == "n2 leads term 3"
    assert (list(log_lines.x), list(log_lines.y)) == ([0.25], ["n1"])
    assert EVIL not in log_lines.customdata[0]
    assert (list(unavailable.y), list(unavailable.base), list(unavailable.x)) == (["n2"], [0.5], [1.25])
    assert EVIL not in faults.customdata[0][1]
    bands = [shape for shape in drawn.layout.shapes if shape.type == "rect"]
    assert [(band.x0, band.x1, band.name, band.showlegend) for band in bands] == [
        (1.0, 2.0, "kill", True),
        (3.0, 4.0, "kill", False),
    ]
    assert drawn.layout.yaxis2.type == "log"


def test_report_of_an_empty_run_says_invalid(tmp_path: Path) -> None:
    write_run(tmp_path, NOTHING_RECORDED, [])
    shown = page(tmp_path)
    assert '<header class="unknown"><h1>INVALID</h1>' in shown.html
    assert f"recorded nothing {EVIL}" in shown.text
    assert "Nothing was recorded that could be drawn." in shown.text


def test_a_run_with_problems_is_not_valid(tmp_path: Path) -> None:
    write_run(tmp_path, HELD, [])
    meta = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps(meta | {"problems": [f"queue {EVIL} does not drain"]}))
    shown = page(tmp_path)
    assert '<header class="unknown"><h1>INVALID</h1>' in shown.html
    assert f"queue {EVIL} does not drain" in shown.section("Problems of the run")


def test_a_run_that_held_is_valid(tmp_path: Path) -> None:
    write_run(tmp_path, HELD, [])
    write_tables(tmp_path)
    (tmp_path / "tables" / "unavailable.parquet").unlink()
    shown = page(tmp_path)
    assert '<header class="holds"><h1>VALID</h1>' in shown.html
    assert "all 5 promises that could be checked held" in shown.text
    assert "Offending" not in shown.text


@pytest.mark.parametrize(
    ("break_it", "line"),
    [
        (lambda run: (run / "meta.json").unlink(), "it is not the directory of a run"),
        (lambda run: (run / "verdict.json").unlink(), "run `python -m chaos check"),
        (lambda run: (run / "verdict.json").write_text('{"format"'), "verdict.json cannot be read"),
        (lambda run: (run / "meta.json").write_text('{"format": 2}'), "format 2 is unknown"),
        (lambda run: (run / "tables" / "faults.parquet").write_text("PAR"), "faults.parquet cannot be read"),
    ],
)
def test_directory_without_a_valid_run_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], break_it: Any, line: str
) -> None:
    write_run(tmp_path, HELD, [])
    write_tables(tmp_path)
    break_it(tmp_path)
    with pytest.raises(ReportError):
        write(tmp_path)
    assert main([str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("chaos report: ")
    assert line in errors
    assert errors.count("\n") == 1


def test_the_command_prints_where_the_report_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, HELD, [])
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
