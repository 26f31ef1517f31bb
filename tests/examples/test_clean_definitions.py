"""The output of `clean_definitions.py` for RabbitMQ's definitions can be imported."""

from __future__ import annotations

import base64
import json
import runpy
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qq.machine.policy.queue_options import RABBITMQ_OPTIONS
from qq.routing.exchanges import DELAYED, EXCHANGE_TYPES

if TYPE_CHECKING:
    from qq.testing import LocalCluster

pytestmark = pytest.mark.xdist_group("examples")

PROGRAM = Path(__file__).parents[2] / "examples" / "clean_definitions.py"


def policy(name: str, **definition: object) -> dict[str, Any]:
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    return {
        "vhost": "/",
        "name": name,
        "pattern": "^no",
        "apply-to": "all",
        "priority": 0,
        "definition": keys,
    }


def queue(name: str, kind: str) -> dict[str, Any]:
    return {
        "vhost": "/",
        "name": name,
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-queue-type": kind},
    }


def binding(source: str, destination: str) -> dict[str, Any]:
    return {
        "vhost": "/",
        "source": source,
        "destination": destination,
        "destination_type": "queue",
        "routing_key": "k",
        "arguments": {},
    }


RABBITMQ = {
    "queues": [queue("kept", "quorum"), queue("log", "stream")],
    "exchanges": [
        {
            "vhost": "/",
            "name": "recent",
            "type": "x-recent-history",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        }
    ],
    "bindings": [
        binding("amq.topic", "kept"),
        binding("amq.topic", "log"),
        binding("recent", "kept"),
    ],
    "policies": [
        policy("mirrors", ha_mode="all"),
        policy("mixed", federation_upstream_set="all", max_length=5),
    ],
}


def test_cleaned_rabbitmq_definitions_are_imported(cluster: LocalCluster) -> None:
    node = cluster.nodes[0].http_port
    assert post(node, RABBITMQ) == 400
    cleaned = subprocess.run(
        [sys.executable, str(PROGRAM)], input=json.dumps(RABBITMQ), capture_output=True, text=True, check=True
    )
    assert cleaned.stderr.splitlines() == [
        "left out: queue 'log' of type stream",
        "left out: exchange 'recent' of type x-recent-history",
        "left out: of policy 'mirrors': ha-mode",
        "left out: of policy 'mixed': federation-upstream-set",
    ]
    document = json.loads(cleaned.stdout)
    assert [each["destination"] for each in document["bindings"]] == ["kept"]
    assert [each["definition"] for each in document["policies"]] == [{"max-length": 5}]
    assert post(node, document) == 204


def test_program_lists_the_policy_keys_and_exchange_types_of_qq() -> None:
    of_rabbitmq = {option.name for option in RABBITMQ_OPTIONS if option.policy is not None}
    program = runpy.run_path(str(PROGRAM))
    assert program["POLICY_KEYS"] == of_rabbitmq
    assert program["EXCHANGE_TYPES"] == {*EXCHANGE_TYPES, DELAYED}


def post(port: int, document: dict[str, Any]) -> int:
    credentials = base64.b64encode(b"guest:guest").decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/definitions",
        json.dumps(document).encode(),
        {"Authorization": f"Basic {credentials}"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code
