from __future__ import annotations

from pathlib import Path

import pytest

from ett.control_group import memory_left


def limited(folder: Path, limit: str, used: int, stat: str, *, version: int = 2) -> None:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip((*names, "memory.stat"), (limit, str(used), stat), strict=True):
        (folder / name).write_text(f"{text}\n")


def left(root: Path, line: str) -> int | None:
    (root / "own").write_text(f"{line}\n")
    return memory_left(root / "own", root / "mount")


def test_what_the_kernel_can_drop_is_left(tmp_path: Path) -> None:
    limited(tmp_path / "mount" / "job", "900", 890, "anon 5\ninactive_file 100\nactive_file 20\nslab_reclaimable 3")
    assert left(tmp_path, "0::/job") == 133


def test_the_first_version_has_other_names_and_counts_the_groups_below_by_itself(tmp_path: Path) -> None:
    stat = "inactive_file 1\nactive_file 1\ntotal_inactive_file 100\ntotal_active_file 20"
    limited(tmp_path / "mount" / "memory" / "job", "900", 890, stat, version=1)
    assert left(tmp_path, "4:cpu,memory:/job") == 130


def test_a_group_above_may_have_less_left(tmp_path: Path) -> None:
    limited(tmp_path / "mount" / "pod" / "job", "max", 10, "inactive_file 0")
    limited(tmp_path / "mount" / "pod", "500", 400, "inactive_file 0")
    limited(tmp_path / "mount", "600", 400, "inactive_file 0")
    limited(tmp_path, "0", 400, "inactive_file 0")  # no group: above the mount
    assert left(tmp_path, "0::/pod/job") == 100


def test_a_container_may_see_its_own_group_under_the_hosts_name(tmp_path: Path) -> None:
    limited(tmp_path / "mount", "500", 400, "inactive_file 7")
    assert left(tmp_path, "0::/docker/abc") == 107


@pytest.mark.parametrize("line", ["0::/job", "1:cpu:/job", ""])
def test_a_process_of_no_limited_group_is_told_of_none(line: str, tmp_path: Path) -> None:
    limited(tmp_path / "mount" / "job", "max", 400, "inactive_file 7")
    assert left(tmp_path, line) is None
