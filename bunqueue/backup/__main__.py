"""``python -m bunqueue.backup``: see `process`."""

import sys

from .process import main

sys.exit(main())
