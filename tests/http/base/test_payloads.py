"""Messages as JSON, however large."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.http.base import payloads
from qq.http.base.payloads import message_parts
from qq.management import time_slices


@dataclass
class Got:
    """A message."""

    body: bytes


def document(message: Got) -> dict[str, Any]:
    return {"payload_bytes": len(message.body)}


async def answer(bodies: list[bytes], *, as_base64: bool = False, truncate: int | None = None) -> list[bytes]:
    messages: Any = map(Got, bodies)
    found = message_parts(messages, document, as_base64=as_base64, truncate=truncate)  # pyright: ignore[reportArgumentType]
    return [part async for part in found]


def expected(body: bytes, as_base64: bool, truncate: int | None) -> dict[str, Any]:
    shown, payload, encoding = body[:truncate], None, "string"
    if not as_base64:
        with suppress(UnicodeDecodeError):
            payload = shown.decode()
    if payload is None:
        payload, encoding = b64encode(shown).decode(), "base64"
    return {"payload_bytes": len(body), "payload": payload, "payload_encoding": encoding}


@given(
    st.lists(st.binary(max_size=20) | st.text(max_size=20).map(str.encode), max_size=4),
    st.booleans(),
    st.none() | st.integers(0, 20),
)
def test_a_list_of_messages_is_the_same_in_pieces(
    bodies: list[bytes], as_base64: bool, truncate: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payloads, "PIECE_BYTES", 3)
        patch.setattr(payloads, "PART_BYTES", 10)
        parts = asyncio.run(answer(bodies, as_base64=as_base64, truncate=truncate))
    assert json.loads(b"".join(parts)) == [expected(body, as_base64, truncate) for body in bodies]


@pytest.mark.parametrize("body", [bytes(3_000_000), b"\xff" * 3_000_000, bytes(2_999_999) + b"\xff"])
def test_encoding_a_large_body_yields_to_further_tasks(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SLICE_S", 0.0)

    async def story() -> tuple[int, list[bytes]]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(other())
        parts = await answer([body])
        beside.cancel()
        return turns, parts

    turns, parts = asyncio.run(story())
    assert turns >= len(body) // payloads.PIECE_BYTES
    # A part is the rest of the last part and a piece, of which each octet may have become six characters.
    assert max(map(len, parts)) < payloads.PART_BYTES + 6 * payloads.PIECE_BYTES
    assert json.loads(b"".join(parts)) == [expected(body, False, None)]
