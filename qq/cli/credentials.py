"""Who a command logs in as: the options, or else the environment, or else a context.

Invariant: a password can be given without anybody seeing it in the list of processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qq.cli.layout import PASSWORD, USER
from qq.config import ConfigError, read_hidden
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

_USER, _PASSWORD, _PASSWORD_FILE, URL, CONTEXT = VARIABLES = (
    "QQ_USER",
    "QQ_PASSWORD",
    "QQ_PASSWORD_FILE",
    "QQ_URL",
    "QQ_CONTEXT",
)
"""The variables of commands: no node takes them for settings."""


class ClientLogin(NamedTuple):
    user: str
    password: str


def client_login(
    user: str | None,
    password: str | None,
    password_file: Path | None,
    environ: Mapping[str, str],
    fallback_user: str = USER,
    fallback_file: Path | None = None,
) -> ClientLogin:
    """Find user and password: those of the options, of which one is given at most; raises OperatingError.

    The fallbacks are for what neither the options nor the environment say.
    """
    if password is None and password_file is None:
        password = environ.get(_PASSWORD)
        if _PASSWORD_FILE in environ:
            if password is not None:
                raise CommandError(f"environment: give either {_PASSWORD} or {_PASSWORD_FILE}")
            password_file = Path(environ[_PASSWORD_FILE])
        elif password is None:
            password_file = fallback_file
    if password_file is not None:
        password = read_password(password_file)
    return ClientLogin(user or environ.get(_USER, fallback_user), PASSWORD if password is None else password)


def read_password(file: Path) -> str:
    """Read a password from a file that holds nothing else; raises CommandError."""
    try:
        return read_hidden(file)
    except ConfigError as error:
        raise CommandError(str(error)) from None
