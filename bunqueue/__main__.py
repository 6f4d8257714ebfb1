"""`python -m bunqueue` is the command `bunqueue`."""

import sys

from bunqueue.cli import main

sys.exit(main())
