"""Chooses the nodes that a command asks, and the login.

The first of these settings that is given decides: the options --url or --context, the variables QQ_URL or QQ_CONTEXT,
the current context, and finally 127.0.0.1:15672.

Invariant: the login of a context is used only for the URLs of this context. A command with other URLs does not send the
password of a context.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qq.cli.client import contexts
from qq.cli.client.credentials import CA_FILE, CONTEXT, URL, client_login
from qq.cli.client.remote import Remote
from qq.cli.command_line.values import read_url
from qq.cli.local_files import USER
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qq.cli.client.http_client import ClientLogin

DEFAULT_URL = "http://127.0.0.1:15672"
_LOCAL = contexts.Context((DEFAULT_URL,))


def remote(
    urls: Sequence[str],
    context: str | None,
    user: str | None,
    password: str | None,
    password_file: Path | None,
    *,
    ca_file: Path | None = None,
    timeout_s: float | None = None,
) -> Remote:
    """Make the `Remote` given by the options, the environment or a context. Raises OperatingError."""
    found, login = target(urls, context, user, password, password_file, ca_file=ca_file)
    return Remote(found.urls, login, timeout_s, _tls(found))


def target(
    urls: Sequence[str],
    context: str | None,
    user: str | None,
    password: str | None,
    password_file: Path | None,
    *,
    ca_file: Path | None = None,
) -> tuple[contexts.Context, ClientLogin]:
    """Return the nodes and the login given by the options, the environment or a context. Raises OperatingError."""
    found = _context(urls, context, os.environ)
    if ca_file is None and os.environ.get(CA_FILE):
        ca_file = Path(os.environ[CA_FILE])
    if ca_file is not None:
        found = replace(found, ca_file=ca_file)
    return found, client_login(
        user, password, password_file, os.environ, found.user or USER, found.password_file
    )


def _context(urls: Sequence[str], name: str | None, environ: Mapping[str, str]) -> contexts.Context:
    if urls:
        return contexts.Context(tuple(urls))
    file = contexts.file_of(environ)
    if name is not None:
        return contexts.load(file)[name]
    if environ.get(URL):
        try:
            return contexts.Context(tuple(map(read_url, environ[URL].split(","))))
        except ValueError as error:
            raise CommandError(f"environment: {URL}: {error}") from None
    if environ.get(CONTEXT):
        return contexts.load(file)[environ[CONTEXT]]
    known = contexts.load(file)
    return _LOCAL if known.current is None else known[known.current]


def _tls(context: contexts.Context) -> ssl.SSLContext | None:
    """Return the TLS settings of a context; `None` if it has no certificates. Raises CommandError."""
    if context.ca_file is None and context.cert_file is None:
        return None
    try:
        tls = ssl.create_default_context(cafile=context.ca_file)
        if context.cert_file is not None:
            tls.load_cert_chain(context.cert_file, context.key_file)
    except OSError as error:  # includes ssl.SSLError
        files = ", ".join(str(file) for file in (context.ca_file, context.cert_file) if file is not None)
        raise CommandError(f"{files}: {error.strerror or error}") from None
    return tls
