"""Make a golden directory with a version's own program: `python -m tests.golden.make 0.1`.

It is stored as `VERSION.tar.gz`, and its state, as a client sees it after a restart of that program, as
`VERSION.json`. The present program makes the directory of an unreleased version, anew until its release; the
directory of a release is never made again.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pika.exceptions

from qq.testing import LocalCluster
from tests.golden.golden_story import SETTINGS, is_settled, live_first_part, live_second_part, seen
from tests.harness.releases import COMMITS, ROOT, running, unpack_release

HERE = Path(__file__).parent
PATIENCE_S = 2.0
"""A checkpoint is written at once and becomes valid a moment later."""


def make(version: str, directory: Path) -> None:
    program = ROOT
    if version in COMMITS:
        program = directory / "program"
        unpack_release(version, program)
    with running(program), LocalCluster(1, directory / "cluster", SETTINGS) as cluster:
        [node] = cluster.nodes
        live_first_part(node)
        time.sleep(PATIENCE_S)
        connection = live_second_part(node)
        while not is_settled(node):
            time.sleep(0.1)
        node.kill()
        with suppress(pika.exceptions.AMQPError):
            connection.close()
        with tarfile.open(HERE / f"{version}.tar.gz", "w:gz") as archive:
            archive.add(node.log.parent / "data", "data")
        node.start()
        node.wait_ready()
        text = json.dumps(seen(node), indent=1, ensure_ascii=False)
        (HERE / f"{version}.json").write_text(text + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "cluster").mkdir()
        make(sys.argv[1], Path(made))
