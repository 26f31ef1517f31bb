"""The configuration of a node: accepted files, and the error line of a refused file."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from cluster.log.entry import BATCH_BYTES_MAX
from cluster.log.segment import SEGMENT_BYTES_MAX
from qq.amqp.framing import stored_bytes_max
from qq.config import (
    _MAY_BE_ZERO,
    _MOST,
    ClientTls,
    ConfigError,
    NodeAddress,
    NodeConfig,
    NodeLimits,
    OAuth2,
    Seed,
    Tracing,
    load,
    read_secrets,
)
from qq.sessions import batch

SECRET = "0123456789abcdef"

NODE = """
[node]
name = "n1"
data_dir = "data"
"""
CLUSTER = f"""
[cluster]
secret = "{SECRET}"
"""
NODES = """
[[nodes]]
name = "n1"
host = "127.0.0.1"
peer_port = 25672
amqp_port = 5672
http_port = 15672
"""
GOOD = NODE + CLUSTER + NODES
TLS = """
[tls]
cert = "node.toml"
key = "node.toml"
"""
GOOD_TLS = GOOD + "amqps_port = 5671\n" + TLS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "node.toml"


def loaded(file: Path, text: str, **environ: str) -> NodeConfig:
    file.write_text(text)
    return load(file, environ)


def refusal(file: Path, text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(file, text, **environ)
    line = str(caught.value)
    assert "\n" not in line
    return line.removeprefix(f"{file}: ")


OAUTH2 = """
[oauth2]
resource_server_id = "rabbitmq"
"""


def test_token_settings_are_read_from_the_file(file: Path) -> None:
    assert loaded(file, GOOD).oauth2 is None
    config = loaded(file, GOOD + OAUTH2 + 'issuer = "https://issuer/x"\n').oauth2
    assert config == OAuth2("rabbitmq", issuer="https://issuer/x", scope_prefix="rabbitmq.")
    more = """
jwks_url = "http://127.0.0.1:1/keys"
ca = "node.toml"
signing_keys = ["one=keys/one.pem", "two = /two.pem"]
default_key = "one"
algorithms = ["PS256"]
scope_prefix = "api://"
scope_aliases = ["dev = rabbitmq.read:* rabbitmq.write:*"]
additional_scopes_keys = ["roles"]
preferred_username_claims = ["email"]
verify_aud = false
leeway_s = 5
issuer = "https://issuer/x"
client_id = "page"
client_secret = "a secret"
scopes = ["openid", "rabbitmq.tag:management"]
"""
    config = loaded(file, GOOD + OAUTH2 + more)
    assert "a secret" not in repr(config) + str(config.shown())
    assert config.oauth2 == OAuth2(
        "rabbitmq",
        "https://issuer/x",
        "http://127.0.0.1:1/keys",
        file,
        (("one", file.parent / "keys/one.pem"), ("two", Path("/two.pem"))),
        "one",
        ("PS256",),
        "api://",
        (("dev", "rabbitmq.read:* rabbitmq.write:*"),),
        ("roles",),
        ("email",),
        False,
        5.0,
        "page",
        "a secret",
        ("openid", "rabbitmq.tag:management"),
    )
    environ = {"QQ_OAUTH2_RESOURCE_SERVER_ID": "mq", "QQ_OAUTH2_ISSUER": "https://i"}
    found = loaded(file, GOOD, **environ).oauth2
    assert found is not None
    assert (found.resource_server_id, found.scope_prefix) == ("mq", "mq.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[oauth2]\n", "[oauth2] resource_server_id: is missing"),
        (OAUTH2, "[oauth2] issuer: is missing, and jwks_url and signing_keys are, too: give one"),
        (OAUTH2 + 'issuer = "http://issuer"\n', "[oauth2] issuer: 'http://issuer' must begin with https://"),
        (OAUTH2 + 'jwks_url = "http://127.0.0.1.evil/"\n', "[oauth2] jwks_url: "),
        (OAUTH2 + 'jwks_url = "https://"\n', "[oauth2] jwks_url: "),
        (OAUTH2 + 'signing_keys = ["one.pem"]\n', "[oauth2] signing_keys: 'one.pem' must be NAME=VALUE"),
        (
            OAUTH2 + 'issuer = "https://i"\nalgorithms = ["HS256"]\n',
            "[oauth2] algorithms: 'HS256' is not one of RS256",
        ),
        (OAUTH2 + 'issuer = "https://i"\nleeway_s = 0\n', "[oauth2] leeway_s: must be a number of seconds"),
        (OAUTH2 + 'issuer = "https://i"\nca = "nothing.pem"\n', "[oauth2] ca: "),
        (
            OAUTH2 + 'jwks_url = "https://i"\nclient_id = "x"\n',
            "[oauth2] issuer: is missing, and client_id needs it",
        ),
        (
            OAUTH2 + 'issuer = "https://i"\nscopes = ["x"]\n',
            "[oauth2] scopes: must have 'openid' among them",
        ),
        (OAUTH2 + 'issuer = "https://i"\nkeys = 1\n', "[oauth2] keys: there is no such key"),
    ],
)
def test_invalid_token_setting_is_reported(file: Path, text: str, expected: str) -> None:
    assert refusal(file, GOOD + text).startswith(expected)


TRACING = """
[tracing]
endpoint = "https://traces:4318/base"
"""


def test_trace_settings_are_read_from_the_file(file: Path) -> None:
    assert loaded(file, GOOD).tracing is None
    assert loaded(file, GOOD + TRACING).tracing == Tracing("https://traces:4318/base")
    more = """
headers = ["Authorization = Basic c2VjcmV0=="]
ca = "node.toml"
ratio = 0.5
spans_per_s_max = 7
service_name = "mq"
"""
    config = loaded(file, GOOD + TRACING + more)
    headers = (("Authorization", "Basic c2VjcmV0=="),)
    assert config.tracing == Tracing("https://traces:4318/base", headers, file, 0.5, 7, "mq")
    assert "c2VjcmV0" not in str(config.shown())
    assert "c2VjcmV0" not in repr(config)
    environ = {
        "QQ_TRACING_ENDPOINT": "http://c:4318",
        "QQ_TRACING_HEADERS": "a=1,b=2",
        "QQ_TRACING_RATIO": "1",
    }
    assert loaded(file, GOOD, **environ).tracing == Tracing(
        "http://c:4318", (("a", "1"), ("b", "2")), ratio=1.0
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[tracing]\n", "[tracing] endpoint: is missing"),
        (
            '[tracing]\nendpoint = "collector:4318"\n',
            "[tracing] endpoint: 'collector:4318' must begin with http",
        ),
        ('[tracing]\nendpoint = "http://c?x"\n', "[tracing] endpoint: 'http://c?x' must begin with http"),
        (TRACING + "ratio = 1.1\n", "[tracing] ratio: must be a number from 0 to 1"),
        (TRACING + "ratio = nan\n", "[tracing] ratio: must be a number from 0 to 1"),
        (TRACING + "spans_per_s_max = 0\n", "[tracing] spans_per_s_max: must be a whole number above zero"),
        (TRACING + 'headers = ["secret"]\n', "[tracing] headers: 'secret' must be NAME=VALUE"),
        (TRACING + 'ca = "nothing.pem"\n', "[tracing] ca: "),
        (TRACING + "key = 1\n", "[tracing] key: there is no such key"),
    ],
)
def test_invalid_trace_setting_is_reported(file: Path, text: str, expected: str) -> None:
    assert refusal(file, GOOD + text).startswith(expected)


def test_a_short_file_is_completed_with_the_defaults(file: Path) -> None:
    config = loaded(file, GOOD)
    assert config.address == NodeAddress("n1", "127.0.0.1", 25672, 5672, 15672)
    assert (config.secrets, config.secret_file) == ((SECRET.encode(),), None)
    assert (config.default_user, config.default_password, config.loopback_users) == (
        "guest",
        "guest",
        ("guest",),
    )
    assert (config.election_timeout_min_s, config.election_timeout_max_s, config.heartbeat_s) == (
        1.0,
        2.0,
        0.1,
    )
    assert config.limits == NodeLimits()
    assert config.peer_addresses == "log"
    assert config.peer_tls is None
    assert config.tls is None
    assert (config.amqp_host, config.amqps_host) == ("127.0.0.1", "127.0.0.1")


def test_paths_are_relative_to_the_file(file: Path) -> None:
    assert loaded(file, GOOD).data_dir == file.parent / "data"


def test_the_environment_overrides_the_file(file: Path) -> None:
    config = loaded(
        file,
        GOOD,
        QQ_NODE_DATA_DIR="/elsewhere",
        QQ_CLUSTER_HEARTBEAT_S="0.25",
        QQ_LIMITS_CHANNEL_MAX="12",
        QQ_USERS_LOOPBACK_USERS="guest, admin",
    )
    assert config.data_dir == Path("/elsewhere")
    assert config.heartbeat_s == 0.25
    assert config.limits.channel_max == 12
    assert config.loopback_users == ("guest", "admin")


def test_empty_variable_allows_all_users_from_remote_hosts(file: Path) -> None:
    assert loaded(file, GOOD, QQ_USERS_LOOPBACK_USERS="").loopback_users == ()


def test_custom_default_user_needs_its_own_password(file: Path) -> None:
    text = GOOD + '[users]\ndefault_user = "admin"\n'
    config = loaded(file, text, QQ_USERS_DEFAULT_PASSWORD="hidden")
    assert (config.default_user, config.default_password) == ("admin", "hidden")
    assert not config.is_open_to_all
    assert not loaded(file, GOOD).is_open_to_all
    assert loaded(file, GOOD, QQ_USERS_LOOPBACK_USERS="").is_open_to_all
    assert not loaded(file, GOOD, QQ_USERS_LOOPBACK_USERS="", QQ_USERS_DEFAULT_PASSWORD="x").is_open_to_all
    local = text + 'default_password = "guest"\nloopback_users = ["admin"]\n'
    assert loaded(file, local).default_password == "guest"


def test_metrics_need_a_login_if_set(file: Path) -> None:
    assert not loaded(file, GOOD).metrics_need_login
    assert loaded(file, GOOD + "[listen]\nmetrics_need_login = true\n").metrics_need_login


def test_addresses_of_version_1_are_permitted_if_set(file: Path) -> None:
    assert not loaded(file, GOOD).amqp_address_v1
    assert loaded(file, GOOD, QQ_LISTEN_AMQP_ADDRESS_V1="true").amqp_address_v1


def test_networks_of_proxies(file: Path) -> None:
    assert loaded(file, GOOD).proxy_protocol_from == ()
    text = GOOD + '[listen]\nproxy_protocol_from = ["10.0.0.0/8", "fd00::/8", "192.0.2.1"]\n'
    assert loaded(file, text).proxy_protocol_from == ("10.0.0.0/8", "fd00::/8", "192.0.2.1")


def test_hosts_of_shovels(file: Path) -> None:
    assert loaded(file, GOOD).shovels_may_reach("anywhere")
    assert not loaded(file, GOOD + "[shovels]\nhosts = []\n").shovels_may_reach("anywhere")
    config = loaded(file, GOOD + '[shovels]\nhosts = ["Old.example", "10.0.0.1"]\n')
    assert [config.shovels_may_reach(host) for host in ("old.example", "10.0.0.1", "10.0.0.2")] == [
        True,
        True,
        False,
    ]
    assert not loaded(file, GOOD, QQ_SHOVELS_HOSTS="a, b").shovels_may_reach("c")


def test_the_secret_can_be_in_a_file_of_its_own(file: Path) -> None:
    (file.parent / "secret").write_text(SECRET + "\n")
    config = loaded(file, NODE + '[cluster]\nsecret_file = "secret"\n' + NODES)
    assert (config.secrets, config.secret_file) == ((SECRET.encode(),), file.parent / "secret")
    (file.parent / "secret").write_text(SECRET, encoding="utf-8-sig")  # as editors of Windows do
    assert read_secrets(file.parent / "secret") == config.secrets
    assert loaded(file, NODE + NODES, QQ_CLUSTER_SECRET_FILE=str(file.parent / "secret")) == config


JOINING = 'join = ["n2.qq:25672", "[::1]:5"]\n'


def test_a_node_that_joins_names_nodes_of_its_cluster(file: Path) -> None:
    seeds = (Seed("n2.qq", 25672), Seed("::1", 5))
    assert loaded(file, GOOD).join == ()
    assert loaded(file, NODE + CLUSTER + JOINING + NODES).join == seeds
    assert loaded(file, GOOD, QQ_CLUSTER_JOIN="n2.qq:25672, [::1]:5").join == seeds
    file.write_text(NODE + CLUSTER + JOINING + NODES)
    assert load(file, {}, [Seed("h", 1)]).join == (Seed("h", 1),), "what the command says counts more"


def test_automatic_replacement_and_upgrade_can_be_disabled(file: Path) -> None:
    config = loaded(file, GOOD)
    assert config.replace_emptied
    assert config.finish_upgrades
    manual = "replace_emptied = false\nfinish_upgrades = false\n"
    config = loaded(file, NODE + CLUSTER + manual + NODES)
    assert not config.replace_emptied
    assert not config.finish_upgrades


OTHER_SECRET = "fedcba9876543210"
BOTH = (SECRET.encode(), OTHER_SECRET.encode())


@pytest.mark.parametrize("between", ["\n", "\r\n", "\n\n", " \n  "])
def test_two_secrets_are_accepted_on_two_lines(file: Path, between: str) -> None:
    text = SECRET + between + OTHER_SECRET
    secret_file = file.parent / "secret"
    secret_file.write_text(text + between)
    assert loaded(file, GOOD.replace(f'"{SECRET}"', f'"""\n{text}\n"""')).secrets == BOTH
    assert loaded(file, NODE + NODES, QQ_CLUSTER_SECRET=text).secrets == BOTH
    assert loaded(file, NODE + NODES, QQ_CLUSTER_SECRET_FILE="secret").secrets == BOTH
    assert read_secrets(secret_file) == BOTH


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("short", "must have at least 16 characters on each line"),
        (f"{SECRET}\nshort", "must have at least 16 characters on each line"),
        (f"{SECRET}\n{SECRET}\n", "has the same secret twice"),
        (f"{SECRET}\n" * 3, "must be one secret, or 2 with a line each, not 3"),
        (" \n", "must be one secret, or 2 with a line each, not 0"),
    ],
)
def test_invalid_secret_is_reported(file: Path, text: str, expected: str) -> None:
    secret_file = file.parent / "secret"
    secret_file.write_text(text)
    assert (
        refusal(file, NODE + NODES, QQ_CLUSTER_SECRET=text) == f"environment: QQ_CLUSTER_SECRET: {expected}"
    )
    in_file = NODE + '[cluster]\nsecret_file = "secret"\n' + NODES
    assert refusal(file, in_file) == f"[cluster] secret_file: {expected}"
    with pytest.raises(ConfigError) as caught:
        read_secrets(secret_file)
    assert str(caught.value) == f"{secret_file}: {expected}"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
@pytest.mark.parametrize(("section", "key"), [("cluster", "secret"), ("users", "default_password")])
def test_unreadable_secret_file_is_reported(
    file: Path, section: str, key: str, content: bytes | None, expected: str
) -> None:
    hidden = file.parent / "hidden"
    if content is not None:
        hidden.write_bytes(content)
    text = GOOD if section == "users" else NODE + NODES
    in_file = text + f'[{section}]\n{key}_file = "hidden"\n'
    assert refusal(file, in_file) == f"[{section}] {key}_file: {hidden}: {expected}"
    variable = f"QQ_{section}_{key}_FILE".upper()
    assert refusal(file, text, **{variable: "hidden"}) == f"environment: {variable}: {hidden}: {expected}"
    assert refusal(file, text, **{variable: ""}) == f"environment: {variable}: must be a non-empty string"
    both = {variable: "hidden", variable.removesuffix("_FILE"): SECRET}
    assert refusal(file, text, **both) == (
        f"environment: {variable.removesuffix('_FILE')}: give either {key} or {key}_file"
    )


def test_default_password_is_read_from_a_file(file: Path) -> None:
    (file.parent / "password").write_text(" p4ss word \n")
    text = GOOD + '[users]\ndefault_user = "admin"\n'
    for config in (
        loaded(file, text + 'default_password_file = "password"\n'),
        loaded(file, text, QQ_USERS_DEFAULT_PASSWORD_FILE="password"),
    ):
        assert (config.default_user, config.default_password) == ("admin", " p4ss word ")


def test_the_peer_tls_files_are_read_together(file: Path) -> None:
    for name in ("cert", "key", "ca"):
        (file.parent / name).touch()
    config = loaded(file, GOOD + '[peer_tls]\ncert = "cert"\nkey = "key"\nca = "ca"\n')
    assert config.peer_tls is not None
    assert config.peer_tls.key == file.parent / "key"
    assert config.peer_tls.key_password_file is None


def test_the_passphrases_of_keys_are_in_files(file: Path) -> None:
    for name in ("cert", "key", "ca", "passphrase"):
        (file.parent / name).touch()
    peer_tls = '[peer_tls]\ncert = "cert"\nkey = "key"\nca = "ca"\nkey_password_file = "passphrase"\n'
    config = loaded(file, f"{GOOD_TLS}\n{peer_tls}", QQ_TLS_KEY_PASSWORD_FILE="passphrase")
    assert config.tls is not None
    assert config.peer_tls is not None
    passphrase = file.parent / "passphrase"
    assert config.tls.key_password_file == config.peer_tls.key_password_file == passphrase
    with pytest.raises(ConfigError, match=r"key_password_file: .*nowhere is not a file"):
        loaded(file, GOOD_TLS + '\nkey_password_file = "nowhere"\n')


def test_tls_for_clients(file: Path) -> None:
    here = file.parent
    config = loaded(file, GOOD_TLS)
    assert config.tls == ClientTls(here / "node.toml", here / "node.toml")
    assert config.address.amqps_port == 5671
    (here / "ca.pem").touch()
    more = """
    ca = "ca.pem"
    verify = "peer"
    fail_if_no_peer_cert = true
    minimum_version = "1.3"
    ciphers = "ECDHE"
    cert_login_from = "common_name"
    """
    config = loaded(file, GOOD_TLS + more)
    assert config.tls == ClientTls(
        here / "node.toml", here / "node.toml", here / "ca.pem", True, True, "1.3", "ECDHE", "common_name"
    )
    config = loaded(file, GOOD_TLS + more, QQ_TLS_FAIL_IF_NO_PEER_CERT="false", QQ_TLS_MINIMUM_VERSION="1.2")
    assert config.tls is not None
    assert (config.tls.fail_if_no_peer_cert, config.tls.minimum_version) == (False, "1.2")


def test_tls_for_http_needs_no_port_of_its_own(file: Path) -> None:
    http_tls = GOOD + TLS.replace("[tls]", "[http_tls]")
    config = loaded(file, http_tls, QQ_HTTP_TLS_MINIMUM_VERSION="1.3")
    here = file.parent
    assert config.http_tls == ClientTls(here / "node.toml", here / "node.toml", minimum_version="1.3")
    assert config.tls is None
    assert loaded(file, GOOD).http_tls is None


def test_amqps_host_defaults_to_the_amqp_host(file: Path) -> None:
    assert loaded(file, GOOD + '[listen]\namqp_host = "::"\n').amqps_host == "::"
    assert loaded(file, GOOD + '[listen]\namqp_host = "[::1]"\n').amqp_host == "::1"
    config = loaded(file, GOOD + '[listen]\namqps_host = "0.0.0.0"\n')
    assert (config.amqp_host, config.amqps_host) == ("127.0.0.1", "0.0.0.0")


def test_no_secret_is_in_the_representation(file: Path) -> None:
    config = loaded(file, GOOD + '[users]\ndefault_password = "hidden-password"\n')
    assert SECRET not in repr(config)
    assert "hidden-password" not in repr(config)


def test_common_settings_hide_passwords_but_distinguish_them(file: Path) -> None:
    file.write_text(GOOD)
    first = load(file, {}).common()
    assert first["[limits] frame_max"] == "131072"
    other_settings = {
        "QQ_USERS_DEFAULT_PASSWORD": "other",
        "QQ_LIMITS_FRAME_MAX": "4096",
        "QQ_CLUSTER_HEARTBEAT_S": "0.3",
    }
    second = load(file, other_settings).common()
    assert {name for name in first if first[name] != second[name]} == {
        "[cluster] heartbeat_s",
        "[limits] frame_max",
        "[users] default_password",
    }
    assert len(second["[users] default_password"]) == 4


def test_foreign_variables_with_the_prefix_are_ignored(file: Path) -> None:
    of_kubernetes = {
        "QQ_SERVICE_HOST": "10.0.0.1",
        "QQ_SERVICE_PORT": "5672",
        "QQ_SERVICE_PORT_AMQP": "5672",
        "QQ_PORT": "tcp://10.0.0.1:5672",
        "QQ_PORT_5672_TCP": "tcp://10.0.0.1:5672",
        "QQ_PORT_5672_TCP_ADDR": "10.0.0.1",
        "QQ_ORDERS_SERVICE_HOST": "10.0.0.2",
        "QQ_ORDERS_PORT": "tcp://10.0.0.2:5672",
    }
    assert loaded(file, GOOD, QQUERY="?", **of_kubernetes).name == "n1"


VALUES = {
    "frame_max": 4096,
    "memory_high_watermark": 0.5,
    "memory_high_watermark_bytes": 2**30,
    "catch_up_bytes_per_s": 2**24,
}


@pytest.mark.parametrize("limit", [limit.name for limit in fields(NodeLimits)])
def test_every_limit_can_be_set_and_is_above_zero(file: Path, limit: str) -> None:
    value = VALUES.get(limit, 7)
    config = loaded(file, GOOD + f"[limits]\n{limit} = {value}\n")
    assert config.limits == replace(NodeLimits(), **{limit: value})
    if limit not in _MAY_BE_ZERO:
        assert refusal(file, GOOD + f"[limits]\n{limit} = 0\n").endswith("above zero")


def test_the_largest_sizes_that_can_be_set_fit_into_an_entry() -> None:
    # Behind a batch that is almost full; its command, of method and header, is not larger than those two frames.
    message = stored_bytes_max(_MOST["message_bytes"], _MOST["frame_max"])
    beside = batch.BATCH_BYTES_MAX + 2 * _MOST["frame_max"]
    assert message + beside < BATCH_BYTES_MAX
    assert _MOST["transaction_bytes"] + beside < BATCH_BYTES_MAX
    assert _MOST["segment_bytes"] == SEGMENT_BYTES_MAX


def test_retained_bytes_may_be_0_and_intervals_fractional(file: Path) -> None:
    limits = loaded(
        file, GOOD + "[limits]\nretained_bytes = 0\n", QQ_LIMITS_CHECKPOINT_INTERVAL_S="0.5"
    ).limits
    assert (limits.retained_bytes, limits.checkpoint_interval_s) == (0, 0.5)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[node", "is not valid TOML: "),
        (CLUSTER + NODES, "[node] name: is missing"),
        (GOOD.replace('"data"', '""'), "[node] data_dir: must be a non-empty string"),
        (GOOD.replace('"n1"', '"n 1"'), "[node] name: 'n 1' must be 1 to 64 of A-Z a-z 0-9 _ . @ -"),
        (GOOD.replace('"n1"', '"."'), "[node] name: '.' must be 1 to 64 of A-Z a-z 0-9 _ . @ -, and neither"),
        (
            GOOD.replace('"n1"', '".."'),
            "[node] name: '..' must be 1 to 64 of A-Z a-z 0-9 _ . @ -, and neither",
        ),
        (GOOD.replace('"n1"', '"n2"', 1), "[node] name: 'n2' is not the name of one of the [[nodes]]"),
        (
            GOOD.replace("data_dir", 'log_level = "loud"\ndata_dir'),
            "[node] log_level: must be one of debug, ",
        ),
        (GOOD.replace("data_dir", "colour = 1\ndata_dir"), "[node] colour: there is no such key"),
        (GOOD + "[tuning]\n", "[tuning]: there is no such section"),
        ("limits = 3\n" + GOOD, "[limits]: must be a section"),
        ("stray = 3\n" + GOOD, "[stray]: there is no such section"),
        (NODE + NODES, "[cluster] secret: is missing"),
        (GOOD.replace(SECRET, "short"), "[cluster] secret: must have at least 16 characters"),
        (
            GOOD.replace("[cluster]", '[cluster]\nsecret_file = "x"'),
            "[cluster] secret: give either secret or secret_file",
        ),
        (
            GOOD.replace("[cluster]", '[cluster]\nheartbeat_s = "1"'),
            "[cluster] heartbeat_s: must be a number",
        ),
        (
            GOOD.replace("[cluster]", "[cluster]\nheartbeat_s = true"),
            "[cluster] heartbeat_s: must be a number",
        ),
        (
            GOOD.replace("[cluster]", "[cluster]\nheartbeat_s = nan"),
            "[cluster] heartbeat_s: must be a number of seconds",
        ),
        (
            GOOD.replace("[cluster]", "[cluster]\nheartbeat_s = 0"),
            "[cluster] heartbeat_s: must be a number of seconds",
        ),
        (
            GOOD.replace("[cluster]", "[cluster]\nheartbeat_s = 0.34"),
            "[cluster] heartbeat_s: must be less than a third of",
        ),
        (
            GOOD.replace("[cluster]", "[cluster]\nelection_timeout_min_s = 2"),
            "[cluster] election_timeout_max_s: must be above election_timeout_min_s",
        ),
        (GOOD + "[limits]\nframe_max = 0\n", "[limits] frame_max: must be a whole number above zero"),
        (
            GOOD + "[limits]\nconnection_publishes_per_s = -1\n",
            "[limits] connection_publishes_per_s: must be a whole number",
        ),
        (
            GOOD + "[limits]\nconnection_publish_bytes_per_s = 0.5\n",
            "[limits] connection_publish_bytes_per_s: must be a whole number",
        ),
        (GOOD + "[limits]\nframe_max = 4095\n", "[limits] frame_max: must be at least 4096"),
        (GOOD + "[limits]\nchannel_max = 70000\n", "[limits] channel_max: must be at most 65535"),
        (GOOD + "[limits]\nframe_max = 16777217\n", "[limits] frame_max: must be at most 16777216"),
        (
            GOOD + "[limits]\nwrite_buffer_bytes = 2147483648\n",
            "[limits] write_buffer_bytes: must be at most 2147483647",
        ),
        (
            GOOD + "[limits]\nconsumer_timeout_ms = 9223372036854775808\n",
            "[limits] consumer_timeout_ms: must be at most 9223372036854775807",
        ),
        (GOOD + "[limits]\nmessage_bytes = 134217729\n", "[limits] message_bytes: must be at most 134217728"),
        (
            GOOD + "[limits]\ntransaction_bytes = 134217729\n",
            "[limits] transaction_bytes: must be at most 134217728",
        ),
        (
            GOOD + "[limits]\nsegment_bytes = 4294967296\n",
            "[limits] segment_bytes: must be at most 4294967295",
        ),
        (
            GOOD + "[limits]\nmemory_high_watermark_bytes = 16777215\n",
            "[limits] memory_high_watermark_bytes: 16777215 must be at least message_bytes, 16777216",
        ),
        (
            GOOD + "[limits]\nmemory_high_watermark = 1.5\n",
            "[limits] memory_high_watermark: must be at most 1",
        ),
        (
            GOOD + "[limits]\nmemory_high_watermark = 0\n",
            "[limits] memory_high_watermark: must be a number above",
        ),
        (GOOD + "[limits]\nframe_max = 1.5\n", "[limits] frame_max: must be a whole number above zero"),
        (
            GOOD + "[limits]\nretained_bytes = -1\n",
            "[limits] retained_bytes: must be a whole number and not below zero",
        ),
        (
            GOOD + "[limits]\ncheckpoint_interval_s = 0\n",
            "[limits] checkpoint_interval_s: must be a number of seconds above zero",
        ),
        (
            GOOD + "[users]\nloopback_users = [1]\n",
            "[users] loopback_users: must be a list of non-empty strings",
        ),
        (
            GOOD + '[users]\nloopback_users = "guest"\n',
            "[users] loopback_users: must be a list of non-empty strings",
        ),
        (
            GOOD + '[users]\ndefault_user = "admin"\n',
            "[users] default_password: is missing, and default_user 'admin' needs one",
        ),
        (
            GOOD + '[users]\ndefault_user = "admin"\ndefault_password = "guest"\n',
            (
                "[users] default_password: 'guest' is public knowledge: choose a different password, or add 'admin' to "
                "loopback_users"
            ),
        ),
        (
            GOOD + '[listen]\nproxy_protocol_from = ["10.0.0.0/8", "balancer"]\n',
            "[listen] proxy_protocol_from: 'balancer' does not appear to be an IPv4 or IPv6 network",
        ),
        (
            GOOD + '[listen]\nproxy_protocol_from = ["10.0.0.1/8"]\n',
            "[listen] proxy_protocol_from: 10.0.0.1/8 has host bits set",
        ),
        (
            GOOD.replace(CLUSTER, CLUSTER + 'peer_addresses = "dns"\n'),
            "[cluster] peer_addresses: must be one of log, file",
        ),
        (GOOD + "[peer_tls]\n", "[peer_tls] cert: is missing"),
        (GOOD + '[peer_tls]\ncert = "none.pem"\n', "[peer_tls] cert: "),
        (NODE + CLUSTER, "[[nodes]]: must be given 1 to 7 times"),
        ("nodes = 3\n" + NODE + CLUSTER, "[[nodes]]: must be given 1 to 7 times"),
        (
            "nodes = [3]\n" + NODE + CLUSTER,
            "[[nodes]] number 1: must have the keys name, host, peer_port, amqp_port, http_port, may have amqps_port",
        ),
        (
            GOOD.replace("host", "hosts"),
            "[[nodes]] number 1: must have the keys name, host, peer_port, ",
        ),
        *(
            (
                GOOD.replace("[[nodes]]", f'join = ["{seed}"]\n[[nodes]]'),
                f"[cluster] join: '{seed}' must be HOST:PORT",
            )
            for seed in ("h", "h:", ":1", "h:0", "h:65536", "h:x")
        ),
        (GOOD + "amqps_port = 0\n", "[[nodes]] number 1: amqps_port: must be a port number, 1 to 65535"),
        (
            GOOD.replace("http_port = 15672", "http_port = 5672"),
            "[[nodes]] http_port of node 'n1': is its amqp_port, too, at 127.0.0.1",
        ),
        (GOOD + "amqps_port = 5671\n", "[tls] and an amqps_port of node 'n1' belong together"),
        (GOOD + TLS, "[tls] and an amqps_port of node 'n1' belong together"),
        (GOOD_TLS.replace("key = ", "# "), "[tls] key: is missing"),
        (GOOD_TLS.replace('"node.toml"', '"none.pem"', 1), "[tls] cert: "),
        (GOOD_TLS + 'verify = "all"\n', "[tls] verify: must be one of none, peer"),
        (GOOD_TLS + 'verify = "peer"\n', "[tls] ca: is missing, and verify = peer needs it"),
        (GOOD_TLS + "fail_if_no_peer_cert = true\n", "[tls] fail_if_no_peer_cert: needs verify = peer"),
        (GOOD_TLS + "fail_if_no_peer_cert = 1\n", "[tls] fail_if_no_peer_cert: must be true or false"),
        (GOOD_TLS + 'minimum_version = "1.1"\n', "[tls] minimum_version: must be one of 1.2, 1.3"),
        (
            GOOD_TLS + 'cert_login_from = "email"\n',
            "[tls] cert_login_from: must be one of distinguished_name, common_name",
        ),
        (GOOD_TLS + 'cipher = "ALL"\n', "[tls] cipher: there is no such key"),
        (
            GOOD + TLS.replace("[tls]", "[http_tls]") + 'cert_login_from = "common_name"\n',
            "[http_tls] cert_login_from: there is no such key",
        ),
        (
            GOOD.replace("5672\nhttp", "0\nhttp"),
            "[[nodes]] number 1: amqp_port: must be a port number, 1 to 65535",
        ),
        (GOOD.replace("5672\nhttp", "true\nhttp"), "[[nodes]] number 1: amqp_port: must be a port number"),
        (GOOD.replace('"127.0.0.1"', "127"), "[[nodes]] number 1: host: must be a non-empty string"),
        (GOOD + NODES, "[[nodes]] name: two nodes have the same"),
        (GOOD + NODES.replace("n1", "n2"), "[[nodes]] peer_port: two nodes have the same at the same host"),
    ],
)
def test_invalid_file_is_reported_in_a_single_line(file: Path, text: str, line: str) -> None:
    assert refusal(file, text).startswith(line)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("QQ_CLUSTER_HEARTBEAT_S", "soon", "environment: QQ_CLUSTER_HEARTBEAT_S: must be a number"),
        ("QQ_LIMITS_FRAME_MAX", "1e3", "environment: QQ_LIMITS_FRAME_MAX: must be a whole number above zero"),
        ("QQ_NODE_NAME", "", "environment: QQ_NODE_NAME: must be a non-empty string"),
        ("QQ_NODE_COLOUR", "red", "environment: QQ_NODE_COLOUR: there is no such key"),
        ("QQ_LISTEN_AMQP_PORT", "5673", "environment: QQ_LISTEN_AMQP_PORT: there is no such key"),
        ("QQ_CLUSTR_SECRET", SECRET, "environment: QQ_CLUSTR_SECRET: there is no such key"),
        ("QQ_SECRET", SECRET, "environment: QQ_SECRET: there is no such key"),
    ],
)
def test_invalid_variable_is_reported_in_a_single_line(
    file: Path, variable: str, value: str, line: str
) -> None:
    assert refusal(file, GOOD, **{variable: value}) == line


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"node\.toml: cannot be read: No such file or directory$"):
        load(tmp_path / "node.toml", {})


def test_file_that_is_not_text_is_reported(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"is not UTF-8 text$"):
        load(file, {})
