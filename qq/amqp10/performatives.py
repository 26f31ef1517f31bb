"""The frames of AMQP 1.0 and the composites inside of them (parts 2, 3 and 5 of the standard).

Invariant: a class here is the only place that knows the fields of its composite. Classes come before their users.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple, TypeAlias

from qq.amqp10.composites import (
    Boolean,
    EightOctets,
    Fields,
    FourOctets,
    Name,
    Names,
    Octets,
    Tag,
    Text,
    TwoOctets,
    composite,
    field_type,
)
from qq.amqp10.values import Described, Symbol, UByte, UInt

MAX_UINT = 2**32 - 1


class SenderSettleMode(IntEnum):
    """Which transfers of a link are settled when they are sent."""

    UNSETTLED, SETTLED, MIXED = range(3)


class ReceiverSettleMode(IntEnum):
    """Whether the receiver settles first."""

    FIRST, SECOND = range(2)


class TerminusDurability(IntEnum):
    """The state of a terminus that survives."""

    NONE, CONFIGURATION, UNSETTLED_STATE = range(3)


class SaslCode(IntEnum):
    """The outcome of a login."""

    OK, AUTH, SYS, SYS_PERM, SYS_TEMP = range(5)


def _expiry_policy(symbol: Symbol) -> str:
    if symbol not in EXPIRY_POLICIES:
        raise ValueError(repr(str(symbol)))
    return str(symbol)


EXPIRY_POLICIES = ("link-detach", "session-end", "connection-close", "never")

_SenderMode: TypeAlias = Annotated[SenderSettleMode, field_type("ubyte", UByte, SenderSettleMode)]
_ReceiverMode: TypeAlias = Annotated[ReceiverSettleMode, field_type("ubyte", UByte, ReceiverSettleMode)]
_Durability: TypeAlias = Annotated[TerminusDurability, field_type("uint", UInt, TerminusDurability)]
_ExpiryPolicy: TypeAlias = Annotated[str, field_type("symbol", Symbol, _expiry_policy)]
_SaslCode: TypeAlias = Annotated[SaslCode, field_type("ubyte", UByte, SaslCode)]


@composite(0x1D, "amqp:error:list", is_complete=True)
class ErrorReply(NamedTuple):
    """Why a link, session or connection ends, or a message was rejected.

    Microsoft's clients for Python read all fields of errors and termini, so none is left out.
    """

    condition: Name
    description: Text | None = None
    info: Fields | None = None


# --- delivery states


@composite(0x23, "amqp:received:list")
class ReceivedState(NamedTuple):
    """A part of the message has arrived."""

    section_number: FourOctets
    section_offset: EightOctets


@composite(0x24, "amqp:accepted:list")
class AcceptedState(NamedTuple):
    """The receiver has processed the message."""


@composite(0x25, "amqp:rejected:list")
class RejectedState(NamedTuple):
    """The message is invalid."""

    error: ErrorReply | None = None


@composite(0x26, "amqp:released:list")
class ReleasedState(NamedTuple):
    """The message was not processed."""


@composite(0x27, "amqp:modified:list")
class ModifiedState(NamedTuple):
    """The message was not processed, and its annotations change."""

    delivery_failed: Boolean = False
    undeliverable_here: Boolean = False
    message_annotations: Fields | None = None


DeliveryState = ReceivedState | AcceptedState | RejectedState | ReleasedState | ModifiedState | Described
"""The states that queues have; a described value is one of transactions, or unknown."""


# --- termini


@composite(0x28, "amqp:source:list", is_complete=True)
class SourceTerminus(NamedTuple):
    """Where the messages of a link come from."""

    address: Text | None = None
    durable: _Durability = TerminusDurability.NONE
    expiry_policy: _ExpiryPolicy = "session-end"
    timeout: FourOctets = 0
    dynamic: Boolean = False
    dynamic_node_properties: Fields | None = None
    distribution_mode: Name | None = None
    filter: Fields | None = None
    default_outcome: DeliveryState | None = None
    outcomes: Names = ()
    capabilities: Names = ()


@composite(0x29, "amqp:target:list", is_complete=True)
class TargetTerminus(NamedTuple):
    """Where the messages of a link go to."""

    address: Text | None = None
    durable: _Durability = TerminusDurability.NONE
    expiry_policy: _ExpiryPolicy = "session-end"
    timeout: FourOctets = 0
    dynamic: Boolean = False
    dynamic_node_properties: Fields | None = None
    capabilities: Names = ()


@composite(0x30, "amqp:coordinator:list")
class Coordinator(NamedTuple):
    """The target of a link that controls transactions."""

    capabilities: Names = ()


# --- frames of a connection


@composite(0x10, "amqp:open:list")
class OpenFrame(NamedTuple):
    """The parameters of a connection."""

    container_id: Text
    hostname: Text | None = None
    max_frame_size: FourOctets = MAX_UINT
    channel_max: TwoOctets = 65535
    idle_time_out: FourOctets | None = None
    """Milliseconds."""
    outgoing_locales: Names = ()
    incoming_locales: Names = ()
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Fields | None = None


@composite(0x11, "amqp:begin:list")
class BeginFrame(NamedTuple):
    """The start of a session."""

    remote_channel: TwoOctets | None
    next_outgoing_id: FourOctets
    incoming_window: FourOctets
    outgoing_window: FourOctets
    handle_max: FourOctets = MAX_UINT
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Fields | None = None


@composite(0x12, "amqp:attach:list")
class AttachFrame(NamedTuple):
    """The start of a link."""

    name: Text
    handle: FourOctets
    role: Boolean
    """True for a receiver."""
    snd_settle_mode: _SenderMode = SenderSettleMode.MIXED
    rcv_settle_mode: _ReceiverMode = ReceiverSettleMode.FIRST
    source: SourceTerminus | None = None
    target: TargetTerminus | Coordinator | None = None
    unsettled: Fields | None = None
    incomplete_unsettled: Boolean = False
    initial_delivery_count: FourOctets | None = None
    """Mandatory from a sender."""
    max_message_size: EightOctets = 0
    """Octets; 0 for no limit."""
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Fields | None = None


@composite(0x13, "amqp:flow:list")
class FlowFrame(NamedTuple):
    """The windows of a session, and with a handle the credit of a link."""

    next_incoming_id: FourOctets | None
    incoming_window: FourOctets
    next_outgoing_id: FourOctets
    outgoing_window: FourOctets
    handle: FourOctets | None = None
    delivery_count: FourOctets | None = None
    link_credit: FourOctets | None = None
    available: FourOctets | None = None
    drain: Boolean = False
    echo: Boolean = False
    properties: Fields | None = None


@composite(0x14, "amqp:transfer:list")
class TransferFrame(NamedTuple):
    """A message, or a part of it."""

    handle: FourOctets
    delivery_id: FourOctets | None = None
    delivery_tag: Tag | None = None
    message_format: FourOctets | None = None
    settled: Boolean | None = None
    more: Boolean = False
    rcv_settle_mode: _ReceiverMode | None = None
    state: DeliveryState | None = None
    resume: Boolean = False
    aborted: Boolean = False
    batchable: Boolean = False


@composite(0x15, "amqp:disposition:list")
class DispositionFrame(NamedTuple):
    """The state of the deliveries from `first` to `last`."""

    role: Boolean
    """True if they go to the peer that sends this frame."""
    first: FourOctets
    last: FourOctets | None = None
    """`first` if absent."""
    settled: Boolean = False
    state: DeliveryState | None = None
    batchable: Boolean = False


@composite(0x16, "amqp:detach:list")
class DetachFrame(NamedTuple):
    """The end of a link."""

    handle: FourOctets
    closed: Boolean = False
    error: ErrorReply | None = None


@composite(0x17, "amqp:end:list")
class EndFrame(NamedTuple):
    """The end of a session."""

    error: ErrorReply | None = None


@composite(0x18, "amqp:close:list")
class CloseFrame(NamedTuple):
    """The end of a connection."""

    error: ErrorReply | None = None


# --- frames of a login


@composite(0x40, "amqp:sasl-mechanisms:list")
class SaslMechanisms(NamedTuple):
    """The mechanisms of the server."""

    sasl_server_mechanisms: Names


@composite(0x41, "amqp:sasl-init:list")
class SaslInit(NamedTuple):
    """The mechanism that the client has chosen."""

    mechanism: Name
    initial_response: Octets | None = None
    hostname: Text | None = None


@composite(0x42, "amqp:sasl-challenge:list")
class SaslChallenge(NamedTuple):
    """Data of the server's mechanism."""

    challenge: Octets


@composite(0x43, "amqp:sasl-response:list")
class SaslResponse(NamedTuple):
    """The answer to a challenge."""

    response: Octets


@composite(0x44, "amqp:sasl-outcome:list")
class SaslOutcome(NamedTuple):
    """The result of a login."""

    code: _SaslCode
    additional_data: Octets | None = None


SessionPerformative = (
    BeginFrame | AttachFrame | FlowFrame | TransferFrame | DispositionFrame | DetachFrame | EndFrame
)
AmqpPerformative = OpenFrame | SessionPerformative | CloseFrame
SaslPerformative = SaslMechanisms | SaslInit | SaslChallenge | SaslResponse | SaslOutcome
