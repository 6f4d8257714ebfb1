"""The trail as an Arrow table."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.server import Server

from bunqueue import OptionError, Queue, arrow
from bunqueue.server.audit.trail import Wanted, files_in, latest


def test_the_trail_is_a_table(server: Server) -> None:
    folder = server.data_dir
    with Queue("mails", port=server.port) as queue, Queue("other", port=server.port) as other:
        queue.pause()
        queue.set_rate_limit(5)
        other.pause()
    found = arrow.audit(folder)
    rows = found.to_pylist()
    entries = latest(str(folder), Wanted(), 100)
    assert [(row["what"], row["queue"]) for row in rows] == [(e.what, e.on["queue"]) for e in entries]
    assert [round(row["at"].timestamp() * 1000) for row in rows] == [entry.at for entry in entries]
    assert rows[0]["who"] is None
    assert (rows[0]["address"], rows[0]["over"], rows[0]["outcome"]) == ("127.0.0.1", "tcp", "ok")
    assert '"limit":5' in rows[1]["fields"]
    assert arrow.audit(folder, queues=["mails"], columns=["what"]).to_pylist() == [
        {"what": "Pause"},
        {"what": "RateLimit"},
    ]
    assert arrow.audit(folder, until=rows[0]["at"]).num_rows == 0
    with pytest.raises(OptionError, match="the table audit has no column state"):
        arrow.audit(folder, states=["failed"])
    server.stop()
    assert arrow.audit(folder).equals(found), "a folder at rest has the same"


def test_several_files_and_lines_that_are_no_entries(server: Server, tmp_path: Path) -> None:
    folder = server.data_dir
    with Queue("mails", port=server.port) as queue:
        queue.pause()
    (file,) = files_in(folder / "audit")
    before = file.path.read_bytes()
    file.path.write_bytes(before + b"\xff\n{}\n[1]\n" + before.replace(b'"what":"Pause"', b'"what":7'))
    file.path.with_name("gateway.000001.jsonl").write_bytes(before.replace(b"Pause", b"Resume"))
    assert sorted(arrow.audit(folder, columns=["what"])["what"].to_pylist()) == ["Pause", "Resume"]
    (folder / "audit").rename(tmp_path / "away")
    assert arrow.audit(folder).num_rows == 0, "nothing was changed yet"
