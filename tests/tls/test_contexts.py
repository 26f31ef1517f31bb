"""TLS contexts made from files: warnings about the dates of certificates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from qq.config import ClientTls, TlsFiles
from qq.errors import StartError
from qq.tls.contexts import for_clients, for_peers
from tests.harness.certificates import Authority

DAY = timedelta(days=1)


def issue(directory: Path, begins: timedelta, ends: timedelta) -> TlsFiles:
    now = datetime.now(UTC)
    authority = Authority(directory)
    issued = authority._ca.issue_cert("localhost", not_before=now + begins, not_after=now + ends)
    cert, key = directory / "cert.pem", directory / "cert.key"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    return TlsFiles(cert, key, authority.file)


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [
        (-9 * DAY, -3.3 * DAY, "expired 3 days ago"),
        (-9 * DAY, 29.3 * DAY, "expires in 29 days"),
        (2.3 * DAY, 90 * DAY, "is valid only in 2 days"),
        (-9 * DAY, 90 * DAY, None),
    ],
)
def test_dates_of_certificates_are_logged_when_files_are_read(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    begins: timedelta,
    ends: timedelta,
    expected: str | None,
) -> None:
    files = issue(tmp_path, begins, ends)
    peers = for_peers(files)
    clients = for_clients(ClientTls(files.cert, files.key))
    lines = [] if expected is None else [f"a certificate in {files.cert} {expected}"]
    assert caplog.messages == lines * 2
    caplog.clear()
    files = issue(tmp_path, begins, ends)
    assert peers.reload()
    assert clients.reload()
    assert [line for line in caplog.messages if "read again" not in line] == lines * 2


@pytest.mark.parametrize("unreadable", ["cert", "key", "ca"])
def test_unreadable_file_is_named(tmp_path: Path, unreadable: str) -> None:
    files = issue(tmp_path, -DAY, 90 * DAY)
    peers, clients = for_peers(files), for_clients(ClientTls(files.cert, files.key, files.ca))
    file: Path = getattr(files, unreadable)
    file.unlink()
    for each in (lambda: for_peers(files), lambda: for_clients(ClientTls(files.cert, files.key, files.ca))):
        with pytest.raises(StartError, match=f"^{file} cannot be read: No such file or directory$"):
            each()
    assert not peers.reload()
    assert not clients.reload()


def test_authority_that_expires_soon_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = issue(tmp_path, -DAY, 90 * DAY)
    cert = issue(tmp_path / "soon", -DAY, 9.3 * DAY).cert
    files.ca.write_bytes(files.ca.read_bytes() + cert.read_bytes())
    for_peers(files)
    assert caplog.messages == [f"a certificate in {files.ca} expires in 9 days"]
