"""Certificates for tests, each authority with files of its own."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

import trustme


class Files(NamedTuple):
    cert: Path
    key: Path


class Authority:
    """Signs certificates."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA(organization_name="tests")
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str, organization: str = "orders") -> Files:
        """Issue a certificate for `localhost` and 127.0.0.1; it replaces the earlier certificate of this name."""
        issued = self._ca.issue_cert(
            "localhost",
            "127.0.0.1",
            common_name=name,
            organization_name=organization,
            organization_unit_name="unit",
        )
        files = Files(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        files.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(files.key))
        return files

    def context(self, client: Files | None = None) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.file))
        if client is not None:
            context.load_cert_chain(client.cert, client.key)
        return context
