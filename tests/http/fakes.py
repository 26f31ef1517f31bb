"""A fake node, and a fake broker with a real machine; the test sets their answers."""

from __future__ import annotations

import asyncio
import random
import time
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from pamqp.commands import Basic

from cluster.configuration.change_request import MemberChange, Verb
from cluster.configuration.configuration import (
    ID_BYTES,
    Configuration,
    Member,
    MembershipRefused,
    PeerAddress,
    Versions,
)
from cluster.group.entry_times import EntryTimes
from cluster.log.entry import batches_of, make_batch, make_entry
from cluster.log.segment import EntryNotFound
from cluster.membership.health import Verdict
from cluster.raft.messages import Alarm
from cluster.runtime.histogram import Histogram
from cluster.state.apply import Confirmed
from cluster.transport.handshake import UnknownNodeError
from cluster.transport.queries import Queries
from qq.amqp.connection import Settings
from qq.config import NodeLimits
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import LimitPublishers, PutUser, PutVhost, SetPermissions
from qq.machine.protocol.versions import VERSIONS
from qq.management.changes.changes import Changes
from qq.management.errors import Unavailable
from qq.management.management import Management, make_management
from qq.management.nodes.node_reports import OwnNode
from qq.management.objects.consumers import ConsumerReports
from qq.management.objects.queues import QueueReports
from qq.management.reports.catalog import Product
from qq.management.reports.logins import LoggedIn
from qq.management.reports.members import ClusterStatus, NodeState, NodeStatus
from qq.management.reports.messages import Message
from qq.management.reports.nodes import CertificateFiles, Listener
from qq.management.reports.queues import ConsumerStatus, QueueStatus
from qq.management.reports.rows import ThingRows
from qq.sessions.broker import Broker, QueueReplica
from qq.sessions.login import is_loopback
from qq.shovels.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from qq.machine.protocol.commands import Change, Command

PASSWORD = "gu:éest"


def id_of(name: str) -> bytes:
    """The id of the data directory of a member."""
    return name.encode().rjust(ID_BYTES)


def trio() -> Configuration:
    """Three voters, which have just agreed on version 7."""
    members = [
        Member(name, PeerAddress("10.0.0.1", number), id_of(name), versions=Versions(*VERSIONS))
        for number, name in enumerate(["n1", "n2", "n3"], 1)
    ]
    return Configuration.of(7, members, b"c" * ID_BYTES)


class FakeView:
    def __init__(self) -> None:
        self.reason: str | None = None
        self.broken = False
        self.peer = NodeStatus("n2", NodeState.DOWN)
        self.tags = {"guest": ["administrator"]}

    def cluster_status(self) -> ClusterStatus:
        if self.broken:
            raise RuntimeError("an invariant")
        leader = NodeStatus(
            "n1",
            NodeState.LEADER,
            "voter",
            3,
            5,
            12,
            11,
            10,
            9,
            2**30,
            False,
            -3,
            "voter",
            "7 to 10",
            disk_hangs=False,
            misses=["n2"],
            hears_leader=True,
        )
        return ClusterStatus("qq", "n1", "n1", [leader, self.peer], 8)

    def ready(self) -> str | None:
        return self.reason

    def infos(self, endpoint: str) -> dict[str, tuple[str, dict[str, str]]]:
        return {"identity_info": ("This node", {"rabbitmq_node": "n1", "rabbitmq_endpoint": endpoint})}

    takes_tokens = False
    login_provider = None

    async def authenticate(self, user: str, password: str, peer_host: str) -> LoggedIn | None:
        is_right = password == PASSWORD and is_loopback(peer_host) and user in self.tags
        return LoggedIn(user, self.tags[user]) if is_right else None

    def account(self, user: str) -> list[str] | None:
        return self.tags.get(user)


class _Group:
    """A fake group that applies submitted batches at once; the test sets the statuses of other nodes."""

    pending_bytes = 0
    config = SimpleNamespace(name="n1", cluster="qq")

    broker: Broker

    def __init__(self, machine: QueueMachine) -> None:
        self.machine = machine
        self.entries: dict[int, bytes] = {}
        self.unheard: list[Command] = []
        """Committed commands that this node has not applied yet; they are applied before the next submitted batch."""
        self._sequence = 0
        self.entry_times = EntryTimes(1, 0)
        self.leader: str | None = "n1"
        self.engine = SimpleNamespace(is_leader=True, applied_index=1)
        self.queries = Queries(lambda _: False, lambda _peer, _message: None)
        self.members = SimpleNamespace(names=["n1", "n2", "n3"], id=id_of("n1"), of_release_0_1=())
        self.versions_of = {"n1": Versions(*VERSIONS)}.get
        self.fail_stop = SimpleNamespace(is_removed=False, damage=None)
        self.flaws: dict[str, str] = {}
        """Why nodes are not fit to lead."""
        self.verdict = Verdict(True, "it may be stopped")
        """The verdict on stopping a member, here and at the leader."""
        self.requested_leaders: list[str | None] = []
        self.ignored_requests = 0
        """Number of the next leadership requests that have no effect."""
        self.configurations = SimpleNamespace(committed=trio())
        self.requested_changes: list[MemberChange] = []
        self.answers_after: int | None = None
        """After how many changes that were asked for the verdict is a yes."""
        self.unheard_configuration: Configuration | None = None
        """A committed configuration that this node applies before the next submitted batch."""
        self.delayed_changes = 0
        """Number of the next member changes that have no effect."""
        self.apply_times = Histogram()
        self.heartbeat_delays = Histogram()
        self.alarms = SimpleNamespace(own=lambda _: self.known["n1"].alarm, free_bytes=10**9)
        self.journal = SimpleNamespace(disk_bytes=1234, cached_bytes=0)
        self.own_status = SimpleNamespace(flaw=lambda: self.flaw)
        self.flaw: str | None = None
        """Why this node does not take full part."""
        self.known: dict[str, Any] = {
            "n1": SimpleNamespace(alarm=Alarm(0), misses=(), disk_hangs=0, hears_leader=1),
            "n2": SimpleNamespace(alarm=Alarm(0), misses=(), disk_hangs=0, hears_leader=1),
            "n3": None,
        }
        """The status of each connected node."""
        self.short: dict[str, str] = {}
        """Why nodes have no space."""
        self.stuck: str | None = None
        """Reason why no entry is stored."""
        self.statuses = SimpleNamespace(
            known=lambda: self.known,
            all=_statuses,
            why_not_lead=self.flaws.get,
            may_stop=self._judge,
            why_not_there={"n3": "n3 does not answer"}.get,
            why_short=self.short.get,
            why_nothing_is_stored=lambda: self.stuck,
            why_hopeless=lambda: self.hopeless,
            foreign=[],
        )
        self.hopeless: str | None = None
        """Why no majority has its logs."""
        self.listeners: dict[PeerAddress, str] = {}
        """The names of the nodes that listen."""
        self.listed: dict[str, PeerAddress] = {}
        """Peer addresses in the node's file, which precede those in the log."""
        self.leadership = SimpleNamespace(request_transfer=self._request_transfer)
        self.reconfiguration = SimpleNamespace(
            request=self._request_change, why_no_majority=lambda _: self.no_majority
        )
        self.no_majority: str | None = None
        self.reasons: dict[str, str] = {}
        """Why there is no link with a member."""
        self.twice: set[str] = set()
        """Names of members that a second process uses, too."""

    def why_apart_from(self, peer: str) -> str | None:
        return self.reasons.get(peer)

    def is_twice(self, peer: str) -> bool:
        return peer in self.twice

    def dial_address(self, name: str, address: PeerAddress) -> PeerAddress:
        return self.listed.get(name, address)

    async def reach(self, name: str, place: PeerAddress) -> bytes:
        if place not in self.listeners:
            raise ConnectionRefusedError(111, "Connection refused")
        if self.listeners[place] != name:
            raise UnknownNodeError("another one listens there")
        return id_of(name)

    def _judge(self, name: str) -> Verdict:
        return self.verdict._replace(text=f"{name}: {self.verdict.text}")

    def _request_transfer(self, to: str | None) -> None:
        self.requested_leaders.append(to)
        if len(self.requested_leaders) > self.ignored_requests:
            successor = to or next(name for name in self.members.names if name != self.leader)
            self.leader = None
            asyncio.get_running_loop().call_soon(setattr, self, "leader", successor)

    def _request_change(self, change: MemberChange, refused: Callable[[str], None]) -> None:
        self.requested_changes.append(change)
        if len(self.requested_changes) <= self.delayed_changes:
            return
        held = self.configurations.committed
        try:
            if self.answers_after is not None and len(self.requested_changes) > self.answers_after:
                self.verdict = Verdict(True, "")
            is_raise = change.verb == Verb.FINISH_UPGRADE
            after = held.raised(held.version + 1, b"c" * 16) if is_raise else change.step(held)
        except MembershipRefused as error:
            refusal = str(error)
        else:
            if after is held or self.verdict.is_safe:
                self.configurations.committed = after
                return
            refusal = self._judge(change.name).text
        asyncio.get_running_loop().call_later(0.005, refused, refusal)  # the peer that leads refuses later

    def disk_failed(self, error: Exception) -> None:
        raise error

    def why_undecided(self) -> str | None:
        return None if self.leader else "no majority: n2, n3 do not answer"

    def undecided(self) -> list[str]:
        return []

    can_read = False

    def receive_messages(self, receive: Callable[[str, bytes], None]) -> None:
        """There are no peers."""

    def propose(self, payload: Any, weight: int = 0, *, may_wait: bool = False) -> int:
        self._sequence += 1
        asyncio.get_running_loop().call_soon(self._apply, self._sequence, payload)
        return self._sequence

    def _apply(self, sequence: int, payload: Any) -> None:
        index = sequence + 1
        self.configurations.committed = self.unheard_configuration or self.configurations.committed
        unheard, self.unheard = self.unheard, []
        self.machine.apply_batch("n2", index, 0, 0, b"".join(encode_batch(unheard, [])))
        entry = self.entries[index] = make_entry(0, [make_batch("n1", 1, sequence, payload)])
        [batch] = batches_of(entry)
        command_bytes = memoryview(entry)[batch.start : batch.end]
        self.entry_times.record(index, self.time_ms())
        effects = self.machine.apply_batch("n1", index, 0, 0, command_bytes)
        self.broker.applied(index, [*effects, Confirmed(sequence), *self.machine.end_entry(0)])

    def load_entry_times(self) -> None:
        """There are no entries from before the state was loaded."""

    def time_ms(self) -> int:
        return 0

    @property
    def applied_index(self) -> int:
        return max(self.entries, default=1)

    def payload(self, index: int) -> bytes | None:
        return self.entries.get(index)

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        raise EntryNotFound(f"there is no entry {indexes[0]}")


def _statuses() -> list[Any]:
    return [
        _status("n1", "leader", 20, "voter", 0),
        _status("n2", "follower", 13, "voter", -7),
        _status("n3", "down", 5, None, None),
    ]


def _status(name: str, state: str, last_index: int, voter_status: str | None, offset_ms: int | None) -> Any:
    return SimpleNamespace(
        name=name,
        state=state,
        last_index=last_index,
        voter_status=voter_status,
        clock_offset_ms=offset_ms,
        rolled_back_ms=None,
    )


class _Runtime:
    def __init__(self) -> None:
        self.random = random.Random(1)

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)


def _broker() -> tuple[Broker, _Group]:
    machine, runtime = QueueMachine(), cast("Any", _Runtime())
    group = _Group(machine)
    replica = QueueReplica("n1", machine, group, cast("Any", group), runtime)
    broker = Broker(replica, ["guest"], NodeLimits())
    group.broker = broker
    broker.submissions.applied(0)  # the group's own first batch
    return broker, group


class _Carrier:
    """Carries out shovels, as the test says."""

    def __init__(self) -> None:
        self.current_reports: dict[tuple[str, str], Report] = {}
        self.restarted: list[tuple[str, str]] = []

    def reports(self) -> dict[tuple[str, str], Report]:
        return self.current_reports

    def restart(self, vhost: str, name: str) -> bool:
        self.restarted.append((vhost, name))
        return True


class FakeLiveSettings:
    """Settings in force; `log_level` is the only setting that can be changed."""

    memory_limit_bytes = 2**40
    disk_free_limit_bytes = 5 * 10**7

    def __init__(self) -> None:
        self._shown = {"limits.cache_bytes": "7", "cluster_name": "qq"}

    def shown(self) -> dict[str, str]:
        return self._shown

    def change(self, name: str, value: Any) -> None:
        if name != "log_level":
            raise ValueError(f"{name} cannot be changed")
        self._shown[name] = str(value)

    def reset(self, name: str) -> None:
        if name != "log_level":
            raise ValueError(f"{name} cannot be changed")
        self._shown.pop(name, None)


class FakeChanges(Changes):
    """Changes of a machine; they fail while the test takes the majority away."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.applied: list[Any] = []
        self.has_majority = True

    async def wait_applied(self) -> None:
        if not self.has_majority:
            raise Unavailable("no majority")
        await super().wait_applied()

    async def apply(self, *changes: Change) -> None:
        if not self.has_majority:
            raise Unavailable("no majority")
        self.applied += changes
        await super().apply(*changes)


class MachineManagement(Management):
    """Management of a machine that applies requested changes at once. `guest` has all permissions in "/"."""

    def __init__(self) -> None:
        broker, group = _broker()
        settings = Settings()
        product = Product(settings.product, settings.version, settings.cluster_name)
        self.listeners: list[Listener] = []
        self.certificate_files: list[CertificateFiles] = []
        own = OwnNode(
            product=product,
            data_dir="/nowhere",
            connections_max=3,
            live=FakeLiveSettings(),
            write_times=Histogram(),
            listeners=lambda: self.listeners,
            certificates=self.certificate_files,
            common_settings={"[limits] cache_bytes": "7"},
            cluster_secrets=lambda: self.secrets,
            peers=group,
        )
        self.secrets = [b"0123456789abcdef"]
        self.carrier = _Carrier()
        super().__init__(**vars(make_management(broker, cast("Any", group), own, self.carrier)))
        self.changes = FakeChanges(broker)
        self.broker = broker
        self.machine = broker.machine
        self.machine.raise_to(VERSIONS[1])
        self.group = group
        self.entries = group.entries
        self.make(PutUser("guest", *self.changes.hash_password(PASSWORD), ["administrator"]))
        self.make(SetPermissions("guest", "/", ".*", ".*", ".*"))

    def make(self, *commands: Command, node: str = "n2") -> None:
        """Apply commands of a peer."""
        batch = b"".join(encode_batch(commands, []))
        self.machine.apply_batch(node, 1, 0, 0, batch)

    def lead(self) -> None:
        """Have this node lead."""
        self.broker._leader = "n1"

    def make_elsewhere(self, *commands: Command) -> None:
        """Commit commands of a peer that this node has not applied yet."""
        self.group.unheard += commands

    def keep(self, payload: Any) -> None:
        """Have a batch with messages applied, and kept."""
        index = max(self.entries, default=1) + 1000
        entry = self.entries[index] = make_entry(0, [make_batch("n2", 1, 1, payload)])
        [batch] = batches_of(entry)
        self.group.entry_times.record(index, self.group.time_ms())
        self.machine.apply_batch("n2", index, 0, 0, memoryview(entry)[batch.start : batch.end])
        self.machine.end_entry(0)


class FakeQueues(QueueReports):
    """The queues of "/" that the test names; they need no machine."""

    def __init__(self) -> None:
        self.names = ["orders"]
        self.arguments: dict[str, Any] = {"x-queue-type": "quorum"}
        self.messages: list[Message] = []
        self.browsed: list[Any] = []
        """Arguments of the calls of `browse`."""

    def all(self, vhost: str | None) -> Iterator[QueueStatus]:
        return map(self._status, self.names_in(vhost))

    def find(self, vhost: str, name: str) -> QueueStatus | None:
        return self._status(name) if name in self.names_in(vhost) else None

    def rows(self, vhost: str | None) -> ThingRows:
        fields = {name: attrgetter(name) for name in QueueStatus._fields}
        return ThingRows(list(self.all(vhost)), fields)

    async def rows_by_name(self, is_visible: Callable[[str], bool]) -> ThingRows:
        rows = self.rows(None)
        return rows._replace(things=sorted(rows.things, key=attrgetter("name")) if is_visible("/") else [])

    async def browse(
        self, vhost: str, queue: str, offset: int, count: int, bytes_max: int
    ) -> list[Message] | None:
        self.browsed.append((queue, offset, count, bytes_max))
        return self.messages if queue in self.names_in(vhost) else None

    def names_in(self, vhost: str | None) -> list[str]:
        return self.names if vhost in (None, "/") else []

    def _status(self, name: str) -> QueueStatus:
        return QueueStatus(
            name=name,
            vhost="/",
            type="quorum",
            durable=True,
            exclusive=False,
            auto_delete=False,
            arguments=self.arguments,
            policy="limits",
            operator_policy=None,
            effective_policy_definition={"max-length": 5},
            state="running",
            node="n1",
            leader="n1",
            members=["n1", "n2"],
            online=["n1"],
            consumers=1,
            consumer_capacity=0.5,
            consumer_utilisation=0.5,
            exclusive_consumer_tag=None,
            single_active_consumer_tag=None,
            delivery_limit=20,
            messages=10,
            messages_ready=4,
            messages_unacknowledged=2,
            messages_delayed=3,
            messages_dlx=1,
            messages_leased=0,
            message_bytes=1000,
            message_bytes_ready=400,
            message_bytes_unacknowledged=200,
            message_bytes_delayed=400,
            message_bytes_dlx=50,
            message_bytes_leased=0,
            messages_persistent=10,
            message_bytes_persistent=1000,
            messages_paged_out=10,
            message_bytes_paged_out=1000,
            messages_ram=0,
            messages_ready_ram=0,
            messages_unacknowledged_ram=0,
            message_bytes_ram=0,
            messages_details={"rate": 0.0},
            messages_ready_details={"rate": 0.0},
            messages_unacknowledged_details={"rate": 0.0},
            idle_since=None,
            owner_pid_details={},
            message_stats={"publish": 12, "publish_details": {"rate": 0.4}},
        )


class FakeConsumers(ConsumerReports):
    """A consumer of each of the named queues."""

    def __init__(self, broker: Broker, queues: FakeQueues) -> None:
        super().__init__(broker)
        self._queues = queues

    def all(self, vhost: str | None) -> Iterator[ConsumerStatus]:
        for name in self._queues.names_in(vhost):
            yield ConsumerStatus(
                "tag", {"name": name, "vhost": "/"}, {"node": "n2", "id": 7}, True, False, 10, True, "up", {}
            )


class FakeManagement(MachineManagement):
    """Management with queues that the test names."""

    queues: FakeQueues

    def __init__(self) -> None:
        super().__init__()
        self.make(PutVhost("empty", "", [], ""))
        self.make(LimitPublishers(100, 1000))
        self.queues = FakeQueues()
        self.consumers = FakeConsumers(self.broker, self.queues)


def message(body: bytes, **properties: Any) -> Message:
    """A message as it is browsed."""
    return Message(7, "exchange", "key", False, Basic.Properties(**properties), body)
