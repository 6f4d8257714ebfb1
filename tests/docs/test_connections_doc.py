"""The page about connections: its tables are complete, and its way to TLS leads there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest
from support.server import StartServer

from bunqueue import ConnectionOptions, TlsOptions

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "connections.md").read_text(encoding="utf-8")


def test_every_option_stands_there_with_its_default() -> None:
    section = PAGE.partition("## Options\n")[2].partition("\n## ")[0]
    table = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    options = ConnectionOptions()
    assert [name for name, _ in table] == [field.name for field in fields(ConnectionOptions)]
    for name, default in table:
        value = getattr(options, name)
        assert not isinstance(value, timedelta)
        shown = f"`{value}`" if value is None or isinstance(value, bool) else f"{value:,}"
        assert default == shown, name


def test_every_tls_option_stands_there() -> None:
    table = PAGE.partition("| `TlsOptions` |")[2]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [field.name for field in fields(TlsOptions)]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
def test_the_way_to_tls(make_server: StartServer, tmp_path: Path) -> None:
    certificates, starting = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (sample,) = re.findall(r"```python\n(.*?)```", PAGE.partition("## TLS")[2], re.DOTALL)
    done = subprocess.run(
        ["sh", "-ec", certificates], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if "copy_extensions" in done.stderr:
        pytest.skip("needs OpenSSL 3")
    assert done.returncode == 0, done.stderr

    (tls,) = re.findall(r"--tls-.*", starting)
    server = make_server(*[str(tmp_path / word) if "." in word else word for word in tls.split()])
    server.start()
    # As if it listened at the default port.
    program = sample.replace('host="localhost"', f'host="localhost", port={server.port}')
    program = program.replace("://localhost", f"://localhost:{server.port}")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("waiting\n1\n", "")
