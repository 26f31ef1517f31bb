"""The versions of the state: what entries do, and how the state is written.

An entry goes by the version that the log has agreed on before it (`Core.version`), never by what the program can run:
so nodes with different programs do the same. What a version has done once it was released, it does for ever.
"""

from __future__ import annotations

VERSIONS = (7, 9)
"""The lowest and the highest version that this program can run: that of the release before, and its own.

7: release 0.1.
8: the log tells who the members are (cluster/configuration/configuration.py). Virtual hosts may be protected from
deletion; there are parameters, of virtual hosts and of the cluster. A node may vouch for users whom it knows by a
token. Messages may be moved from queue to queue. A user's publishers are its own, and a message that was returned may
be published again with its number. Policies may have negative priorities. Several messages may be got at once. Large
messages may be stored in fragments. 9: time in which the cluster could serve nobody does not count as idle time of a
queue (`x-expires`). The answer to basic.get tells which headers count deliveries. With a single active consumer,
basic.get works at a classic queue, and the flag `exclusive` has no effect at a quorum queue. Arguments of stream
consumers are refused, and `x-cancel-on-ha-failover` may be of any type. Policies may have the settings of streams and
`queue-master-locator`.
"""


def known() -> str:
    """The versions that this program can run, for whoever reads of another one."""
    return f"{VERSIONS[0]} to {VERSIONS[1]}"
