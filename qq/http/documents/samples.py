"""Samples: earlier values of numbers, by the query parameters of RabbitMQ's API.

Invariant: out-of-range parameters are refused; parameters that are no numbers are ignored, as in RabbitMQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from qq.http.base.error_responses import bad_request
from qq.management.reports.rows import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiohttp import web

    from qq.management.management import Management

T = TypeVar("T")

LISTED_MAX = 100
"""Objects of a list that get samples at most: a page of the usual size."""
SAMPLES_MAX = 500
"""Samples of a number at most: RabbitMQ's bound."""
DIGITS_MAX = 9


def with_samples(
    request: web.Request, management: Management, thing: tuple[str, ...], document: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a document with the requested samples of its object. Raises Refusal."""
    return _adding(request, management)(thing, document)


def adding_samples(
    request: web.Request, management: Management, thing_of: Callable[[T], tuple[str, ...]]
) -> Callable[[T, Mapping[str, Any]], Mapping[str, Any]]:
    """Return a function that adds the requested samples to the documents of a list. Raises Refusal.

    It adds samples to the first `LISTED_MAX` documents only.
    """
    add, places_left = _adding(request, management), iter(range(LISTED_MAX))

    def add_while_few(thing: T, document: Mapping[str, Any]) -> Mapping[str, Any]:
        return document if next(places_left, None) is None else add(thing_of(thing), document)

    return add_while_few


def _adding(
    request: web.Request, management: Management
) -> Callable[[tuple[str, ...], Mapping[str, Any]], dict[str, Any]]:
    lengths, rates = _wanted(request, "lengths"), _wanted(request, "msg_rates")

    def add(thing: tuple[str, ...], document: Mapping[str, Any]) -> dict[str, Any]:
        completed = dict(document)
        if lengths is not None:
            completed = _joined(completed, management.statistics.samples(thing, lengths))
        if rates is not None and "message_stats" in completed:
            completed["message_stats"] = _joined(
                completed["message_stats"], management.statistics.samples(thing, rates)
            )
        return completed

    return add


def _joined(document: Mapping[str, Any], samples: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document with the samples of those numbers that it contains."""
    details = {f"{name}_details": each for name, each in samples.items()}
    return {key: {**value, **details[key]} if key in details else value for key, value in document.items()}


def _wanted(request: web.Request, what: str) -> Samples | None:
    """Return the requested times of samples, or None if no samples are requested. Raises Refusal."""
    age_s, step_s = _number(request, f"{what}_age"), _number(request, f"{what}_incr")
    if age_s is None or step_s is None:
        return None
    if age_s < 1 or step_s < 1 or age_s // step_s > SAMPLES_MAX:
        raise bad_request(f"Invalid range parameters: age {age_s}, incr {step_s}")
    return Samples(age_s, step_s)


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name, "")
    digits = text[1:] if text[:1] in ("+", "-") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX else None
