"""Settings of the project."""

import os

SECRET_KEY = "of no importance"
USE_TZ = True
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SITE_DB", ":memory:")}
}
INSTALLED_APPS = ["bunqueue.integrations.django", "bunqueue.integrations.django.outbox", "shop"]
TASKS = {
    "default": {
        "BACKEND": "bunqueue.integrations.django.BunqueueBackend",
        "QUEUES": ["default", "slow"],
        "OPTIONS": {
            "url": os.environ.get("BUNQUEUE_URL", "bunqueue://127.0.0.1:1"),
            "modules": ["shop.mails"],
        },
    },
    "outbox": {
        "BACKEND": "bunqueue.integrations.django.BunqueueBackend",
        "QUEUES": ["default", "slow"],
        "OPTIONS": {"url": os.environ.get("BUNQUEUE_URL", "bunqueue://127.0.0.1:1"), "outbox": True},
    },
    "patient": {
        "BACKEND": "bunqueue.integrations.django.BunqueueBackend",
        "QUEUES": [],
        "OPTIONS": {
            "url": os.environ.get("BUNQUEUE_URL", "bunqueue://127.0.0.1:1"),
            "job_options": {"max_attempts": 3, "backoff": 1000},
        },
    },
}
