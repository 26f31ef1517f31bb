"""`python -m chaos run|check|report|campaign`: hurt a cluster, judge the history, show it; or do that many times.

`python -m chaos.sim` and `python -m chaos.fuzz` are programs of their own.
"""

from __future__ import annotations

import argparse
import sys


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description="Hurt a real cluster and decide whether it broke a promise."
    )
    parser.add_argument("command", choices=("run", "check", "report", "campaign"), help="each has a --help")
    command = parser.parse_args(argv[:1]).command
    # Imported late, because each needs a large package that the rest does not need: clients, Spark, a plotting library.
    try:
        match command:
            case "run":
                from chaos.live.command import main as carry_out  # noqa: PLC0415
            case "check":
                from chaos.pipeline.job import main as carry_out  # noqa: PLC0415
            case "campaign":
                from chaos.campaign import main as carry_out  # noqa: PLC0415
            case _:
                from chaos.report import main as carry_out  # noqa: PLC0415
    except ModuleNotFoundError as error:
        install = "pip install --require-hashes -r requirements/chaos.txt"
        print(
            f"python -m chaos {command}: {error.name} is missing; install it with: {install}", file=sys.stderr
        )
        return 1
    return carry_out(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
