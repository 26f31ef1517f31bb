"""Reads and writes contexts: named clusters that an operator works with, in a file of their own.

    current = "production"

    [contexts.production]
    urls = ["https://10.0.0.1:15672", "https://10.0.0.2:15672"]
    user = "admin"
    password_file = "/etc/qq/production-password"
    ca_file = "ca.pem"

Invariant: the file decides which servers receive passwords, so only its owner and root may write it. The file never
contains a password. Every change replaces the whole file atomically.
"""

from __future__ import annotations

import os
import stat
import tomllib
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qq.cli.command_line.values import read_url
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILES = ("password_file", "ca_file", "cert_file", "key_file")
NAME_CHARS_MAX = 100


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster: its nodes' URLs, the user, and files.

    Relative paths of files are resolved against the directory of the contexts file.
    """

    urls: tuple[str, ...]
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contents of the contexts file."""

    current: str | None
    by_name: Mapping[str, Context]

    def __getitem__(self, name: str) -> Context:
        """Return the context of this name. Raises CommandError."""
        if name not in self.by_name:
            known = ", ".join(self.by_name) or "none"
            raise CommandError(f"there is no context {name!r} in {file_of(os.environ)}; there are: {known}")
        return self.by_name[name]


def file_of(environ: Mapping[str, str]) -> Path:
    """Return the path of the contexts file, by the XDG Base Directory Specification."""
    base = environ.get("XDG_CONFIG_HOME", "")
    # A container may have no home, and its user no name.
    home = Path(base) if base.startswith("/") else Path(environ.get("HOME", "/"), ".config")
    return home / "qq" / "contexts.toml"


def load(file: Path) -> Contexts:
    """Read the contexts file, which may be missing. Raises CommandError."""
    try:
        with file.open("rb") as opened:
            _check_hidden(file, os.fstat(opened.fileno()))
            document = tomllib.load(opened)
    except FileNotFoundError:
        return Contexts(None, {})
    except OSError as error:
        raise CommandError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{file}: {error}") from None
    return _contexts_in(file, document)


def _check_hidden(file: Path, found: os.stat_result) -> None:
    """Raise CommandError unless only the current user and root may write the file."""
    if found.st_uid not in (os.getuid(), 0):
        raise CommandError(f"{file}: belongs to another user: make it yours, or name the node with --url")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CommandError(
            f"{file}: others may write it, and so choose who is told passwords: chmod 600 {file}"
        )


def _contexts_in(file: Path, document: Mapping[str, Any]) -> Contexts:
    current, tables = document.get("current"), document.get("contexts", {})
    is_well_formed = (current is None or isinstance(current, str)) and isinstance(tables, dict)
    if document.keys() - {"current", "contexts"} or not is_well_formed:
        raise CommandError(f"{file}: must have nothing but `current`, a name, and [contexts.NAME]")
    return Contexts(current, {name: _context_in(file, name, table) for name, table in tables.items()})


def _context_in(file: Path, name: str, table: Any) -> Context:
    where, known = f"{file}: [contexts.{name}]", {field.name for field in fields(Context)}
    if not isinstance(table, dict):
        raise CommandError(f"{where} must be a table")
    if unknown := sorted(table.keys() - known):
        raise CommandError(f"{where} {unknown[0]}: there is no such key")
    urls = table.get("urls")
    if not isinstance(urls, list) or not urls or not all(isinstance(url, str) for url in urls):
        raise CommandError(f"{where} urls: must be a list of URLs")
    for key in table.keys() - {"urls"}:
        if not isinstance(table[key], str) or not table[key]:
            raise CommandError(f"{where} {key}: must be a text")
    try:
        read = tuple(map(read_url, urls))
    except ValueError as error:
        raise CommandError(f"{where} urls: {error}") from None
    files = {key: file.parent / Path(table[key]).expanduser() for key in _FILES if key in table}
    return Context(read, table.get("user"), **files)


def save(file: Path, contexts: Contexts, *, current: str | None, by_name: Mapping[str, Context]) -> None:
    """Replace the contexts file. Raises CommandError."""
    new = replace(contexts, current=current, by_name=by_name)
    try:
        _write(file, _text_of(new))
    except OSError as error:
        raise CommandError(f"{file}: cannot be written: {error.strerror}") from None


def _text_of(contexts: Contexts) -> str:
    import tomli_w  # noqa: PLC0415 -- only changes of contexts need it

    head = {} if contexts.current is None else {"current": contexts.current}
    tables = {name: document_of(context) for name, context in contexts.by_name.items()}
    return tomli_w.dumps({**head, "contexts": tables})


def document_of(context: Context) -> dict[str, Any]:
    """Return the settings of a context as texts, without the unset keys."""
    values = {field.name: getattr(context, field.name) for field in fields(Context)}
    urls = list(values.pop("urls"))
    return {"urls": urls, **{key: str(value) for key, value in values.items() if value is not None}}


def _write(file: Path, text: str) -> None:
    file = file.resolve()  # a symbolic link to the file stays
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
        temporary.replace(file)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
