"""Whoever stands back gives way to others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such class")
def test_what_is_started_gets_only_what_nobody_wants() -> None:
    program = """
import subprocess, sys
from bunqueue.spark import standing_back
with standing_back():
    subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"], check=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.SCHED_IDLE
