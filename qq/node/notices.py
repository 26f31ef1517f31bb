"""Log lines of a starting node about differences between its configuration and its log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from qq.node.part_settings import addresses

if TYPE_CHECKING:
    from cluster.group.group import Group
    from qq.config import NodeConfig

log = logging.getLogger(__name__)


def log_new_cluster(config: NodeConfig, group: Group) -> None:
    """Log that this node starts a new cluster, which may be a mistake: it may have lost its disk."""
    is_new = group.last_index <= 1  # every log begins with a single entry
    if is_new and len(config.nodes) == 1 and not config.join:
        log.info(
            "the data directory is new, and [[nodes]] lists no other node: this node begins a cluster of its own; "
            "to join one, it needs `join`"
        )


def log_differences(config: NodeConfig, group: Group) -> None:
    """Log the differences between the members in the configuration and those in the log, which count."""
    agreed = group.configurations.newest
    if config.join or not agreed.cluster:
        return
    listed = addresses(config.nodes)
    members = {member.name: member.address for member in agreed.members}
    differences = [f"{name} is not listed" for name in sorted(members.keys() - listed)]
    differences += [f"{name} is no member" for name in sorted(listed.keys() - members)]
    if config.peer_addresses == "log":
        differences += [
            f"{name} is at {members[name]} and not at {listed[name]}"
            for name in sorted((listed.keys() & members) - {config.name})
            if listed[name] != members[name]
        ]
    if differences:
        log.warning("the members are those in the log, not those in [[nodes]]: %s", ", ".join(differences))
