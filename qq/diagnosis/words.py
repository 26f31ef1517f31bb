"""How findings tell numbers: lengths of time and sizes, short."""

from __future__ import annotations

MOST_S = 5.0
"""The last bound of histograms: what takes longer is told as that."""
FEW_MINUTES = 10
"""Fewer minutes are told with a tenth."""
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
    """A count of things; the thing is given as one."""
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
