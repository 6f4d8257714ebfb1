"""Whether a process of this machine is still the one that it was."""

from __future__ import annotations

import os
import subprocess
import sys

from router.processes.kernel_processes import born


def test_a_process_is_known_by_when_it_began() -> None:
    mine = born(os.getpid())
    assert mine is not None
    assert born(os.getpid()) == mine
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert born(child.pid) not in (None, mine)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert born(child.pid) is None, "a zombie has ended"
    child.communicate()
    assert born(child.pid) is None
    assert born(0) is None
    assert born(-1) is None
