"""The part that links share on which a client receives messages: a single consumer, its output, its end."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

from qq.amqp10_server.link_session import LinkSession
from qq.amqp10_server.no_publisher import NoPublisher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.amqp10.sending_link import SendingLink
    from qq.amqp10.session import Session10
    from qq.amqp10_server.link_output import WindowedOutput
    from qq.amqp10_server.ports import LinkCarrier
    from qq.machine.protocol.effects import DeliveryTimeout


class DeliveringLink(NoPublisher, LinkSession):
    """A link to a client. It is the `SessionConsumers` of its session, and the only consumer of that session."""

    __slots__ = ("_link", "id", "next_id", "started")

    is_busy = False
    """Always false: the client waits for no answer of the link."""

    def __init__(self, carrier: LinkCarrier, engine: Session10, link: SendingLink) -> None:
        super().__init__(carrier, engine, link)
        self._link: SendingLink = link
        self.id = self.broker.new_id()
        """The number of the consumer in the log."""
        self.started = False
        self.next_id = 0
        """The message id of the first message that the log has not given to the link yet."""

    @property
    @abstractmethod
    def output(self) -> WindowedOutput[Any]: ...

    @property
    def publisher(self) -> Self:
        return self

    # The consumers of the session

    @property
    def all(self) -> Sequence[Self]:
        return (self,)

    def find(self, consumer_id: int) -> Self | None:
        return self if consumer_id == self.id else None

    def timed_out(self, effect: DeliveryTimeout) -> None:
        """Ignored: the log returns the messages, and the link stays."""

    def leader_changed(self) -> None:
        """Ignored: links, credit and deliveries go on."""

    # Writing, and the end

    def pump(self) -> None:
        """Write the items that wait, because the window of the client's session has opened."""
        self.output.pump()

    def finish(self, then: Callable[[], None]) -> None:
        """End the session, and call `then` when its messages have returned, because the client detaches the link."""
        self.end()
        self.broker.submissions.read_barrier(self.connection.guarded(then), self.connection.lane)

    def end(self) -> None:
        self.output.close()
        super().end()
