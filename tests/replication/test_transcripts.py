"""The recorded conversations of the protocol on a server with a store: clients do not notice, and the log
makes the very files that the server has.

``CONFORMANCE``: the folder of the transcripts, if they are not where scripts/conformance.py looks for them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from replication.conftest import SHARDS, StoredServer
from support.server import ROOT

from bunqueue.store.setup import init
from shardproc.store_commands.progress import Progress
from shardproc.store_commands.verify import verify

sys.path.insert(0, str(ROOT / "scripts"))

from conformance import OPEN, catalogue, listed, replay

SUITE = Path(os.environ.get("CONFORMANCE", ROOT.parent / "shared" / "conformance"))


@pytest.mark.skipif(not (SUITE / "replay.py").exists(), reason="there are no transcripts here")
def test_the_log_holds_all_that_commands_change(
    database: str, stored_server: StoredServer, tmp_path: Path
) -> None:
    ids = listed()
    known = {name for folder in {one.split("/")[0] for one in ids} for name in _open(folder)}
    chosen = [one for one in ids if one in known]
    assert chosen
    init(database, SHARDS)
    server = stored_server(database, "--log-level", "error")
    server.start()
    passed = replay(SUITE, server.port, (), chosen)
    assert sorted(set(chosen) - passed) == []
    server.stop()
    for found in verify(database, tmp_path / "data", None, Progress()):
        assert found.problems == []
        assert found.records > 100
        assert found.compared


def _open(folder: str) -> list[str]:
    """The transcripts that need no special server."""
    return [name for name, setup in catalogue(SUITE, folder).items() if setup is OPEN]
