"""Messages between peers as bytes."""

from __future__ import annotations

import pytest

from cluster.envelope import MalformedFrame, Transfer, decode, encode


@pytest.mark.parametrize("to", ["", "n1", "nœud-1"])
def test_a_name_travels_as_it_is(to: str) -> None:
    frame = b"".join(encode(Transfer(7, to)))
    assert decode(frame) == Transfer(7, to)
    with pytest.raises(MalformedFrame):
        decode(frame[:8])
    with pytest.raises(MalformedFrame):
        decode(frame + b"\xff")
