"""The checker sees what it is there for: hosts with a bug that breaks a promise, under the same faults."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from chaos.chaos_cluster import running
from chaos.test_chaos import Broken, Run, in_this_order
from support.server import ROOT

PACKAGES = ("bunqueue", "router", "shardproc")
# What is wrong: the file, what stands there and what stands there instead; the faults that bring it out; and
# what the checker says.
BUGS = {
    "answers before the log has it": (
        "shardproc/replication/replicated_server.py",
        "if owner.position >= self._position if self._position else owner.owns(now):",
        "if True:",
        (("cut-store",), ("cut-store",), ("cut-store",)),
        "was answered with|was acknowledged",
    ),
    "the next owner forgets who asked what": (
        "shardproc/engine/handlers/idempotency.py",
        "    memory = state.pushed\n    for at, pushed in batches:\n",
        "    memory = state.pushed\n    for at, pushed in ():\n",
        (("kill",), ("kill",), ("kill",), ("kill",)),
        "made the jobs|was delivered as the jobs",
    ),
    "locks end early": (
        "shardproc/engine/handlers/locks.py",
        "if lock.token and lock.until <= now:",
        "if lock.token and lock.until <= now + 29_000:",
        (("freeze",), ("cut-store",), ("kill",)),
        "and given to",
    ),
}


@pytest.mark.nightly  # about a minute each
@pytest.mark.parametrize("bug", BUGS)
async def test_a_bug_is_found(tmp_path: Path, bug: str) -> None:
    file, good, bad, faults, said = BUGS[bug]
    code = tmp_path / "code"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, code / package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (code / file).read_text()
    assert text.count(good) == 1
    (code / file).write_text(text.replace(good, bad))
    with running(tmp_path / "hosts", code=code) as cluster:
        if cluster.network is None:
            pytest.skip("no networks can be made here")
        cluster.always_s = 5.0
        with pytest.raises(Broken, match=said):
            async with Run(cluster, tmp_path / "chaos.html"):
                await in_this_order(cluster, faults)
