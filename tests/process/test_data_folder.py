"""A data folder serves the number of shards it was made for, and no newer format."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from bunqueue.server.folder.data_folder import (
    DataFolderError,
    open_data_folder,
    own_data_folder,
    read_manifest,
)
from bunqueue.server.settings.settings import Settings
from router.process import RouterProcess
from router.processes.launcher import Launcher


def refusal(folder: Path, shards: int) -> str:
    with pytest.raises(DataFolderError) as error:
        open_data_folder(folder, shards)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_new_folder_is_private_and_says_for_how_many_shards_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    open_data_folder(folder, 4)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    found = json.loads((folder / "manifest.json").read_text())
    assert found == {"format": 1, "shards": 4, "id": found["id"]}
    assert len(found["id"]) == 16
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]


def test_new_folders_survive_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda number: synced.add(os.fstat(number).st_ino))
    folder = tmp_path / "deep" / "data"
    open_data_folder(folder, 4)
    assert synced >= {path.stat().st_ino for path in (folder, tmp_path / "deep", tmp_path)}


def test_the_same_number_is_fine_again_and_writes_nothing(tmp_path: Path) -> None:
    open_data_folder(tmp_path, 2)
    before = (tmp_path / "manifest.json").stat().st_mtime_ns
    open_data_folder(tmp_path, 2)
    assert (tmp_path / "manifest.json").stat().st_mtime_ns == before


def test_another_number_is_refused_with_the_command_that_changes_it(tmp_path: Path) -> None:
    open_data_folder(tmp_path, 2)
    assert "start with --shards 2, change it with bunqueue reshard --shards 4, or" in refusal(tmp_path, 4)
    open_data_folder(tmp_path, 2)


def test_a_newer_format_is_refused_whatever_else_it_says(tmp_path: Path) -> None:
    for more in ('"parts": "many"', '"shards": 1000000000', '"shards": "many"'):
        (tmp_path / "manifest.json").write_text(f'{{"format": 3, {more}}}')
        assert "newer version" in refusal(tmp_path, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"shards": 2}',
        '{"format": 1, "shards": 65}',
        '{"format": 1, "shards": 1000000000}',
        '{"format": 1, "shards": 2, "created": [64]}',
        '{"format": 1, "shards": 2, "created": [%s0]}' % ("0, " * 100),
        '{"format": 1, "shards": 2, "id": "%s"}' % ("x" * (1 << 20)),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert "damaged" in refusal(tmp_path, 2)
    with pytest.raises(DataFolderError, match="damaged"):
        read_manifest(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == text


@pytest.mark.parametrize(
    "text", ['{"format": 1}', '{"format": 1, "shards": 0}', '{"format": 1, "shards": -2}']
)
def test_a_manifest_without_shards_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    problem = refusal(tmp_path, 2)
    assert "does not say for how many shards it is" in problem
    assert "--shards" not in problem


def test_a_shard_that_is_no_database_is_for_its_shard_to_refuse(tmp_path: Path) -> None:
    open_data_folder(tmp_path, 2)
    (tmp_path / "shard-00.db").touch()  # as a crash at the first start leaves it
    open_data_folder(tmp_path, 2)
    (tmp_path / "shard-01.db").write_text("minutes of the meeting")
    open_data_folder(tmp_path, 2)


@pytest.mark.parametrize("name", ["shard-01.db", "jobs.db"])
def test_a_log_without_its_file_is_refused(tmp_path: Path, name: str) -> None:
    open_data_folder(tmp_path, 2)
    log = tmp_path / f"{name}-wal"
    log.touch()
    open_data_folder(tmp_path, 2)
    log.write_bytes(b"jobs")
    assert f"has a {log.name}, which holds the newest jobs of {name}, but not" in refusal(tmp_path, 2)
    (tmp_path / name).touch()
    assert log.name in refusal(tmp_path, 2)  # SQLite would throw it away
    (tmp_path / name).write_bytes(b"SQLite format 3\0")
    open_data_folder(tmp_path, 2)


def test_shards_without_a_manifest_are_refused(tmp_path: Path) -> None:
    (tmp_path / "shard-00.db").touch()
    assert "no manifest.json" in refusal(tmp_path, 2)


def test_what_a_crash_left_of_a_manifest_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / ".manifest.json.new").write_text('{"form')
    open_data_folder(tmp_path, 2)
    open_data_folder(tmp_path, 2)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be used" in refusal(tmp_path / "file", 2)
    assert "cannot be used" in refusal(tmp_path / "file" / "below", 2)


def test_of_two_servers_that_start_together_the_second_writes_nothing(tmp_path: Path) -> None:
    """The first one has made the folder and is about to write for how many shards it is."""
    folder = tmp_path / "data"
    with own_data_folder(folder):
        second = RouterProcess(Settings(data_dir=str(folder), shards=8), Launcher())
        with pytest.raises(DataFolderError, match="in use by another server"):
            asyncio.run(second._serve())
        assert [path.name for path in folder.iterdir()] == ["server.lock"]
        open_data_folder(folder, 2)
