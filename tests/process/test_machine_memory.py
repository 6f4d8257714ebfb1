"""What memory a control group leaves, in the ways in which the system says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bunqueue.server.host.machine_memory import LEAST_SHARE, MIB, group_limits, memory_here, share_of
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.settings import Settings, load_settings

ENVIRON = {"HOME": "/home/someone"}


def limit(tmp_path: Path, groups: str, files: dict[str, str]) -> int:
    """The least of the limits, in MiB."""
    for name, text in files.items():
        file = tmp_path / "mounted" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "cgroup").write_text(groups)
    return min(group_limits(tmp_path / "cgroup", tmp_path / "mounted")) // MIB


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/\n", {"memory.max": f"{100 * MIB}\n"}, 100),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{90 * MIB}\n"}, 90),
        ("0::/a/b\n", {"a/b/memory.max": f"{80 * MIB}\n", "a/memory.max": f"{90 * MIB}\n"}, 80),
        ("0::/of/the/host\n", {"memory.max": f"{70 * MIB}\n"}, 70),
        ("0::/a\n", {"unified/a/memory.max": f"{60 * MIB}\n"}, 60),
        ("4:cpu,memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": f"{50 * MIB}\n"}, 50),
    ],
)
def test_the_least_limit_holds(tmp_path: Path, groups: str, files: dict[str, str], found: int) -> None:
    assert limit(tmp_path, groups, files) == found


def test_without_a_limit_it_is_the_machines_memory(tmp_path: Path) -> None:
    machine = limit(tmp_path, "", {})
    assert machine > 100
    unlimited = {"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory.max": "max\n"}
    assert limit(tmp_path, "4:memory:/\n0::/\n", unlimited) == machine
    assert min(group_limits(tmp_path / "missing", tmp_path)) // MIB == machine
    assert 256 <= memory_here() // MIB <= max(256, machine)


def test_shares() -> None:
    assert share_of(0, 2) == 0
    assert share_of(2048 * MIB, 2) == 768 * MIB
    assert share_of(256 * MIB, 64) == LEAST_SHARE


@pytest.mark.parametrize(("text", "mib"), [("2G", 2048), ("512M", 512), ("268435456", 256), ("0", 0)])
def test_the_setting_takes_units(tmp_path: Path, text: str, mib: int) -> None:
    assert load_settings({"memory_limit": text}, ENVIRON).memory_limit == mib * MIB
    file = tmp_path / "c.toml"
    file.write_text(f'memory_limit = "{text}"')
    assert load_settings({"config": str(file)}, ENVIRON).memory_limit == mib * MIB


@pytest.mark.parametrize("text", ["1M", "2g", "-1", "2GB", "", "1.5G"])
def test_the_setting_refuses(text: str) -> None:
    with pytest.raises(
        SettingsError, match=r"bytes, or with a unit such as 512M or 2G .* from 256M on, or 0"
    ):
        load_settings({"memory_limit": text}, ENVIRON)
    with pytest.raises(SettingsError):
        Settings(memory_limit=1)
