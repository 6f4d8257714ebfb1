"""Run a command while four processes burn the cores.

    python scripts/burn.py COMMAND ...

Its exit status is the command's.
"""

from __future__ import annotations

import subprocess
import sys

BURNERS = 4
BURN = "while True: pass"


def main(command: list[str]) -> int:
    burners = [subprocess.Popen([sys.executable, "-S", "-c", BURN]) for _ in range(BURNERS)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
