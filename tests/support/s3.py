"""A server that speaks the protocol of S3 (moto's), in a virtual environment of its own that is made once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from .server import ROOT, quiet_port
from .waiting import wait_until

_PLACE = ROOT / ".s3"
_PINS = ROOT / "requirements" / "s3.txt"


def _python() -> Path:
    """The interpreter of the environment.  Without a network tests are skipped, but never where CI is set."""
    _PLACE.mkdir(exist_ok=True)
    python, stamp = _PLACE / "bin" / "python", _PLACE / "installed"
    wanted = hashlib.sha256(_PINS.read_bytes()).hexdigest()
    with (_PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            venv.create(_PLACE, with_pip=True, clear=False)
            pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--require-hashes"]
            done = subprocess.run([*pip, "-r", _PINS], capture_output=True, text=True, check=False)
            if done.returncode:
                text = f"no S3 here: moto cannot be installed: {done.stderr.strip()[-300:]}"
                if os.environ.get("CI"):
                    pytest.fail(text)
                pytest.skip(text)
            stamp.write_text(wanted)
    return python


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """The environment of a client of a running server that has a bucket `jobs`."""
    port = quiet_port()
    url = f"http://127.0.0.1:{port}"
    program = "import sys; from moto.server import main; main(sys.argv[1:])"
    command = [_python(), "-c", program, "-H", "127.0.0.1", "-p", str(port)]
    log = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: _makes_bucket(url, process), "S3 answers")
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
    finally:
        process.kill()
        process.wait()


def _makes_bucket(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "moto's server has ended"
    request = urllib.request.Request(f"{url}/jobs", method="PUT")
    with (
        suppress(urllib.error.URLError, ConnectionError),
        urllib.request.urlopen(request, timeout=5) as reply,
    ):
        return bool(reply.status == 200)
    return False
