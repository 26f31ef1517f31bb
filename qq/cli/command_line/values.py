"""Types of options and arguments: URLs, names, times, JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.config import Seed


HTTP_PORT = 15672


class Value(click.ParamType[Any]):
    """A parameter type that converts a text with a function; its ValueError becomes a usage error."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # a default is converted already
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def read_url(text: str) -> str:
    """Make a URL from `HOST:PORT`; a URL stays unchanged. Raises ValueError, whose text has no password."""
    is_whole = "://" in text
    url = text if is_whole else f"http://{text}"
    if url.startswith(("amqp://", "amqps://")):
        raise ValueError(
            f"this is an address of AMQP; commands use HTTP, by default at port {HTTP_PORT}: http://HOST:{HTTP_PORT}"
        )
    if "@" in url:
        raise ValueError(
            "a URL must not contain a login, which other users could see: give --user and --password-file, or QQ_USER "
            "and QQ_PASSWORD"
        )
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or is_whole)
    except ValueError:  # for an invalid port or IPv6 address
        is_usable = False
    if not is_usable or not url.isprintable() or " " in url:
        raise ValueError(f"{text!r} is neither HOST:PORT nor a URL of http or https")
    return url


def _node_name(text: str) -> str:
    if text in ("", ".", ".."):
        raise ValueError(f"{text!r} is no name of a node")
    return text


def _name(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of the command line that Python could not decode
        raise ValueError("is not UTF-8") from None
    return text


def _required_name(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return _name(text)


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of text")
    return text


def _seed(text: str) -> Seed:
    from qq.config import seed_in  # noqa: PLC0415

    return seed_in(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise ValueError("must be a number of seconds")
    return seconds


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error}") from None


def _object(text: str) -> dict[str, Any]:
    value = _json(text)
    if not isinstance(value, dict):
        raise ValueError('must be a JSON object, as {"x-max-length": 1000}')  # noqa: TRY004
    return value


URL = Value("URL", read_url)
NODE = Value("NODE", _node_name)
"""Name of a member of the cluster."""
NAME = Value("NAME", _name)
"""Name of an object of the broker, which may be empty; `REQUIRED` may not."""
REQUIRED = Value("NAME", _required_name)
LINE = Value("TEXT", _line)
PEER = Value("HOST:PORT", _seed)
SECONDS = Value("SECONDS", _seconds)
JSON = Value("JSON", _json)
OBJECT = Value("JSON", _object)
# Readability is checked when the file is read, because that error has an exit status of its own.
FILE = click.Path(readable=False, path_type=Path)
DIRECTORY = click.Path(readable=False, path_type=Path)
