"""What a disk would hold if the power had failed: from a log of what the shards wrote and flushed."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_suffix(".c")
HEADER = struct.Struct("<BHIQ")
WRITE, TRUNCATE, FLUSH, UNLINK = range(1, 5)
SECTOR = 512  # bytes that a disk writes as a whole


class Record(NamedTuple):
    """``end``: where it ends in the log."""

    op: int
    name: str
    offset: int
    data: bytes
    end: int


def preload(folder: Path) -> dict[str, str]:
    """The environment of a server that keeps such a log as ``disk.log``; compiles what it takes."""
    library = folder / "disk_log.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), "DISK_LOG": str(folder / "disk.log")}


def read(log: Path) -> Iterator[Record]:
    """The log, but for a record that was cut off."""
    content = log.read_bytes()
    start = 0
    while start + HEADER.size <= len(content):
        op, length, size, offset = HEADER.unpack_from(content, start)
        path = start + HEADER.size
        end = path + length + size
        if end > len(content):
            return
        name = content[path : path + length].decode().rpartition("/")[2]
        yield Record(op, name, offset, content[path + length : end], end)
        start = end


class Disk:
    """Files as they are flushed, and what was done to them since."""

    def __init__(self) -> None:
        self._flushed: dict[str, bytearray] = {}
        self._since: dict[str, list[Record]] = {}

    def take(self, record: Record) -> None:
        if record.op == UNLINK:
            self._flushed.pop(record.name, None)
            self._since.pop(record.name, None)
        elif record.op == FLUSH:
            for earlier in self._since.pop(record.name, ()):
                _apply(self._flushed.setdefault(record.name, bytearray()), earlier)
        else:
            self._since.setdefault(record.name, []).append(record)

    def image(self, folder: Path, rng: random.Random) -> None:
        """Write what may be there after a power cut: of what was not flushed all, nothing, the beginning, or
        any part; of a write any sectors."""
        for name in self._flushed.keys() | self._since.keys():
            content = bytearray(self._flushed.get(name, b""))
            since = self._since.get(name, [])
            mode = rng.choice(("all", "none", "beginning", "any"))
            if mode == "none":
                since = []
            elif mode == "beginning":
                since = since[: rng.randint(0, len(since))]
            elif mode == "any":
                since = [piece for record in since for piece in _torn(record, rng)]
            for record in since:
                _apply(content, record)
            (folder / name).write_bytes(content)


def _torn(record: Record, rng: random.Random) -> Iterator[Record]:
    if record.op == TRUNCATE or rng.random() < 0.4:
        yield record
    elif rng.random() < 0.5:
        for start in range(0, len(record.data), SECTOR):
            if rng.random() < 0.5:
                data = record.data[start : start + SECTOR]
                yield record._replace(offset=record.offset + start, data=data)


def _apply(content: bytearray, record: Record) -> None:
    if record.op == TRUNCATE:
        del content[record.offset :]
        content.extend(bytes(record.offset - len(content)))
        return
    end = record.offset + len(record.data)
    content.extend(bytes(max(0, end - len(content))))
    content[record.offset : end] = record.data
