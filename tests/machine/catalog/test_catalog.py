"""Virtual hosts, users, permissions and connections: their effects, and the effects owed after missed entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qq.machine.catalog.permissions import Permissions, TopicPermissions, User
from qq.machine.handlers.core import no_content
from qq.machine.machine import QueueMachine
from qq.machine.protocol import commands as c
from qq.machine.protocol import effects as e
from tests.machine.machine_driver import Driver, assert_kept_is_current, batch, declare, publish, reloaded

if TYPE_CHECKING:
    from collections.abc import Sequence

USER = c.PutUser("ann", b"salt", b"hash", ["management"])
HASHED = c.PutHashedUser("ann", b"salt", b"hash", [], "md5")
PERMIT = c.SetPermissions("ann", "/", "c", "w", "r")
TOPIC = c.SetTopicPermissions("ann", "/", "amq.topic", "w", "r")


def test_vouched_connection_needs_no_permissions_in_the_log() -> None:
    driver = Driver()
    driver.machine.raise_to(8)
    refused = driver.apply(c.Connect(10, "/", "somebody"))
    assert "refused for user 'somebody'" in str(refused)
    driver.apply(c.ConnectVouched(11, "/", "somebody"), c.OpenChannel(12, 11))
    assert driver.machine.catalog.connections_of("somebody") == 1
    assert "vhost nowhere not found" in str(driver.apply(c.ConnectVouched(13, "nowhere", "somebody")))
    limit = c.SetVhostLimits("/", {"max-connections": 1})
    assert "connection limit (1) is reached" in str(
        driver.apply(limit, c.ConnectVouched(14, "/", "somebody"))
    )
    driver.apply(c.SessionDown(12), c.ConnectionDown(11))
    assert driver.machine.catalog.connections_of("somebody") == 0
    assert driver.machine.catalog.channels_of("somebody") == 0


def connected(*more: c.Command) -> Driver:
    """Connection 10 of node n1, with channel 11."""
    driver = Driver()
    driver.apply(USER, PERMIT, c.Connect(10, "/", "ann"), c.OpenChannel(11, 10), *more)
    return driver


def test_new_machine_has_the_default_vhost_and_no_users() -> None:
    machine = reloaded(QueueMachine())
    [vhost] = machine.vhosts.values()
    assert (vhost.name, vhost.description, vhost.tags) == ("/", "Default virtual host", [])
    assert machine.users == {}


def test_updated_virtual_host_keeps_its_queues() -> None:
    driver = Driver()
    driver.apply(declare("q"), c.PutVhost("/", "mine", ["a", "b"], "quorum"))
    vhost = reloaded(driver.machine).vhosts["/"]
    assert (vhost.description, vhost.tags, vhost.default_queue_type) == ("mine", ["a", "b"], "quorum")
    assert list(vhost.queues) == ["q"]


def test_user_has_the_algorithm_of_its_hash() -> None:
    driver = Driver()
    for command, hashing in ((USER, "sha256"), (HASHED, "md5"), (USER, "sha256")):
        driver.apply(command)
        assert reloaded(driver.machine).users == {"ann": User(*command[:4], hashing)}


def test_limits_are_changed_individually() -> None:
    driver = Driver()
    driver.apply(USER, c.SetUserLimits("ann", {"a": 1, "b": 2}), c.SetVhostLimits("/", {"a": 1, "b": 2}))
    before, dump = driver.machine.freeze(), driver.machine.dump()
    for changes, limits in (
        ({"b": -3, "c": 4}, {"a": 1, "b": -3, "c": 4}),
        ({"a": None, "d": None}, {"b": -3, "c": 4}),
        ({"b": None, "c": None}, {}),
        ({"a": 5}, {"a": 5}),
    ):
        driver.apply(c.ChangeUserLimits("ann", changes), c.ChangeVhostLimits("/", changes))
        machine = reloaded(driver.machine)
        assert machine.catalog.access.limits.get("ann", {}) == machine.vhosts["/"].limits == limits
    assert before.dump() == dump


def test_permissions_are_set_replaced_and_cleared() -> None:
    driver = Driver()
    driver.apply(USER, PERMIT, PERMIT._replace(read="other"))
    access = reloaded(driver.machine).catalog.access
    assert access.permissions("ann", "/") == Permissions("ann", "/", "c", "w", "other")
    assert access.permissions("ann", "v") is access.permissions("bob", "/") is None
    driver.apply(c.ClearPermissions("ann", "/"), c.ClearPermissions("ann", "/"))
    assert driver.machine.catalog.access.permissions("ann", "/") is None


@pytest.mark.parametrize(
    ("exchange", "left"), [("amq.topic", ["other"]), ("", []), ("none", ["amq.topic", "other"])]
)
def test_topic_permissions_are_cleared_for_an_exchange_or_all(exchange: str, left: list[str]) -> None:
    driver = Driver()
    driver.apply(USER, TOPIC, TOPIC._replace(exchange="other"), c.ClearTopicPermissions("ann", "/", exchange))
    access = reloaded(driver.machine).catalog.access
    assert [name for _, _, name in access.all_topic_permissions] == left
    for name in left:
        assert access.topic_permissions("ann", "/", name) == TopicPermissions("ann", "/", name, "w", "r")


@pytest.mark.parametrize("deletion", [c.DeleteUser("ann"), c.DeleteVhost("/")])
def test_permissions_are_deleted_with_their_user_or_vhost(deletion: c.Command) -> None:
    driver = Driver()
    driver.apply(USER, PERMIT, TOPIC, c.SetUserLimits("ann", {"max-channels": 1}), deletion)
    driver.apply(USER, c.PutVhost("/", "", [], ""))
    access = driver.machine.catalog.access
    assert access.all_permissions == access.all_topic_permissions == {}


@pytest.mark.parametrize(
    "command",
    [
        PERMIT._replace(user="bob"),
        PERMIT._replace(vhost="v"),
        TOPIC._replace(user="bob"),
        TOPIC._replace(vhost="v"),
        c.ClearPermissions("bob", "v"),
        c.ClearTopicPermissions("bob", "v", ""),
        c.SetUserLimits("bob", {"max-channels": 1}),
        c.SetVhostLimits("v", {"max-queues": 1}),
        c.ChangeUserLimits("bob", {"max-channels": 1}),
        c.ChangeVhostLimits("v", {"max-queues": 1}),
        c.DeleteVhost("v"),
        c.DeleteUser("bob"),
        c.CloseConnection("n1", 1, "none"),
        c.PutPolicy("v", "p", False, "", "all", 0, {"max-length": 1}),
        c.DeletePolicy("v", "p", False),
        c.DeadLetter("v", "q", 1, 0, 1, "", "", [], [], "", 0, False, {}, {}),
        c.SessionDown(1),
        c.ConnectionDown(1),
    ],
)
def test_command_about_a_missing_object_changes_no_state(command: c.Command) -> None:
    driver = Driver()
    driver.apply(USER)
    before = driver.machine.digest()
    assert driver.apply(command) == []
    assert driver.machine.digest() == before


@pytest.mark.parametrize(
    "change",
    [
        USER,
        HASHED,
        c.DeleteUser("ann"),
        PERMIT,
        c.ClearPermissions("ann", "/"),
        TOPIC,
        c.ClearTopicPermissions("ann", "/", ""),
        c.PutVhost("v", "", [], ""),
        c.DeleteVhost("/"),
    ],
)
def test_catalog_revision_rises_with_each_relevant_change(change: c.Command) -> None:
    driver = connected()
    before = driver.machine.catalog.revision
    driver.apply(change)
    assert driver.machine.catalog.revision > before


def test_catalog_revision_rises_when_a_state_is_loaded() -> None:
    driver = connected()
    before = driver.machine.catalog.revision
    for _ in range(3):
        driver.machine.adopt(driver.machine.read(driver.machine.dump()))
        assert driver.machine.catalog.revision > before
        before = driver.machine.catalog.revision


def owed(driver: Driver) -> Sequence[e.Effect]:
    effects = driver.machine.outstanding("n1")
    assert reloaded(driver.machine).outstanding("n1") == effects
    return effects


def test_open_connection_is_reported_again_after_missed_entries() -> None:
    assert owed(connected()) == [
        e.Reply("n1", 10, e.Connected(), 1),
        e.Known("n1", 10, 1, []),
        e.Known("n1", 11, 0, []),
    ]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (c.CloseConnection("n1", 10, "why not"), "why not"),
        (c.DeleteVhost("/"), "vhost '/' is deleted"),
        (c.DeleteUser("ann"), "user 'ann' is deleted"),
    ],
)
def test_forced_close_is_sent_once_and_owed_after_missed_entries(command: c.Command, reason: str) -> None:
    driver = connected()
    close = e.ConnectionForced("n1", 10, 320, reason)
    assert driver.apply(command, node="n2") == [close]
    assert driver.apply(command, c.CloseConnection("n1", 10, "again"), node="n2") == []
    assert owed(driver)[-1] == close
    assert driver.machine.outstanding("n2") == []
    driver.apply(c.SessionDown(11), c.ConnectionDown(10))
    assert owed(driver) == []


def test_deleted_default_vhost_stays_deleted_after_a_load() -> None:
    driver = connected(declare("q", session=11))
    driver.apply(c.DeleteVhost("/"), c.PutVhost("v", "", [], ""))
    machine = reloaded(driver.machine)
    assert list(machine.vhosts) == ["v"]
    driver.apply(c.PutVhost("/", "", [], ""))
    # Sessions of the old virtual host are not in the new one, after a load as before.
    for machine in (driver.machine, reloaded(driver.machine)):
        [failed] = machine.apply_batch("n1", 99, 0, driver.time_ms, batch([declare("r", session=11)]))
        assert isinstance(failed, e.Failed)
        assert failed.text == "vhost '/' is deleted"


def test_queues_of_the_same_name_in_two_vhosts_are_distinct() -> None:
    driver = connected(c.PutVhost("v", "", [], ""), PERMIT._replace(vhost="v"), c.Connect(20, "v", "ann"))
    driver.apply(
        c.OpenChannel(21, 20), declare("q", session=11), declare("q", session=21), publish(2, session=21)
    )
    assert [(queue.vhost, queue.name, queue.ready) for queue in reloaded(driver.machine).queues()] == [
        ("/", "q", 0),
        ("v", "q", 2),
    ]


def test_the_bounds_of_deduplication_hold_in_every_virtual_host() -> None:
    driver = Driver()
    driver.apply(c.PutVhost("old", "", [], ""), c.LimitPublishers(5, 7), c.PutVhost("new", "", [], ""))
    machine = reloaded(driver.machine)
    assert machine.catalog.publishers_bounds == (5, 7)
    assert [vhost.publishers.bounds for vhost in machine.vhosts.values()] == [(5, 7)] * 3


def test_dead_letter_without_content_waits_when_it_is_needed() -> None:
    """The leader sent no content, because no exchange needed it then."""
    driver = Driver()
    driver.machine = QueueMachine(no_content)
    driver.apply(declare("q", x_message_ttl=0, x_dead_letter_exchange="x"), declare("dead"))
    driver.apply(c.DeclareExchange(1, "x", "fanout", False, True, False, False, {}), publish(1))
    [dead] = driver.machine.pending_dead_letters(10)
    assert not dead.needs_content
    [late] = driver.log.dead_letters(driver.machine)
    headers = {"x-match": "all", "a": 1}
    driver.apply(
        c.BindExchange(1, "amq.headers", "x", "", {}),
        c.BindQueue(1, 1, "dead", "amq.headers", "", headers),
        late,
    )
    assert driver.machine.vhosts["/"].queues["dead"].ready == 0
    [dead] = driver.machine.pending_dead_letters(10)
    assert dead.needs_content
    driver.apply(late._replace(has_content=True, headers={"a": 1}))
    assert driver.machine.vhosts["/"].queues["dead"].ready == 1
    assert list(driver.machine.pending_dead_letters(10)) == []


def test_content_exchanges_are_found_behind_other_exchanges() -> None:
    driver = Driver()
    exchanges = [c.DeclareExchange(1, name, "fanout", False, True, False, False, {}) for name in "abc"]
    alternate = c.DeclareExchange(1, "d", "direct", False, True, False, False, {"alternate-exchange": "c"})
    driver.apply(
        *exchanges, alternate, c.BindExchange(1, "b", "a", "", {}), c.BindExchange(1, "a", "b", "", {})
    )
    vhost = driver.machine.vhosts["/"]

    def routed() -> str:
        return "".join(name for name in "abcd" if vhost.depends_on_content(name))

    assert routed() == ""
    assert not vhost.depends_on_content("none")
    assert not vhost.depends_on_content("")
    assert vhost.depends_on_content("amq.match")
    driver.apply(c.BindExchange(1, "amq.headers", "b", "", {}))
    assert routed() == "ab"
    driver.apply(c.BindExchange(1, "amq.headers", "c", "", {}))
    assert routed() == "abcd"
    driver.apply(c.UnbindExchange(1, "amq.headers", "c", "", {}), c.DeleteExchange(1, "b", False))
    assert routed() == ""


def test_repeated_policy_is_current_in_a_dump() -> None:
    driver = Driver()
    driver.apply(declare("q"))
    for _ in range(2):
        driver.apply(c.PutPolicy("/", "p", False, "", "all", 0, {"max-length": 1}))
        assert_kept_is_current(driver.machine)


ADMIN = c.PutUser("ann", b"salt", b"hash", ["administrator", "x"])


@pytest.mark.parametrize(
    "change",
    [
        c.DeleteUser("ann"),
        ADMIN._replace(tags=["x"]),
        ADMIN._replace(hash=b""),
        c.PutHashedUser("ann", b"salt", b"hash", [], "md5"),
    ],
)
def test_last_administrator_stays_from_version_10_on(change: c.Command) -> None:
    driver = Driver()
    driver.machine.raise_to(10)
    driver.apply(ADMIN, c.PutUser("bob", b"", b"", ["administrator"]), c.PutUser("eve", b"s", b"h", ["x"]))
    driver.machine.adopt(driver.machine.read(driver.machine.dump()))
    before = driver.machine.digest()
    assert driver.apply(change) == []
    assert driver.machine.digest() == before
    driver.apply(ADMIN._replace(name="bob"), change)
    assert driver.machine.catalog.access.administrators == {"bob"}
    driver.apply(c.DeleteUser("bob"))
    assert "bob" in driver.machine.catalog.access.users


def test_dismissed_administrator_may_be_deleted() -> None:
    driver = Driver()
    driver.machine.raise_to(10)
    driver.apply(ADMIN, c.DismissAdministrator("ann"), c.DismissAdministrator("nosuch"))
    assert driver.machine.catalog.access.users["ann"].tags == ["x"]
    driver.apply(c.DeleteUser("ann"))
    assert driver.machine.catalog.access.users == {}


def test_last_administrator_goes_before_version_10() -> None:
    driver = Driver()
    driver.machine.raise_to(9)
    driver.apply(ADMIN, c.DeleteUser("ann"))
    assert driver.machine.catalog.access.users == {}
