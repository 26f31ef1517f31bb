"""How much memory the process has and may have."""

from __future__ import annotations

from mmap import mmap
from pathlib import Path

import pytest

from qq.process.memory import available_bytes, give_back, group_limits, resident_bytes

GIB = 1 << 30


def test_resident_memory_includes_new_mappings() -> None:
    before = resident_bytes()
    # Not from the heap, which may still have memory of earlier tests.
    with mmap(-1, 64 << 20) as ballast:
        ballast[::4096] = b"x" * len(ballast[::4096])
        assert 60 << 20 < resident_bytes() - before < 80 << 20


def test_freed_memory_between_kept_blocks_is_returned() -> None:
    give_back()
    before = resident_bytes()
    blocks = [bytes(4000) for _ in range(32_000)]
    kept = blocks[::50]
    del blocks
    freed = resident_bytes()
    give_back()
    assert len(kept) * 4000 < resident_bytes() - before < 20 << 20
    assert freed - resident_bytes() > 80 << 20, "the heap does so by itself"


def test_it_may_take_more_than_it_has() -> None:
    assert resident_bytes() < available_bytes()


@pytest.mark.parametrize(
    ("own_groups", "files", "limits"),
    [
        ("0::/\n", {"memory.max": "max\n"}, []),
        ("0::/\n", {"memory.max": f"{GIB}\n"}, [GIB]),
        ("0::/a/b\n", {"a/b/memory.max": f"{GIB}\n", "a/memory.max": f"{2 * GIB}\n"}, [GIB, 2 * GIB]),
        ("0::/of/the/host\n", {"memory.max": f"{GIB}\n"}, [GIB]),
        ("5:cpu:/a\n4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": f"{GIB}\n"}, [GIB]),
        ("4:hugetlb,memory:/a\n", {"memory/memory.limit_in_bytes": f"{GIB}\n"}, [GIB]),
        ("0::/\n", {}, []),
    ],
)
def test_memory_limit_is_that_of_the_control_group(
    tmp_path: Path, own_groups: str, files: dict[str, str], limits: list[int]
) -> None:
    (tmp_path / "own").write_text(own_groups)
    for name, text in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert group_limits(tmp_path / "own", tmp_path / "groups") == limits


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert group_limits(tmp_path / "none", tmp_path) == []
