"""`manage.py bunqueue_relay`: brings the jobs of the outbox to the server until SIGTERM or SIGINT."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from bunqueue.integrations.django.outbox.table import DjangoOutbox
from bunqueue.integrations.outbox import Relay


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """See above."""

    help = "Brings the jobs of the outbox to the bunqueue server until SIGTERM or SIGINT."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What may be given."""
        parser.add_argument("--database", help="alias of the database (default: where its model is written)")
        parser.add_argument("--url", help="of the server (default: what BUNQUEUE_URL says)")
        parser.add_argument("--batch", type=int, default=100, help="rows at a time (default: %(default)s)")
        parser.add_argument("--once", action="store_true", help="bring what is there, and leave")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it."""
        relay = Relay(DjangoOutbox(options["database"]), batch=options["batch"], url=options["url"])
        if not options["once"]:
            relay.run_forever()
            return
        while relay.run_once() == options["batch"]:
            pass
        relay.close()
