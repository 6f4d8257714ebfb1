"""Django's tasks on bunqueue, in one file: settings, a task, and a worker.

    pip install 'bunqueue[django]'
    python examples/django_in_one_file.py

In a project the settings are in settings.py, tasks in an app's tasks.py, and the worker is a process of its
own: `python manage.py bunqueue_worker`. Here everything is in one process, so the engine is embedded.
"""

import threading
import time

import django
from django.conf import settings

settings.configure(
    USE_TZ=True,
    INSTALLED_APPS=["bunqueue.integrations.django"],
    TASKS={
        "default": {
            "BACKEND": "bunqueue.integrations.django.BunqueueBackend",
            "OPTIONS": {"embedded": True, "job_options": {"max_attempts": 3, "backoff": 10}},
        }
    },
)
django.setup()

try:
    from django.tasks import task  # Django 6
except ImportError:
    from django_tasks import task  # pip install django-tasks

from django.core.management import call_command  # noqa: E402  # after the settings


@task(takes_context=True)
def send_welcome(context, address: str) -> str:  # type: ignore[no-untyped-def]
    if context.attempt == 1:
        raise ConnectionError("no route to the mail server")
    return f"sent to {address} at attempt {context.attempt}"


if __name__ == "__main__":
    threading.Thread(target=call_command, args=["bunqueue_worker"], daemon=True).start()
    result = send_welcome.enqueue("ada@example.com")
    while not result.is_finished:
        time.sleep(0.01)
        result.refresh()
    print(result.status, result.return_value)
