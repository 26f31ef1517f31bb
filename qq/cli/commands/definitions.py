"""`qq definitions`: exports and imports everything that was declared or set, as a JSON document.

Invariant: the file is replaced as a whole or stays as it was. It contains hashes of passwords, so only its owner may
read it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from qq.cli.client.api import JSON, path_of
from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import NAME
from qq.cli.options import with_force, with_node
from qq.cli.terminal.escaping import escaped
from qq.cli.terminal.progress import Wait, progress_bar
from qq.cli.terminal.streams import STANDARD_STREAM, read_within
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Generator

    from qq.cli.client.remote import Remote

_CHUNK_BYTES = 256 * 1024
_BYTES_MAX = 1024 * 1024 * 1024
"""Largest document that a node accepts, in bytes."""


_vhost = click.option("--vhost", type=NAME, metavar="NAME", help="Only this virtual host.  [default: all]")
_file = click.argument("file", metavar="FILE|-")


@click.group("definitions", cls=CommandGroup)
def definitions_command() -> None:
    """Export or import all declared objects and settings."""


@definitions_command.command("export")
@_file
@_vhost
@with_node
def export_definitions(node: Remote, *, file: str, vhost: str | None) -> int:
    """Write all declared objects and settings to a file, or to standard output (-)."""
    done = 0
    with (
        progress_bar("reading definitions", in_bytes=True, prints=file == STANDARD_STREAM) as bar,
        node.download(_path(vhost), JSON) as stream,
        _target(file) as target,
    ):
        while part := stream.read(_CHUNK_BYTES):
            target.write(part)
            done += len(part)
            bar.update(done, None)
    if file != STANDARD_STREAM:
        print(f"{file}: {done:,} bytes of definitions")
    return 0


@contextmanager
def _target(file: str) -> Generator[BinaryIO]:
    """Open a temporary file that becomes the file when the block ends; a failed block leaves no file."""
    if file == STANDARD_STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file).resolve()
    if path.exists() and not path.is_file():  # a pipe or a device must not be replaced by a file
        with path.open("wb") as target:
            yield target
        return
    descriptor, temporary = tempfile.mkstemp(
        prefix=f".{path.name}.", dir=path.parent
    )  # readable by the owner only
    try:
        with os.fdopen(descriptor, "wb") as target:
            yield target
            target.flush()
            os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


@definitions_command.command("import")
@_file
@_vhost
@with_force
@with_node
def import_definitions(node: Remote, *, file: str, vhost: str | None, query: dict[str, str]) -> int:
    """Import objects and settings from a file, or from standard input (-). Existing objects stay."""
    document = read_within(file, _BYTES_MAX)
    if document is None:
        raise CommandError(f"{file}: is larger than {_BYTES_MAX:,} bytes: take it over in parts")
    wait = Wait("the definitions to be taken over")
    answer = node.send("POST", _path(vhost), document, query=query, is_long=True, wait=wait)
    print(f"{len(document):,} bytes of definitions: taken over")
    for each in (answer.document or {}).get("left_out", ()):
        print(escaped(f"left out: {each['object']}: {each['reason']}"), file=sys.stderr)
    return 0


def _path(vhost: str | None) -> str:
    return path_of("definitions") if vhost is None else path_of("definitions", vhost)
