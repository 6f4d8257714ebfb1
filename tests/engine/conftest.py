"""How hard hypothesis tries.

``quick`` (the default) gives the same examples each time, so that a change is blamed for what it broke.
``HYPOTHESIS_PROFILE=search`` tries many new ones, for minutes.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick",
    max_examples=100,
    derandomize=True,
    database=None,
    deadline=None,  # CI machines pause as they like
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("search", settings.get_profile("quick"), max_examples=2000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
