"""Draws a run: throughput and latency of its clients, second by second, with the faults below.

Invariant: all panels share an axis, seconds since the run began, and a second without a row is shown as a second
without throughput and latency.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.colors import hex_to_rgb, qualitative
from plotly.subplots import make_subplots

Row = Mapping[str, Any]

THROUGHPUT = {"published": "#7f8fa6", "confirmed": "#2e7d32", "delivered": "#1565c0"}
LATENCY = {"confirm": "#2e7d32", "deliver": "#1565c0"}
QUANTILES = {"p50": "dot", "p99": "solid"}
"""The quantiles of the latencies, and the line style of each."""
UNAVAILABLE = "#c62828"
TERMS = ("#5e35b1", "#b39ddb")
"""Colours of the terms, in turn."""
LEVELS = {"INFO": "#455a64", "WARNING": "#ef6c00"}
"""The colour of a log line by its level; others are errors."""
FAULT_COLOURS = qualitative.Dark24
BAND_OPACITY, EDGE_OPACITY = 0.14, 0.6
LANE_PX = 22
"""Height of a node or a fault in the lower panels."""
GRAPH_PX = 230
"""Height of each of the upper panels."""
LEGEND_PX = 170
"""Height of the first legend; that of the faults is below it."""
MARGIN_PX = {"top": 50, "bottom": 60, "between": 46}


class Tables(NamedTuple):
    """The tables of a check for the picture; each may be empty. Times are seconds since the run began."""

    throughput: Sequence[Row] = ()
    latency: Sequence[Row] = ()
    unavailable: Sequence[Row] = ()
    faults: Sequence[Row] = ()
    leaders: Sequence[Row] = ()
    log_lines: Sequence[Row] = ()


def figure(tables: Tables, heal_s: float | None) -> go.Figure:
    """Return the picture of the run; `heal_s` is when the faults had ended."""
    nodes = sorted({row["node"] for row in (*tables.throughput, *tables.unavailable)})
    names = fault_names(tables.faults)
    voices = sorted({row["node"] for row in (*tables.leaders, *tables.log_lines)})
    heights = [GRAPH_PX, GRAPH_PX, lanes_px(len(nodes)), lanes_px(len(voices)), lanes_px(len(names))]
    plot_px = sum(heights) + MARGIN_PX["between"] * (len(heights) - 1)
    drawn = make_subplots(
        rows=len(heights),
        cols=1,
        shared_xaxes=True,
        row_heights=heights,
        vertical_spacing=MARGIN_PX["between"] / plot_px,
        subplot_titles=(
            "Messages per second",
            "Latency, ms",
            "Nothing confirmed at",
            "Leaders and log lines",
            "Faults",
        ),
    )
    _add_throughput(drawn, tables.throughput)
    _add_latency(drawn, tables.latency)
    _add_lanes(drawn, 3, nodes, _unavailable_bars(tables.unavailable))
    _add_lanes(drawn, 4, voices, _leader_bars(tables.leaders))
    _add_log_lines(drawn, 4, tables.log_lines)
    _add_lanes(drawn, 5, names, _fault_bars(tables.faults))
    _add_bands(drawn, tables.faults)
    if heal_s is not None:
        drawn.add_shape(
            type="line",
            x0=heal_s,
            x1=heal_s,
            y0=0,
            y1=1,
            yref="paper",
            line={"color": "#37474f", "width": 1, "dash": "dash"},
        )
        drawn.add_annotation(
            x=heal_s, y=1, yref="paper", yanchor="bottom", text="healed", showarrow=False, xanchor="center"
        )
    _lay_out(drawn, plot_px, rows=len(heights))
    return drawn


def fault_names(faults: Iterable[Row]) -> list[str]:
    return sorted({row["fault"] for row in faults})


def fault_colours(faults: Iterable[Row]) -> dict[str, str]:
    """Return a colour for each fault; the same everywhere in a report."""
    return {
        name: FAULT_COLOURS[position % len(FAULT_COLOURS)]
        for position, name in enumerate(fault_names(faults))
    }


def lanes_px(count: int) -> int:
    return LANE_PX * max(count, 1) + LANE_PX // 2


def _add_throughput(drawn: go.Figure, rows: Sequence[Row]) -> None:
    totals: defaultdict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(THROUGHPUT, 0))
    for row in rows:
        for kind in THROUGHPUT:
            totals[row["second"]][kind] += row[kind]
    seconds = _every_second(totals)
    for kind, colour in THROUGHPUT.items():
        values = [totals[second][kind] if second in totals else 0 for second in seconds]
        drawn.add_scatter(
            x=seconds, y=values, name=kind, mode="lines", line={"color": colour, "width": 1.5}, row=1, col=1
        )


def _add_latency(drawn: go.Figure, rows: Sequence[Row]) -> None:
    seconds = _every_second({row["second"]: row for row in rows})
    for kind, colour in LATENCY.items():
        by_second = {row["second"]: row for row in rows if row["kind"] == kind}
        for quantile, dash in QUANTILES.items():
            drawn.add_scatter(
                x=seconds,
                y=[by_second[second][quantile] if second in by_second else None for second in seconds],
                name=f"{kind} {quantile}",
                # A lone second with gaps at both sides would be invisible as a line.
                mode="lines+markers",
                marker={"size": 3},
                line={"color": colour, "width": 1.5, "dash": dash},
                connectgaps=False,
                row=2,
                col=1,
            )


class _Bar(NamedTuple):
    lane: str
    start: float
    end: float
    colour: str
    text: str


def _unavailable_bars(rows: Iterable[Row]) -> Iterable[_Bar]:
    for row in rows:
        text = f"{row['node']}: {row['end'] - row['start']:.2f} s"
        yield _Bar(row["node"], row["start"], row["end"], UNAVAILABLE, text)


def _leader_bars(rows: Iterable[Row]) -> Iterable[_Bar]:
    for row in rows:
        colour = TERMS[row["term"] % len(TERMS)]
        yield _Bar(row["node"], row["start"], row["end"], colour, f"{row['node']} leads term {row['term']}")


def _add_log_lines(drawn: go.Figure, row: int, lines: Sequence[Row]) -> None:
    """Draw a mark for each line in the lane of its node; its text appears beside the pointer."""
    drawn.add_scatter(
        x=[line["second"] for line in lines],
        y=[escape(line["node"]) for line in lines],
        mode="markers",
        marker={
            "symbol": "line-ns-open",
            "size": 9,
            "color": [LEVELS.get(line["level"], UNAVAILABLE) for line in lines],
        },
        customdata=[escape(line["text"]) for line in lines],
        hovertemplate="%{x:.3f} s %{y}: %{customdata}<extra></extra>",
        showlegend=False,
        row=row,
        col=1,
    )


def _fault_bars(rows: Sequence[Row]) -> Iterable[_Bar]:
    colours = fault_colours(rows)
    for row in rows:
        text = " ".join(row[key] for key in ("fault", "node", "detail") if row[key])
        yield _Bar(row["fault"], row["start"], row["end"], colours[row["fault"]], text)


def _add_lanes(drawn: go.Figure, row: int, lanes: Sequence[str], bars: Iterable[_Bar]) -> None:
    """Draw a lane for each name, the first on top."""
    shown = list(bars)
    drawn.add_bar(
        orientation="h",
        y=[escape(bar.lane) for bar in shown],
        base=[bar.start for bar in shown],
        x=[bar.end - bar.start for bar in shown],
        marker={
            "color": [bar.colour for bar in shown],
            # A bar without length is visible as a line.
            "line": {"color": [bar.colour for bar in shown], "width": 1.5},
        },
        customdata=[[bar.end, escape(bar.text)] for bar in shown],
        hovertemplate="%{customdata[1]}<br>%{base:.1f} s to %{customdata[0]:.1f} s<extra></extra>",
        showlegend=False,
        row=row,
        col=1,
    )
    drawn.update_yaxes(
        row=row,
        col=1,
        type="category",
        categoryorder="array",
        categoryarray=[escape(lane) for lane in lanes],
        range=[len(lanes) - 0.5, -0.5],
        showgrid=False,
    )


def _add_bands(drawn: go.Figure, faults: Sequence[Row]) -> None:
    """Colour the time of each fault in all panels; a click on its name in the legend hides it."""
    in_legend: set[str] = set()
    colours = fault_colours(faults)
    for row in sorted(faults, key=lambda row: (row["fault"], row["start"])):
        name = row["fault"]
        drawn.add_shape(
            type="rect",
            xref="x",
            yref="paper",
            x0=row["start"],
            x1=row["end"],
            y0=0,
            y1=1,
            layer="below",
            fillcolor=_faded(colours[name], BAND_OPACITY),
            line={"width": 1, "color": _faded(colours[name], EDGE_OPACITY)},
            name=escape(name),
            legend="legend2",
            legendgroup=name,
            showlegend=name not in in_legend,
        )
        in_legend.add(name)


def _faded(colour: str, opacity: float) -> str:
    red, green, blue = hex_to_rgb(colour)
    return f"rgba({red},{green},{blue},{opacity})"


def _lay_out(drawn: go.Figure, plot_px: int, rows: int) -> None:
    legend = {"x": 1.01, "xanchor": "left", "yanchor": "top", "font": {"size": 12}}
    drawn.update_layout(
        template="plotly_white",
        height=plot_px + MARGIN_PX["top"] + MARGIN_PX["bottom"],
        margin={"t": MARGIN_PX["top"], "b": MARGIN_PX["bottom"], "l": 120, "r": 180},
        font={"family": "system-ui, sans-serif", "size": 12},
        hovermode="x",
        bargap=0.3,
        legend={**legend, "y": 1},
        legend2={**legend, "y": 1 - LEGEND_PX / plot_px, "title": {"text": "<b>faults</b> (click: hide)"}},
    )
    drawn.update_yaxes(row=1, col=1, rangemode="tozero")
    drawn.update_yaxes(row=2, col=1, type="log", dtick=1)
    drawn.update_xaxes(title_text="seconds since the run began", row=rows, col=1)
    for annotation in drawn.layout.annotations[:rows]:
        annotation.update(x=0, xanchor="left", font={"size": 13})


def _every_second(known: Mapping[int, Any]) -> list[int]:
    return list(range(min(known), max(known) + 1)) if known else []
