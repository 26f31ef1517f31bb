"""The management page in a real browser, step by step, against a real cluster.

The tests share a cluster and a browser, and each leaves only objects under names of its own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pika
import pytest

from qq.amqp10.performatives import FlowFrame
from qq.testing import ClusterNode, LocalCluster
from tests.amqp10_server.socket_client import SocketClient
from tests.oauth2.openid import OpenIdProvider
from tests.page.browsing import Page
from tests.page.chromium import opened
from tests.page.demo import QUORUM, api
from tests.page.proxy import below_a_path

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("page")

EVIL = '<img src=x onerror="window.hurt=1">é🐇/%2F&?#'


@pytest.fixture(scope="module")
def provider() -> Generator[OpenIdProvider]:
    with OpenIdProvider() as started:
        yield started


@pytest.fixture(scope="module")
def cluster(provider: OpenIdProvider) -> Generator[LocalCluster]:
    with LocalCluster(nodes=3, settings={"oauth2": provider.settings()}) as started:
        yield started


@pytest.fixture(scope="module")
def node(cluster: LocalCluster) -> ClusterNode:
    return cluster.nodes[0]


@pytest.fixture(scope="module")
def page(node: ClusterNode) -> Generator[Page]:
    with opened() as browser:
        shown = Page(browser, f"http://127.0.0.1:{node.http_port}/")
        shown.start()
        shown.log_in("guest", "guest")
        shown.until_reads("Messages a second")
        yield shown


@pytest.fixture(autouse=True)
def no_console_errors(page: Page) -> Generator[None]:
    yield
    assert page.console_errors() == []
    assert page.browser.execute_script("return window.hurt") is None


@pytest.fixture
def channel(node: ClusterNode) -> Generator[Any]:
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        yield connection.channel()


def declare(channel: Any, name: str, messages: int = 0, **arguments: Any) -> None:
    channel.queue_declare(name, durable=True, arguments=QUORUM | arguments)
    for number in range(messages):
        properties = pika.BasicProperties(headers={"number": number})
        channel.basic_publish("", name, f"body {number}".encode(), properties)


def figures(page: Page) -> dict[str, str]:
    lines = (element.text.splitlines() for element in page.all("main .figure"))
    return {line[0]: line[1] for line in lines}


def test_the_overview_shows_rates_charts_and_nodes(page: Page, cluster: LocalCluster) -> None:
    page.open("overview")
    page.until(lambda: len(page.all(".chart canvas")) == 6)
    assert {row[0] for row in page.rows("Nodes")} == {node.name for node in cluster.nodes}
    page.until_reads("Live", ".top")
    page.until(lambda: page.all('.chart [role="img"][aria-label="Chart: Latency at this node"]'))


def test_queue_with_markup_as_its_name_is_declared_and_deleted(page: Page, node: ClusterNode) -> None:
    page.open("queues")
    page.press("new-queue")
    page.confirm(name=EVIL, arguments='{"x-max-length": 7}')
    page.until(lambda: page.text("main h1") == EVIL)
    page.until_reads("x-max-length")
    assert [row for row in page.rows("Arguments") if row[0] == "x-max-length"] == [
        ["x-max-length", "7", "argument"]
    ]
    page.browser.refresh()  # the address leads back here, and the session goes on
    page.until(lambda: page.text("main h1") == EVIL)
    page.press("delete")
    page.confirm(confirmation=EVIL)
    page.until(lambda: page.place.startswith("queues"))
    assert all(queue["name"] != EVIL for queue in api(node, "queues"))


LINKS = """return Object.fromEntries([...document.querySelectorAll("tbody td:first-child > .name")].map((link) => {
    const text = document.createRange(), {width, height} = link.getBoundingClientRect();
    text.selectNodeContents(link);
    return [link.textContent, [width * height, text.getBoundingClientRect().width]];
}))"""
"""How large each link is, and how wide the text in it."""


def test_a_name_that_cannot_be_seen_is_a_link_and_spaces_count(page: Page, channel: Any) -> None:
    names = ["w w", "w  w", "w   w", " ", "   ", "\u200b", "\u202ew w"]
    for name in names:
        declare(channel, name)
    page.open("queues?page_size=200")
    page.until(lambda: set(names) <= page.browser.execute_script(LINKS).keys())
    links = page.browser.execute_script(LINKS)
    assert all(links[name][0] > 0 for name in names)
    assert links["w w"][1] < links["w  w"][1] < links["w   w"][1]
    page.click("tbody tr:has(a[href$='/%20']) .name")
    page.until(lambda: page.place == "queues/%2F/%20")
    for name in names:
        channel.queue_delete(name)


def test_deleted_queue_disappears_from_its_open_page(page: Page, channel: Any) -> None:
    channel.queue_declare("gone", durable=True, arguments={"x-queue-type": "quorum"})
    page.open("queues/%2F/gone")
    page.until_reads("Ready")
    channel.queue_delete("gone")
    page.until_reads("There is no such queue.")
    assert "Ready" not in page.text("main")


def test_dialog_shows_why_a_declaration_is_refused(page: Page) -> None:
    page.open("queues")
    page.press("new-queue")
    page.fill(name="refused", arguments='{"x-max-length": "many"}')
    page.press("confirm", "dialog")
    page.until_reads("x-max-length", "dialog .problem")
    page.fill(arguments="no JSON")
    page.press("confirm", "dialog")
    page.until_reads("this is no JSON", "dialog .problem")
    page.leave_field()
    page.until(lambda: not page.all("dialog"))


def test_messages_are_published_browsed_got_and_purged(page: Page, node: ClusterNode, channel: Any) -> None:
    declare(channel, "letters")
    page.open("queues/%2F/letters")
    page.press("publish")
    page.confirm(payload="bonjour", properties='{"content_type": "text/plain", "headers": {"a": "<b>"}}')
    page.until(lambda: figures(page)["Ready"] == "1")  # it came by the stream, without a request
    page.press("tab-messages")
    page.until_reads("bonjour", ".message")
    page.click(".message summary")
    page.until_reads("<b>", ".message .facts")
    assert page.text(".message .body") == "bonjour"
    assert api(node, "queues/%2F/letters")["messages_ready"] == 1
    page.press("get")
    page.fill(count="1", mode="ack_requeue_false")
    page.press("confirm", "dialog")
    page.until_reads("1 of", "dialog h2")
    page.confirm()
    page.until(lambda: figures(page)["Ready"] == "0")
    declare(channel, "letters", 3)
    page.until(lambda: figures(page)["Ready"] == "3")
    page.press("purge")
    page.confirm(confirmation="letters")
    page.until(lambda: figures(page)["Ready"] == "0")


def test_consumers_show_credit_and_bindings_are_changed(page: Page, channel: Any) -> None:
    declare(channel, "consumed", 5)
    channel.basic_qos(prefetch_count=8)
    channel.basic_consume("consumed", lambda *_: None, consumer_tag="reader")
    channel.connection.process_data_events(0.5)
    page.open("queues/%2F/consumed?tab=consumers")
    page.until(lambda: [row[0] for row in page.rows("Consumers")] == ["reader"])
    page.until(lambda: page.rows("Consumers")[0][-3:] == ["8", "5", "3"], "prefetch, unacked and credit")
    page.press("tab-bindings")
    page.press("bind")
    page.confirm(exchange="amq.topic", key="a.#")
    page.until(lambda: [row[:2] for row in page.rows("Bindings")] == [["amq.topic", "a.#"]])
    page.open("exchanges?as=picture&vhost=%2F")
    page.until(lambda: "consumed" in page.text(".picture") and "amq.topic" in page.text(".picture"))
    page.open("queues/%2F/consumed?tab=bindings")
    page.click('table[aria-label="Bindings"] button')
    page.confirm()
    page.until_reads("Only bound to the default exchange")


def test_groups_are_shown_and_their_leases_released(page: Page, node: ClusterNode, channel: Any) -> None:
    declare(channel, "leased", 6)
    api(node, "queues/%2F/leased/groups/nightly", "PUT", {"fence": 3, "owner": "report"})
    for lease in (0, 1):
        api(node, f"queues/%2F/leased/groups/nightly/leases/{lease}", "PUT", {"fence": 3, "max_messages": 2})
    page.open("groups")
    page.until(lambda: [row[:2] for row in page.rows("Groups")] == [["leased", "nightly"]])
    page.open("queues/%2F/leased?tab=groups")
    page.until(lambda: figures(page)["Leased"] == "4")
    row = page.rows("Groups")[0]
    assert row[:4] == ["nightly", "report", "3", "2"]
    assert row[6].startswith("6 (")
    page.press("leases")
    page.until(lambda: [row[0] for row in page.rows("Leases")] == ["0", "1"])
    page.press("release", "dialog")
    page.until_reads("Release lease 0", "dialog h2")
    page.confirm()
    page.until(lambda: figures(page)["Leased"] == "2")
    page.press("close-group")
    page.click("dialog input[name=release]")
    page.confirm(confirmation="nightly")
    page.until_reads("No group leases messages of the queue.")
    page.until(lambda: figures(page)["Ready"] == "6")


def test_sinks_are_shown_and_closed(page: Page, node: ClusterNode) -> None:
    api(node, "sinks/%2F/daily", "PUT", {})
    page.open("sinks")
    page.until(lambda: [row[:1] for row in page.rows("Sinks")] == [["daily"]])
    page.press("close-sink")
    page.confirm(confirmation="daily")
    page.until_reads("No writer has opened a sink.")


def test_bodies_are_indented_json_text_or_base64(page: Page, channel: Any) -> None:
    shown = {
        b'{"a":[1,{"b":"x y"}]}': '{\n  "a": [\n    1,\n    {\n      "b": "x y"\n    }\n  ]\n}',
        b'{"a": 1.0, "a": 12345678901234567890}': '{"a": 1.0, "a": 12345678901234567890}',
        b"[no json": "[no json",
        b"\xff": "/w==",
    }
    declare(channel, "bodies")
    for body in shown:
        channel.basic_publish("", "bodies", body)
    page.open("queues/%2F/bodies?tab=messages")
    page.until(lambda: len(page.all(".message")) == len(shown))
    read = "return [...document.querySelectorAll('.message .body')].map((each) => each.textContent)"
    assert page.browser.execute_script(read) == list(shown.values())
    assert "in base64" in page.browser.execute_script("return document.querySelector('main').textContent")


def test_bindings_of_an_exchange_stand_before_its_picture(page: Page, channel: Any) -> None:
    channel.exchange_declare("wide", "topic", durable=True)
    declare(channel, "bound")
    for number in range(14):
        channel.queue_bind("bound", "wide", f"key.{number:02}")
    page.open("exchanges/%2F/wide")
    page.until(lambda: len(page.rows("Bindings")) == 14)
    page.click('table[aria-label="Bindings"] button')
    page.until_reads("key.00", "dialog")
    page.confirm()
    page.until(lambda: [row[2] for row in page.rows("Bindings")][:1] == ["key.01"])
    assert not page.all("details[open] .picture")
    page.click("main details summary")
    page.until(lambda: page.all("details[open] .picture"))


def test_dead_letters_are_listed_with_their_reasons(page: Page, node: ClusterNode, channel: Any) -> None:
    declare(channel, "morgue")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "morgue"}
    declare(channel, "mortal", 4, **dead, **{"x-message-ttl": 1})
    page.open("dead-letters")
    page.until(lambda: [row[0] for row in page.rows("Dead letters")] == ["mortal"])
    page.until_reads("expired 4")
    page.until_reads("morgue", 'table[aria-label="Dead letters"]')
    page.open("dead-letters/%2F/morgue")
    page.until_reads("mortal", ".chip")
    page.until(lambda: len(page.all(".message")) == 4)
    page.fill("main", text="body 2")
    page.until(lambda: len(page.all(".message")) == 1)
    page.click(".message summary")
    page.until_reads("expired", ".deaths")
    page.fill("main", text="", reason="rejected")
    page.until_reads("None of these messages fits")
    page.fill("main", reason="expired")
    page.press("send-back")
    page.until_reads("Moves 4 of 4 messages.", "dialog .counted")
    page.fill(count="3")
    page.until_reads("Moves 3 of 4 messages.", "dialog .counted")
    page.confirm()
    page.until(
        lambda: [each["moved"] for each in api(node, "moves/%2F") if each["state"] == "finished"] == [3]
    )


def test_node_searches_dead_letters_and_moves_those_found(
    page: Page, node: ClusterNode, channel: Any
) -> None:
    declare(channel, "grave", 1200)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    declare(channel, "buyers", **dead)
    declare(channel, "sellers", **dead)
    for number in range(40):
        body = json.dumps({"order": number % 4, "customer": "c"})
        channel.basic_publish("", ("buyers", "sellers")[number % 2], body.encode())
    for name in ("buyers", "sellers"):
        for _ in range(20):
            channel.basic_reject(channel.basic_get(name)[0].delivery_tag, requeue=False)
    page.until(lambda: api(node, "queues/%2F/grave")["messages_ready"] == 1240)
    page.open("dead-letters/%2F/grave")
    page.until(lambda: sorted(chip.split()[-1] for chip in page.text(".chips").splitlines()) == ["20", "20"])
    page.fill("main", text='"order": 3,')  # as it is written in the body, after a thousand messages
    page.until_reads("0 found; looked at 1,000 of 1,240 ready messages.", ".found")
    page.press("further")
    page.until_reads("10 found; looked at 1,240 of 1,240 ready messages.", ".found")
    page.press("send-back")
    page.until_reads("Moves 10 of 1,240 messages.", "dialog .counted")
    page.confirm()
    page.until(lambda: api(node, "queues/%2F/sellers")["messages_ready"] == 10)
    page.until_reads(
        "0 found; looked at 1,000 of 1,230 ready messages.", ".found"
    )  # without a press of a button
    page.until(lambda: "10" in page.text(".chips"))
    page.press("send-back")
    page.until_reads("Moves 0 of 1,230 messages.", "dialog .counted")
    page.fill(text="")
    page.until_reads("Moves 30 of 1,230 messages.", "dialog .counted")  # the rest never died
    page.browser.back()
    page.until(lambda: not page.all("dialog"), "a dialog closes when the view below it changes")


def test_queues_are_searched_sorted_and_paged_by_the_node(page: Page, channel: Any) -> None:
    for number in range(30):
        declare(channel, f"many-{number:02}", number % 3)
    page.open("queues?page_size=25&name=many-")
    page.until(lambda: len(page.rows("Queues")) == 25)
    page.key("n")
    page.until(lambda: page.rows("Queues")[:1] and page.rows("Queues")[0][0] == "many-25")
    page.key("p")
    page.click("th:has(button.sort) ~ th.number button.sort")  # Ready
    page.until(lambda: "sort=messages_ready" in page.place)
    page.until(lambda: page.rows("Queues") and page.rows("Queues")[0][0] == "many-29")
    page.key("/")
    page.fill("main .search", use_regex="")
    page.click('main .search [name="use_regex"]')
    page.browser.execute_script("document.activeElement.blur()")
    page.open("queues?name=many-.7$&use_regex=true")
    page.until(lambda: sorted(row[0] for row in page.rows("Queues")) == ["many-07", "many-17", "many-27"])
    page.key("j", "j")
    assert page.browser.switch_to.active_element.text == "many-17"
    page.click("details.menu summary")
    page.click("details.menu .menu-list label:nth-child(2) input")  # Features
    page.until(lambda: "Features" not in page.text("thead"))
    page.click("details.menu .menu-list label:nth-child(2) input")


def test_keys_lead_to_views_and_the_theme_changes(page: Page) -> None:
    page.open("overview")
    page.until_reads("Messages a second")
    page.key("g", "c")
    page.until(lambda: page.place.startswith("connections"))
    page.key("?")
    page.until_reads("next and previous row", ".help")
    page.key("?")
    before = page.browser.execute_script("return document.documentElement.dataset.theme")
    page.key("t")
    page.until(lambda: page.browser.execute_script("return document.documentElement.dataset.theme") != before)
    page.key("t")


def test_connection_is_shown_with_its_channels_and_closed(page: Page, node: ClusterNode) -> None:
    parameters = pika.URLParameters(node.url)
    parameters.client_properties = {"connection_name": "to be closed"}
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel(7)
    channel.queue_declare("named", durable=True, arguments=QUORUM)
    channel.basic_consume("named", lambda *_: None, consumer_tag="reader")
    for view in ("connections", "channels", "queues/%2F/named?tab=consumers"):
        page.open(view)
        page.until_reads("to be closed", "tbody")
        page.search("nosuch")
        page.until_reads("has 'nosuch'.")
        page.search("TO BE")
        page.until_reads("to be closed", "tbody")
    page.open("connections?name=to be")
    page.until(lambda: [row[0].splitlines()[0] for row in page.rows("Connections")] == ["to be closed"])
    page.click('a.name[href^="#/connections/"]')
    page.until(lambda: page.text("main h1") == "to be closed")
    page.until(lambda: any(row[0].startswith("to be closed (7)") for row in page.rows("Channels")))
    page.press("close")
    page.confirm()
    with pytest.raises(pika.exceptions.ConnectionClosed, match="CONNECTION_FORCED"):
        connection.process_data_events(5)


def test_amqp10_connection_is_shown_with_sessions_and_links(page: Page, node: ClusterNode) -> None:
    api(node, "queues/%2F/linked", "PUT", {"durable": True})
    with SocketClient(node.amqp_port) as client:
        client.open()
        client.begin(3)
        client.attach_sender(None, 0, 3)
        client.attach_receiver("linked", 1, 3)
        client.credit(0, 1, 3, echo=True)
        client.until(FlowFrame)
        page.open("connections")
        page.until(lambda: ["AMQP 1-0" in row for row in page.rows("Connections")] == [True])
        page.click('a.name[href^="#/connections/"]')
        page.until_reads("Session 3")
        assert [row[1:4] for row in page.rows("Incoming links")] == [["sender 0", "of each message", "mixed"]]
        assert page.rows("Outgoing links") == [
            ["1", "receiver 1", "/queues/linked", "unsettled", "0", "0", "0"]
        ]
        page.until(lambda: {row[0] for row in page.rows("Links")} == {"sender 0", "receiver 1"})
        client.credit(9, 1, 3)
        page.until(lambda: page.rows("Outgoing links")[0][4] == "9")


def test_member_is_made_leader_drained_and_added(page: Page, cluster: LocalCluster) -> None:
    page.open("members")
    page.until(lambda: len(page.all(".member")) == 3)
    follower = cluster.followers()[0].name
    page.press(f"lead-{follower}")
    page.confirm()
    page.until(lambda: follower in page.text(".member.leads h2"))
    other = next(each.name for each in cluster.nodes[1:] if each.name != follower)
    page.press(f"drain-{other}")
    page.until_reads("goes on without it", "dialog")
    page.confirm()
    page.until_reads("under maintenance")
    page.press(f"revive-{other}")
    page.confirm()
    page.until(lambda: "under maintenance" not in page.text())


def test_users_get_permissions_and_virtual_hosts_limits(page: Page, node: ClusterNode) -> None:
    page.open("vhosts")
    page.press("new-vhost")
    page.confirm(name="games", description="for fun")
    page.until_reads("for fun")
    page.open("vhosts?open=games")
    page.click('table[aria-label="Limits"] tbody tr:nth-child(2) button')
    page.confirm(value="12")
    page.until(lambda: ["max-queues", "12"] in [row[:2] for row in page.rows("Limits")])
    page.open("users")
    page.press("new-user")
    page.fill(name="dora", password="dora")
    page.click('dialog [name="monitoring"]')
    page.confirm()
    page.until(lambda: page.text("main h1") == "dora")
    page.press("set-permissions")
    page.confirm(vhost="games", write="^$")
    page.until(lambda: [row[:4] for row in page.rows("Permissions")] == [["games", ".*", "^$", ".*"]])
    assert api(node, "permissions/games/dora")["write"] == "^$"
    page.open("vhosts?open=games")
    page.press("protect")
    page.until_reads("Allow deletion")
    page.press("protect")
    page.until_reads("Protect from deletion")
    page.press("delete")
    page.confirm(confirmation="games")
    page.until(lambda: "games" not in page.text('table[aria-label="Virtual hosts"]'))


def test_policy_previews_its_matches_and_applies_after_creation(page: Page, channel: Any) -> None:
    for name in ("limited.a", "limited.b", "free"):
        declare(channel, name)
    page.open("policies?vhost=%2F")
    page.fill("main", **{"match-pattern": "^limited"})
    page.until_reads("2 queues and 0 exchanges")
    assert page.text("#matches").splitlines() == ["limited.a", "limited.b"]
    page.fill("main", **{"match-pattern": "("})
    page.until_reads("pattern:", "main .problem")
    page.press("new-policies")
    page.until(lambda: page.all('dialog [name="pattern"]'))
    assert page.all('dialog [name="pattern"]')[0].get_attribute("value") == "("  # that was tried
    page.confirm(name="short", pattern="^limited", definition='{"max-length": 3}')
    page.until(lambda: [row[0] for row in page.rows("Policies")] == ["short"])
    page.open("queues/%2F/limited.a")
    page.until(lambda: ["max-length", "3", "policy short"] in page.rows("Arguments"))
    page.open("policies?vhost=%2F")
    page.click('table[aria-label="Policies"] tr button:last-child')
    page.confirm()
    page.until(lambda: page.rows("Policies") == [])


VISIBLE = """return [...document.querySelectorAll('table[aria-label="Queues"] th')]
    .filter((cell) => cell.offsetParent).map((cell) => cell.innerText.trim())"""
"""The column titles that can be seen."""
SCROLLS = """return [document.documentElement, ...document.querySelectorAll("main .scroll")]
    .filter((box) => box.scrollWidth > box.clientWidth).length"""
"""The number of boxes that are wider than their place."""


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (390, ["Name", "Ready", "Unacked", "Consumers"]),
        (800, ["Name", "Virtual host", "State", "Ready", "Unacked", "Consumers", "In", "Out"]),
    ],
)
def test_queues_fit_on_a_narrow_screen(page: Page, channel: Any, width: int, columns: list[str]) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "narrow", "x-message-ttl": 10**9}
    declare(channel, "narrow", 3, **dead)
    screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        page.open("queues?name=narrow")
        page.until(lambda: page.rows("Queues"))
        shown = page.browser.execute_script(VISIBLE)
        assert [each for each in columns if each in (*shown, "Virtual host")] == columns
        assert set(shown) <= set(columns)
        assert page.browser.execute_script(SCROLLS) == 0
        [row] = page.all('table[aria-label="Queues"] tbody tr')
        assert row.size["height"] < 60
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


LARGE = 2**53 + 1
"""The first number that JavaScript rounds."""


def test_definitions_are_downloaded_and_uploaded(page: Page, node: ClusterNode, tmp_path: Path) -> None:
    page.browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    api(node, "queues/%2F/large", "PUT", {"arguments": {"n": LARGE}})
    page.open("definitions")
    page.press("download")
    page.until(lambda: list(tmp_path.glob("qq-definitions-*.json")))
    (file,) = tmp_path.glob("qq-definitions-*.json")
    exported = json.loads(file.read_text())
    assert exported["users"]
    assert [each["arguments"].get("n") for each in exported["queues"] if each["name"] == "large"] == [LARGE]
    exported["exchanges"].append({"vhost": "/", "name": "amq.own", "type": "direct"})
    exported["queues"].append(
        {"vhost": "/", "name": "imported", "durable": True, "auto_delete": False, "arguments": {}}
    )
    file.write_text(json.dumps(exported))
    page.all('[name="file"]')[0].send_keys(str(file))
    page.press("upload")
    page.confirm()
    page.until(lambda: "Imported except for exchange 'amq.own'" in page.text(".notices"))
    assert api(node, "queues/%2F/imported")["name"] == "imported"


def test_page_continues_after_its_node_was_away(page: Page, node: ClusterNode) -> None:
    api(node, "queues/%2F/remembered", "PUT", {"durable": True})
    page.open("queues?name=remembered")
    page.until(lambda: page.rows("Queues"))
    node.kill()
    page.until_reads("Waiting", ".top .live")
    assert "remembered" in page.text()  # the last known values are still shown
    node.start()
    node.wait_ready()
    page.until(lambda: page.text(".top .live") == "Live")
    page.until(lambda: "Trying again" not in page.text())


def test_monitoring_user_sees_no_buttons_for_forbidden_actions(
    page: Page, node: ClusterNode, channel: Any
) -> None:
    declare(channel, "watched", 1)
    api(node, "users/mona", "PUT", {"password": "mona", "tags": "monitoring"})
    api(node, "permissions/%2F/mona", "PUT", {"configure": "^$", "write": "^$", "read": "^$"})
    page.press("logout", ".top")
    page.log_in("mona", "wrong")
    page.until_reads("do not fit")
    page.log_in("mona", "mona")
    page.open(f"queues/{quote('/', safe='')}/watched")
    page.until(lambda: page.text("main h1") == "watched")
    page.press("tab-messages")
    page.until_reads("needs the permission to read")
    assert page.all(".heading button") == []
    page.open("members")
    page.until(lambda: len(page.all(".member")) == 3)
    assert page.all("main button") == []
    page.open("queues")
    page.until(lambda: page.rows("Queues"))
    assert page.all('[name="new-queue"]') == []
    assert "Users" not in page.text(".side")
    assert "Definitions" not in page.text(".side")


def test_a_session_that_ends_leads_to_the_login(page: Page, node: ClusterNode) -> None:
    api(node, "users/mona", "DELETE")
    page.open("overview")
    page.until_reads("Log in to qq")
    page.log_in("guest", "guest")
    page.until_reads("Messages a second")


def test_a_proxy_may_have_the_page_below_a_path(page: Page, node: ClusterNode, channel: Any) -> None:
    declare(channel, "behind-a-proxy", messages=1)
    with below_a_path(node.http_port) as address:
        behind = Page(page.browser, address)
        behind.start()
        behind.log_in("guest", "guest")
        behind.until_reads("Messages a second")
        behind.open("queues?name=behind-a-proxy")
        behind.until_reads("behind-a-proxy", "tbody")
        behind.click("tbody .name")
        behind.press("delete")
        behind.confirm(confirmation="behind-a-proxy")
        behind.until(lambda: behind.place.startswith("queues"))
        assert all(queue["name"] != "behind-a-proxy" for queue in api(node, "queues"))
    page.open("overview")


def test_user_logs_in_at_the_issuers_page(page: Page, provider: OpenIdProvider) -> None:
    page.open("queues")
    page.press("logout", ".top")
    page.press("issuer")
    page.until(lambda: "ann" in page.text(".top"))
    assert page.browser.current_url == f"{page.address}#/queues"
    kept = "return [document.cookie, ...Object.keys(localStorage), ...Object.values(sessionStorage)].join()"
    assert "eyJ" not in page.browser.execute_script(kept)
    page.press("logout", ".top")
    provider.refuses = True
    page.press("issuer")
    page.until_reads("The login was refused")
    assert "login=" not in page.browser.current_url
    page.log_in("guest", "guest")
    page.until(lambda: "guest" in page.text(".top"))
