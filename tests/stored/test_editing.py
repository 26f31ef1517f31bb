"""Messages are taken apart."""

from __future__ import annotations

from qq.stored import editing


def test_body_of_a_message_joins_its_frames() -> None:
    def frame(kind: int, payload: bytes) -> bytes:
        return bytes([kind, 0, 1]) + len(payload).to_bytes(4, "big") + payload + b"\xce"

    header = frame(2, b"\0<\0\0" + (5).to_bytes(8, "big") + b"\0\0")
    assert editing.body_of(header) == b""
    assert editing.body_of(header + frame(3, b"abcde")) == b"abcde"
    assert editing.body_of(header + frame(3, b"ab") + frame(3, b"cde")) == b"abcde"
