"""Makes the blocking client, which is not in the repository, before setuptools looks for packages."""

import runpy

from setuptools import setup

runpy.run_path("scripts/unasync.py", run_name="__main__")
setup()
