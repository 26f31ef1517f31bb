"""The versions of the state: the effect of each entry, and the format of a dump.

An entry follows the version that the log agreed on before it (`Core.version`), never the version that the program could
run. So nodes with different programs compute the same state. The meaning of a released version never changes.
"""

from __future__ import annotations

VERSIONS = (7, 13)
"""The lowest and the highest version that this program can run: the previous release's version, and its own.

7: release 0.1.

8: the log holds the list of members (cluster/configuration/configuration.py). Virtual hosts may be protected from
deletion. Virtual hosts and the cluster have parameters. A node may vouch for a user that it knows by a token. Messages
may be moved from queue to queue. Each user has publishers of its own, and a returned message may be published again
with its number. Policies may have negative priorities. A single command may get several messages. Large messages may be
stored in fragments.

9: time during which the cluster could serve no client does not count as idle time of a queue (`x-expires`). The answer
to basic.get says which headers count deliveries. With a single active consumer, basic.get works at a classic queue, and
the flag `exclusive` has no effect at a quorum queue. Arguments of stream consumers are refused, and
`x-cancel-on-ha-failover` may be of any type. Policies may have the settings of streams and `queue-master-locator`.

10: the last administrator with a password stays, unless a command of its own takes the tag away.

11: the log says when a member's data directory was lost or replaced. Routing keys and names of fields may have octets
that are not UTF-8, and so may `x-dead-letter-routing-key`. Arguments of queues and consumers that RabbitMQ 4.0 does not
know may have any value. With at-least-once, dead letters that their targets cannot take do not hold up those behind
them. A move may be for messages with a text. A command that would change nothing may be answered by a read of the
leader's commit index, without an entry. Dead letters keep the number of their failed deliveries in quorum queues.

12: queues may have groups, which lease messages. Sinks publish messages epoch by epoch. The leader may keep an
acknowledgement that no client waits for, until its next entry. An exchange has the name of the user that declared
it. Of the consumers that wait for the shared limit of their channel, those with the highest priority in their queue
come first.

13: a client may set the credit of its consumer, drain it, and learn when it becomes the single active consumer (AMQP
1.0). A returned message may be a failed delivery or not, whatever the queue counts, and may get annotations.
Deliveries to such a consumer time out without ending it. Messages may be sections of AMQP 1.0; the command that
publishes them has channel 0."""

OCTETS_SINCE = 11
"""The first version at which the log may hold routing keys and names of fields that are not UTF-8."""


def octets_need_version(version: int) -> str:
    """Return the reason for refusing such octets at an older version of the state."""
    return f"octets that are not UTF-8 need version {OCTETS_SINCE} of the state; the cluster has version {version}"


def known() -> str:
    """Return the range of versions that this program can run, for messages about an unknown version."""
    return f"{VERSIONS[0]} to {VERSIONS[1]}"
