"""The command `qq` with a node that only listens on its ports, so that commands can be tested without a cluster.

`up`, `serve` and `status` are the real commands. Environment variables choose the fault: STUB_REFUSES=n2 (cannot
start), STUB_STUBBORN=n2 (does not stop), STUB_HANGS=n2 (its event loop hangs), STUB_CHATTY=n2 (fills its log),
STUB_REMOVED=n2 (was removed), STUB_LEADER=n2 (leads). With STUB_LISTENS=yes it knows no answers and starts sooner.
"""

from __future__ import annotations

import importlib
import sys
import types
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qq.config import NodeConfig

STOP_TIMEOUT_S = 1.0


async def run(config: NodeConfig) -> None:
    from qq.cli.local import serve  # noqa: PLC0415
    from tests.cli import stub_node  # noqa: PLC0415 -- most commands are none that serve

    serve.STOP_TIMEOUT_S = STOP_TIMEOUT_S * 2
    await stub_node.run(config)


def main() -> int:
    node = types.ModuleType("qq.node")
    node.run = run  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["qq.node"] = node
    commands = importlib.import_module("qq.cli.local.up")
    commands._STOP_TIMEOUT_S = STOP_TIMEOUT_S
    commands.up = partial(commands.up, serve_command=(sys.executable, __file__, "serve"))
    from qq.__main__ import run as run_command  # noqa: PLC0415 -- only now, with the stub in place

    return run_command()


if __name__ == "__main__":
    sys.exit(main())
