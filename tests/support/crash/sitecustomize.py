"""Every Python process of a server under test loads this at its start, as its folder stands first on
PYTHONPATH; see `support.crashes`.  Shards are copies of what the router has loaded, so they have it, too."""

import os
import sys

if "CRASH_PLAN" in os.environ and "router" in sys.orig_argv:
    import crash_shard

    from router.processes import child_process

    crash_shard.install()
    child_process.LAST_DELAY_S = child_process.FIRST_DELAY_S  # shards die often here
