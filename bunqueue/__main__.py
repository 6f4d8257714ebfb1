"""`python -m bunqueue` runs the `bunqueue` command."""

import sys

from bunqueue.cli import main

sys.exit(main())
