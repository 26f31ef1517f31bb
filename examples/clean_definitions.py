"""Remove unsupported objects and keys from RabbitMQ's definitions, and list them.

python clean_definitions.py < definitions.json > clean.json

Removed are streams, exchanges of unsupported types, the bindings of both, and keys of policies for unsupported features
(mirroring, federation).
"""

import json
import sys
from typing import Any

Document = dict[str, Any]

EXCHANGE_TYPES = {
    *("direct", "fanout", "topic", "headers"),
    *("x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random", "x-delayed-message"),
}
QUEUE_TYPES = {"classic", "quorum"}
POLICY_KEYS = {
    *("alternate-exchange", "consumer-disconnected-timeout", "consumer-timeout", "dead-letter-exchange"),
    *("dead-letter-routing-key", "dead-letter-strategy", "delayed-retry-max", "delayed-retry-min"),
    *("delayed-retry-type", "delivery-limit", "expires", "max-in-memory-bytes", "max-in-memory-length"),
    *("max-length", "max-length-bytes", "message-ttl", "overflow", "queue-leader-locator", "queue-mode"),
    *("queue-version", "target-group-size", "queue-master-locator", "max-age", "initial-cluster-size"),
    *("stream-filter-size-bytes", "stream-max-segment-size-bytes"),
}


def clean(document: Document) -> list[str]:
    """Change the document; return the removed objects and keys."""
    left_out: list[str] = []
    gone: set[tuple[str, str, str]] = set()
    for kind, known in (("queue", QUEUE_TYPES), ("exchange", EXCHANGE_TYPES)):
        kept = []
        for each in document.get(f"{kind}s", []):
            its_type = type_of(kind, each)
            if its_type in known:
                kept.append(each)
            else:
                gone.add((vhost_of(each), kind, each["name"]))
                left_out.append(f"{kind} {each['name']!r} of type {its_type}")
        document[f"{kind}s"] = kept
    document["bindings"] = [
        each
        for each in document.get("bindings", [])
        if (vhost_of(each), "exchange", each["source"]) not in gone
        and (vhost_of(each), each["destination_type"], each["destination"]) not in gone
    ]
    for policy in list(document.get("policies", [])):
        unknown = policy["definition"].keys() - POLICY_KEYS
        if unknown:
            left_out.append(f"of policy {policy['name']!r}: {', '.join(sorted(unknown))}")
        policy["definition"] = {
            key: policy["definition"][key] for key in policy["definition"].keys() - unknown
        }
        if not policy["definition"]:
            document["policies"].remove(policy)
    return left_out


def type_of(kind: str, each: Document) -> str:
    return each["type"] if kind == "exchange" else each.get("arguments", {}).get("x-queue-type", "classic")


def vhost_of(each: Document) -> str:
    """Definitions of a single virtual host do not name it."""
    return each.get("vhost", "")


if __name__ == "__main__":
    definitions = json.load(sys.stdin)
    for line in clean(definitions):
        print(f"left out: {line}", file=sys.stderr)
    json.dump(definitions, sys.stdout, indent=2)
