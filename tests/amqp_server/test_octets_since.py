"""Octets that are not UTF-8 wait for the version of the state at which all nodes can carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pamqp.commands as amqp
import pytest

from qq.machine.protocol.versions import OCTETS_SINCE
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import RawClient
from tests.wire.exchanges import HEADERS_OF_LATIN, LATIN, SELECT, headers, publish, queue_declare, with_latin
from tests.wire.wire import array, long

if TYPE_CHECKING:
    from pamqp.base import Frame

CASES: dict[str, tuple[bytes, type[Frame]]] = {
    "routing key": (publish(LATIN), amqp.Basic.Ack),
    "header": (publish("q", b"m", HEADERS_OF_LATIN), amqp.Basic.Ack),
    "CC": (publish("q", b"m", headers({"CC": array(b"S" + long(LATIN))})), amqp.Basic.Ack),
    "argument": (queue_declare("q", with_latin({})), amqp.Queue.DeclareOk),
}


@pytest.mark.parametrize("version", [OCTETS_SINCE - 1, OCTETS_SINCE])
@pytest.mark.parametrize("case", CASES)
def test_octets_are_refused_before_all_nodes_know_them(version: int, case: str) -> None:
    octets, answer = CASES[case]
    with LoneBroker(version=version) as broker, RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.write(SELECT)
        client.expect(amqp.Confirm.SelectOk)
        client.write(octets)
        if version >= OCTETS_SINCE:
            client.expect(answer)
            return
        assert client.expect(amqp.Connection.Close).reply_text.startswith(
            f"SYNTAX_ERROR - octets that are not UTF-8 need version {OCTETS_SINCE} of the state"
        )
