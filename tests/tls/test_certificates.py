"""The dates in certificates, of files that are whole and of files that are not."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime

import pytest
import trustme
from cryptography import x509

from qq.tls.certificates import InvalidCertificate, validities

AUTHORITY = trustme.CA()
CERTIFICATES = [
    AUTHORITY.cert_pem.bytes(),
    AUTHORITY.issue_cert("localhost", not_after=datetime(2034, 5, 6, 7, 8, 9, tzinfo=UTC))
    .cert_chain_pems[0]
    .bytes(),
    # From 2050 on the year has four digits.
    AUTHORITY.issue_cert("localhost", not_after=datetime(2051, 5, 6, tzinfo=UTC)).cert_chain_pems[0].bytes(),
]


def test_all_dates_in_a_file_are_read() -> None:
    expected = [x509.load_pem_x509_certificate(each) for each in CERTIFICATES]
    found = validities(b"text before\n" + b"".join(CERTIFICATES) + b"text behind\n")
    assert [(each.begins, each.ends) for each in found] == [
        (each.not_valid_before_utc, each.not_valid_after_utc) for each in expected
    ]


def test_damaged_certificate_is_reported_or_leaves_a_date() -> None:
    octets = bytearray(b"".join(CERTIFICATES[1].split(b"-----")[2].split()))
    assert len(octets) > 400
    for place in range(0, len(octets), 3):
        damaged = octets[:]
        damaged[place] ^= 0x15
        for part in (damaged, octets[:place]):
            try:
                validities(b"-----BEGIN CERTIFICATE-----" + part + b"-----END CERTIFICATE-----")
            except InvalidCertificate:
                continue


@pytest.mark.parametrize(
    "der", [b"", b"\x30", b"\x30\x00", b"\x30\x84\xff\xff\xff\xff", b"\x02\x01\x00", b"\xff" * 40]
)
def test_invalid_certificate_is_refused(der: bytes) -> None:
    with pytest.raises(InvalidCertificate):
        validities(b"-----BEGIN CERTIFICATE-----" + b64encode(der) + b"-----END CERTIFICATE-----")


def test_a_file_without_certificates_is_refused() -> None:
    with pytest.raises(InvalidCertificate, match="there is no certificate in it"):
        validities(b"-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n")
