"""The samples of docs/spark-writing.md do what they show."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.server import ROOT, Server

PAGE = ROOT / "docs" / "spark-writing.md"


def test_samples_run_one_after_the_other(
    spark: SparkSession,
    shared_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, whose session is the one that `spark_session` gives."""
    text = PAGE.read_text(encoding="utf-8")
    samples = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "one.json").write_text('{"user": "ada", "page": "/"}\n')
    for relative in ("incoming", "checkpoint", "rejects", "writes.jsonl"):  # Spark's processes are elsewhere
        samples = samples.replace(f'"{relative}"', f'"{tmp_path / relative}"')
    monkeypatch.chdir(tmp_path)
    exec(samples.replace("127.0.0.1:6789", f"127.0.0.1:{shared_server.port}"), {})

    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["2 rows: 2 accepted, 0 duplicates, 0 rejected", "1 1"]
    assert printed[2:] == ['{"name":null,"data":2}', "name: the row has none, and there is no option name"]
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "incoming", "rejects", "writes.jsonl"]
