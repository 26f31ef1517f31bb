"""Certificates for the clients' own tests, under the names that py-amqp's look for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from pathlib import Path


def write_certificates(directory: Path) -> None:
    """Write an authority, certificates for the cluster and a client, and a pair that does not match."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca_certificate.pem"))
    issued = {name: authority.issue_cert("localhost", "127.0.0.1") for name in ("server", "client", "other")}
    for name, (certificate, key) in {
        "server": ("server", "server"),
        "client": ("client", "client"),
        "client_broken": ("client", "other"),
    }.items():
        role, _, broken = name.partition("_")
        suffix = f"_{broken}.pem" if broken else ".pem"
        issued[certificate].cert_chain_pems[0].write_to_path(str(directory / f"{role}_certificate{suffix}"))
        issued[key].private_key_pem.write_to_path(str(directory / f"{role}_key{suffix}"))
