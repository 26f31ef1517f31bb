"""The data directory of each release, made by its own program (make.py), has the same contents with this program."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from qq.testing import LocalCluster
from tests.golden.golden_story import SETTINGS, seen
from tests.harness.releases import ROOT

GOLDEN = sorted(Path(__file__).parent.glob("*.tar.gz"))

pytestmark = [pytest.mark.xdist_group("releases"), pytest.mark.timeout(60)]


def without_counts_of_classic_queues(found: dict[str, Any]) -> None:
    """Remove the header x-delivery-count from messages of classic queues, which had it up to release 0.2."""
    types = {f"{queue['vhost']} {queue['name']}": queue["type"] for queue in found["queues"]}
    for queue, messages in found["messages"].items():
        if types[queue] == "quorum":
            continue
        for message in messages:
            for _, headers in [each for each in message[4] if each[0] == "headers"]:
                headers.pop("x-delivery-count", None)
            message[4] = [each for each in message[4] if each != ["headers", {}]]


def with_descriptions_beside_metadata(found: dict[str, Any]) -> None:
    """Show description and tags of virtual hosts in definitions twice, as RabbitMQ does and release 0.2 did not."""
    for vhost in found["definitions"]["vhosts"]:
        vhost |= vhost["metadata"]


def inspect(directory: Path) -> None:
    """Have the program look through the files of a node that does not run."""
    done = subprocess.run([sys.executable, "-m", "qq", "inspect", str(directory)], cwd=ROOT, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_clients_see_the_state_that_the_older_release_stored(golden: Path, tmp_path: Path) -> None:
    with tarfile.open(golden) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has no filters
        archive.extractall(tmp_path / "n1")
    expected = json.loads(golden.with_name(golden.name.replace(".tar.gz", ".json")).read_text())
    expected["queues"].sort(key=lambda queue: (queue["vhost"], queue["name"]))  # as lists are told by now
    without_counts_of_classic_queues(expected)
    with_descriptions_beside_metadata(expected)
    inspect(tmp_path / "n1" / "data")
    with LocalCluster(1, tmp_path, SETTINGS) as cluster:
        [node] = cluster.nodes
        assert seen(node) == expected
    inspect(tmp_path / "n1" / "data")
