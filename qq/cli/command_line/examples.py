"""Examples in the help of commands."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "qq archive analyze": ("qq archive analyze /archive/dead --page dead.html --since 2026-11-01",),
    "qq archive delete": ("qq archive delete /archive/orders --older-than 90",),
    "qq archive messages": (
        "qq archive messages /archive/orders --queue orders",
        "qq archive messages s3://bucket/dead --pattern 'dead-.*' --keep",
    ),
    "qq archive replay": ("qq archive replay /archive/dead --id monday --exchange orders --reason rejected",),
    "qq backup": ("qq backup /backups/monday",),
    "qq change-password": ("qq change-password --name app",),
    "qq change-tags": ("qq change-tags --name app --tags monitoring",),
    "qq check ready": ("qq check ready --wait 30 --url n2:15672",),
    "qq check safe-to-stop": ("qq check safe-to-stop --node n2 --timeout 60",),
    "qq close connections": ("qq close connections --for-user app --reason 'new password'",),
    "qq config set": (
        "qq config set --name log_level --value debug",
        "qq config set --name memory_high_watermark --value 0.8 --all-nodes",
    ),
    "qq config show": ("qq config show --name disk",),
    "qq context add": (
        "qq context add shop --url https://n1:15672 --url https://n2:15672 --user admin --password-file ~/.shop",
    ),
    "qq declare binding": (
        "qq declare binding --source amq.topic --destination orders --routing-key 'order.#'",
    ),
    "qq declare exchange": ("qq declare exchange --name events --type topic",),
    "qq declare operator-policy": (
        """qq declare operator-policy --name bound --pattern '' --definition '{"max-length": 1000000}'""",
    ),
    "qq declare parameter": (
        """qq declare parameter --component shovel --name mover --value '{"src-uri": "amqp://", "src-queue": "a", \
"dest-uri": "amqp://other", "dest-queue": "b"}'""",
    ),
    "qq declare permission": (
        "qq declare permission --vhost shop --for-user app --configure '' --write '.*' --read '.*'",
    ),
    "qq declare policy": (
        """qq declare policy --name bound --pattern '^tasks' --definition '{"max-length": 1000}' --apply-to queues""",
    ),
    "qq declare queue": (
        "qq declare queue --name orders --type quorum",
        """qq declare queue --name orders --type quorum --arguments '{"x-delivery-limit": 5}'""",
    ),
    "qq declare user": ("qq declare user --name app --tags monitoring",),
    "qq declare user-limit": ("qq declare user-limit --for-user app --name max-connections --value 50",),
    "qq declare vhost": ("qq declare vhost --name shop --default-queue-type quorum",),
    "qq declare vhost-limit": ("qq declare vhost-limit --vhost shop --name max-queues --value 1000",),
    "qq definitions export": ("qq definitions export definitions.json",),
    "qq definitions import": ("qq definitions import definitions.json --vhost shop",),
    "qq delete queue": ("qq delete queue --name orders --if-empty",),
    "qq drain": ("qq drain n2 --timeout 60",),
    "qq get messages": ("qq get messages --queue orders --count 2",),
    "qq leader transfer": ("qq leader transfer --to n3",),
    "qq list connections": (
        "qq list connections --columns user_provided_name,name,client_properties.product",
    ),
    "qq list permissions": ("qq list permissions --for-user app",),
    "qq list queues": (
        "qq list queues --sort messages --reverse",
        "qq list queues --vhost shop --regex '^order' --columns name,messages --output csv",
    ),
    "qq member add": ("qq member add n4 10.0.0.4:25672",),
    "qq memory": ("qq memory --node n2",),
    "qq move messages": ("qq move messages --from orders.dead --to-origin",),
    "qq peek messages": ("qq peek messages --queue orders --count 2",),
    "qq publish message": ("qq publish message --routing-key orders --payload hello",),
    "qq purge queue": ("qq purge queue --name orders",),
    "qq rescue-admin": ("qq rescue-admin --config /etc/qq/node.toml --name admin",),
    "qq restore": ("qq restore /backups/monday --config /etc/qq/node.toml",),
    "qq serve": ("qq serve --config /etc/qq/node.toml --check", "qq serve --config /etc/qq/node.toml"),
    "qq status": ("qq status --url n1:15672 --url n2:15672", "qq status --output json"),
    "qq top": ("qq top queues --once",),
    "qq up": ("qq up --nodes 3 --data-dir ./var",),
}
"""Full name of a command -> command lines that show its use."""
