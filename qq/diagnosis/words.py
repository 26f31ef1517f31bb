"""Short texts for numbers in findings: durations, sizes and counts."""

from __future__ import annotations

from datetime import UTC, datetime

MOST_S = 5.0
"""Seconds of the last bound of histograms; a longer duration is shown as "more than" this."""
FEW_MINUTES = 10
"""Minutes below which a duration is shown with tenths."""
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
UNITS = ("KiB", "MiB", "GiB", "TiB")


def ms(seconds: float) -> str:
    if seconds > MOST_S:
        return f"more than {MOST_S:g} s"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def size(octets: float) -> str:
    unit = "bytes"
    for larger in UNITS:
        if octets < 1024:
            break
        octets, unit = octets / 1024, larger
    return f"{octets:.0f} {unit}" if unit == "bytes" else f"{octets:.1f} {unit}"


def number(count: float, thing: str) -> str:
    """Return a count with its noun. `thing` is the noun in the singular."""
    return f"{count:,.0f} {thing}" + ("" if round(count) == 1 else "s")


def waiting(messages: float) -> str:
    return number(messages, "message") + (" waits" if round(messages) == 1 else " wait")


def hours(seconds: float) -> str:
    minutes = round(seconds / MINUTE_S, 1)
    if minutes < FEW_MINUTES and minutes != round(minutes):
        return f"{minutes} minutes"
    is_short = seconds < 2 * HOUR_S
    return number(minutes, "minute") if is_short else number(seconds / HOUR_S, "hour")


def days(seconds: float) -> str:
    return hours(seconds) if seconds < 2 * DAY_S else number(seconds / DAY_S, "day")


def utc(time_ms: int) -> str:
    """Return a time in milliseconds since 1970 in RFC 3339 format, in UTC, to the second."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
