"""`qq rescue-admin`: asks the node of this machine, through its data directory, to make an administrator."""

from __future__ import annotations

import os
import secrets
import time
from typing import TYPE_CHECKING

from qq.cli.local.launch import load_settings
from qq.cli.terminal.escaping import quoted
from qq.cli.terminal.progress import Wait
from qq.errors import CommandError
from qq.node.rescue import REQUEST_FILE, RescueRequest
from qq.sessions.login import SALT_BYTES, hash_password

if TYPE_CHECKING:
    from pathlib import Path

_POLL_S = 0.1


def rescue(config_file: Path, name: str, password: str, timeout_s: float) -> int:
    """Make the user an administrator with this password. Raises OperatingError."""
    data_dir = load_settings(config_file).data_dir
    salt = secrets.token_bytes(SALT_BYTES)
    request = RescueRequest(name, salt, hash_password(salt, password.encode()))
    file = data_dir / REQUEST_FILE
    try:
        _write(data_dir, file, request.encode())
        _wait_taken(file, timeout_s)
    except OSError as error:
        raise CommandError(
            f"{error.filename or file}: {error.strerror}: run this command as the node's user or as root"
        ) from None
    print(
        f"user {quoted(name)}: is an administrator with the new password, unless the node's log says why not"
    )
    return 0


def _write(data_dir: Path, file: Path, content: bytes) -> None:
    new = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        if os.geteuid() == 0:
            # The node must be able to read the file of root.
            owner = data_dir.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        opened.write(content)
    new.replace(file)


def _wait_taken(file: Path, timeout_s: float) -> None:
    end_s = time.monotonic() + timeout_s
    with Wait("the node to take the request", f"it is in {file}").reported():
        while os.path.lexists(file):
            if time.monotonic() > end_s:
                raise CommandError(
                    f"the node has not taken the request in {timeout_s:g} s: it does not run, or its cluster has no "
                    f"majority. It will take the request when it serves; to withdraw it, delete {file}"
                )
            time.sleep(_POLL_S)
