"""`manage.py bunqueue_worker`: runs the tasks of a backend until SIGTERM or SIGINT."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.autoreload import run_with_reloader

from bunqueue.integrations.django.backend import BunqueueBackend
from bunqueue.integrations.django.compat import task_backends
from bunqueue.integrations.django.running import run_task
from bunqueue.worker.service import run_forever
from bunqueue.worker.worker import Worker


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """The command; see above."""

    help = "Works the tasks of a bunqueue backend until SIGTERM or SIGINT, which lets running ones finish."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("--backend", default="default", help="alias in TASKS (default: %(default)s)")
        parser.add_argument("--queues", help="names, with commas between; all of the backend's unless given")
        parser.add_argument(
            "--concurrency", type=int, default=4, help="tasks at a time, by queue (default: %(default)s)"
        )
        parser.add_argument("--grace", type=float, default=30.0, help="seconds that tasks get to finish")
        parser.add_argument("--reload", action="store_true", help="start again when code changes")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command."""
        workers = self._workers(options)
        names = ", ".join(worker.queue for worker in workers)
        self.stdout.write(f"bunqueue_worker: working on {names}")
        if options["reload"]:
            run_with_reloader(run_forever, *workers)
        else:
            run_forever(*workers)

    def _workers(self, options: dict[str, Any]) -> list[Worker]:
        backend = task_backends[options["backend"]]
        if not isinstance(backend, BunqueueBackend):
            raise CommandError(
                f"TASKS[{options['backend']!r}] is no bunqueue backend: {type(backend).__name__}"
            )
        names = options["queues"].split(",") if options["queues"] else sorted(backend.queues)
        if not names:
            raise CommandError("the backend takes tasks of any queue; say which to work on with --queues")
        return [
            Worker(
                name.strip(),
                run_task,
                concurrency=options["concurrency"],
                grace=options["grace"] * 1000,
                **backend.place,
            )
            for name in names
        ]
