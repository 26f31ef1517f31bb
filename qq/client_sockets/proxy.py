"""Parser of the PROXY protocol header, versions 1 and 2, with which a proxy reports its client's address.

Invariant: bytes go in, and an address comes out, without I/O. The parser never requests bytes behind the header, so TLS
or AMQP begins with the next byte. Its memory is bounded for any input.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import NamedTuple

V1_BYTES_MAX = 107
V2_BODY_BYTES_MAX = 4096
"""Octets behind the fixed fields of a version 2 header, at most: addresses, and extensions (about TLS, or the
proxy)."""

_V1 = b"PROXY "
_V1_END = b"\r\n"
_V2 = b"\r\n\r\n\0\r\nQUIT\n"
_V2_HEAD = Struct(">BBH")
"""The fixed fields of a version 2 header: version and command, family and transport, length of the rest."""
_LOCAL, _PROXY = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21
_WITHOUT_ADDRESS = (0x00, 0x01, 0x31)
"""Address families (unspecified, Unix sockets) without a client address."""
_V2_ADDRESSES = {_TCP4: Struct(">4s4sHH"), _TCP6: Struct(">16s16sHH")}
_SHOWN_BYTES_MAX = 16
_PORT_DIGITS_MAX = 5
_PORT_MAX = 65_535


class ProxyError(Exception):
    """The bytes are not a valid PROXY protocol header."""


class Source(NamedTuple):
    """The address of the client for which a proxy connects."""

    host: str
    port: int


class ProxyHeader:
    """Parses the PROXY protocol header of a connection."""

    def __init__(self) -> None:
        self.wanted = len(_V2)
        """Octets of the header that are certainly still to come; 0 if the header is complete."""
        self.source: Source | None = None
        """The client's address; None if the proxy speaks for itself, or does not know the address."""
        self._data = b""

    def receive(self, data: bytes) -> None:
        """Take at least 1 and at most `wanted` octets. Raises ProxyError."""
        self._data += data
        if self._data.startswith(_V2):
            self._read_v2()
        elif self._data.startswith(_V1):
            self._read_v1()
        elif _V2.startswith(self._data) or _V1.startswith(self._data):
            self.wanted = len(_V2) - len(self._data)
        else:
            raise ProxyError(f"no header of the PROXY protocol: {self._data[:_SHOWN_BYTES_MAX]!r}")

    def _read_v1(self) -> None:
        data = self._data
        if not data.endswith(_V1_END):
            # Every line ends with CR LF, so at least the missing part of that is still to come.
            self.wanted = 1 if data.endswith(b"\r") else 2
            if len(data) + self.wanted > V1_BYTES_MAX:
                raise ProxyError(f"a PROXY line of more than {V1_BYTES_MAX} bytes")
            return
        self.wanted = 0
        _, protocol, *rest = data.removesuffix(_V1_END).split(b" ")
        if protocol != b"UNKNOWN":
            self.source = _source(protocol, rest)

    def _read_v2(self) -> None:
        data = self._data
        head_end = len(_V2) + _V2_HEAD.size
        if len(data) < head_end:
            self.wanted = head_end - len(data)
            return
        command, family, length = _V2_HEAD.unpack_from(data, len(_V2))
        if command not in (_LOCAL, _PROXY):
            raise ProxyError(f"version and command 0x{command:02x} of a PROXY header are unknown")
        if length > V2_BODY_BYTES_MAX:
            raise ProxyError(f"a PROXY header of {length} bytes, and {V2_BODY_BYTES_MAX} are the most")
        self.wanted = head_end + length - len(data)
        if self.wanted or command == _LOCAL or family in _WITHOUT_ADDRESS:
            return
        addresses = _V2_ADDRESSES.get(family)
        if addresses is None:
            raise ProxyError(f"family and transport 0x{family:02x} of a PROXY header are not TCP")
        if length < addresses.size:
            raise ProxyError(f"a PROXY header of {length} bytes holds no addresses of its family")
        host, _, port, _ = addresses.unpack_from(data, head_end)
        self.source = Source(str(ip_address(host)), port)


def _source(protocol: bytes, rest: list[bytes]) -> Source:
    try:
        host, destination, port, destination_port = (part.decode("ascii") for part in rest)
        _host(protocol, destination)
        _port(destination_port)
        return Source(_host(protocol, host), _port(port))
    except (KeyError, ValueError):
        raise ProxyError(f"a PROXY line that cannot be read: {b' '.join([protocol, *rest])!r}") from None


def _host(protocol: bytes, text: str) -> str:
    kind = {b"TCP4": IPv4Address, b"TCP6": IPv6Address}[protocol]
    return str(kind(text.replace("%", " ")))  # a zone is not part of an address on the wire


def _port(text: str) -> int:
    if text.isdigit() and len(text) <= _PORT_DIGITS_MAX and int(text) <= _PORT_MAX:
        return int(text)
    raise ValueError(text)
