"""The root command `qq`: its commands and the sections of its help."""

from __future__ import annotations

import click

from qq import __version__
from qq.cli.command_line.tree import Entry, Root

NAME = "qq"
COMPLETION_VARIABLE = "_QQ_COMPLETE"
"""Environment variable by which a shell requests completions (commands/completion.py)."""
SECTIONS = {
    "Nodes": (
        Entry("up", "up", "run a local cluster until Ctrl-C"),
        Entry("serve", "serve", "run a node until SIGTERM"),
    ),
    "The cluster": (
        Entry("status", "status", "show the state of the cluster and of each node"),
        Entry("doctor", "doctor", "show problems and limits of the cluster, with advice"),
        Entry("leader", "leadership", "show or change the leader"),
        Entry("member", "members", "show or change the members of the cluster"),
        Entry("drain", "members", "move leadership and clients away from a node"),
        Entry("revive", "members", "end the maintenance that `qq drain` has begun"),
        Entry("check", "leadership", "check whether an action is safe; exit status 0 means yes"),
        Entry("config", "config", "show settings of a node, or change some until its next start"),
        Entry("memory", "memory", "show the parts of a node's memory"),
        Entry("upgrade", "members", "switch to the next version of the state"),
    ),
    "What is in it": (
        Entry("list", "list", "list queues, exchanges, connections, users, ..."),
        Entry("top", "top", "show the busiest queues and connections, live"),
        Entry("declare", "declare", "make a queue, an exchange, a user, a policy, ..."),
        Entry("delete", "delete", "remove a queue, an exchange, a user, a policy, ..."),
        Entry("definitions", "definitions", "export or import all declared objects"),
        Entry("change-password", "change_user", "give a user a new password"),
        Entry("change-tags", "change_user", "give a user other tags"),
        Entry("rescue-admin", "rescue", "make an administrator without a login, on the node's machine"),
        Entry("close", "close", "close connections of clients, a group with leases, or a sink"),
    ),
    "Messages": (
        Entry("publish", "messages", "publish a message and wait for the confirm"),
        Entry("get", "messages", "get messages, as a consumer would"),
        Entry("peek", "messages", "print messages without consuming or changing them"),
        Entry("move", "move", "move messages to another queue, or back to where they died"),
        Entry("release", "release", "return the messages of a lease to their queue"),
        Entry("purge", "messages", "remove all ready messages of a queue"),
    ),
    "Data": (
        Entry("archive", "archive", "keep messages in Parquet files, and use these (needs Spark)"),
        Entry("backup", "backup", "make a backup of a running cluster"),
        Entry("restore", "restore", "begin a new cluster from a backup"),
        Entry("recover", "restore", "begin a new cluster from the data of a surviving node"),
        Entry("inspect", "inspect", "check the data of a stopped node, or a backup"),
    ),
    "This command": (
        Entry("help", "help", "show the help of a command"),
        Entry("context", "context", "name clusters, and choose the cluster that commands use"),
        Entry("completion", "completion", "print the completion script of a shell"),
    ),
}

root = Root(
    package="qq.cli.commands",
    sections=SECTIONS,
    name=NAME,
    help="A message broker with replicated queues.",
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=True,
)
click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")(root)
