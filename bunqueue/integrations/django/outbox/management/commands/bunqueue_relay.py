"""`manage.py bunqueue_relay`: sends the jobs of the outbox to the server until SIGTERM or SIGINT."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.module_loading import import_string

from bunqueue.client.codecs.codec import Codec
from bunqueue.integrations.django.outbox.table import DjangoOutbox
from bunqueue.integrations.outbox import Relay


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """The command; see above."""

    help = "Brings the jobs of the outbox to the bunqueue server until SIGTERM or SIGINT."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("--database", help="alias of the database (default: where its model is written)")
        parser.add_argument("--url", help="of the server (default: what BUNQUEUE_URL says)")
        parser.add_argument(
            "--codec", help="dotted path of a bunqueue.Codec, with which payloads are encoded"
        )
        parser.add_argument("--batch", type=int, default=100, help="rows at a time (default: %(default)s)")
        parser.add_argument("--once", action="store_true", help="bring what is there, and leave")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command."""
        codec = _codec(options["codec"])
        relay = Relay(
            DjangoOutbox(options["database"]), batch=options["batch"], url=options["url"], codec=codec
        )
        if not options["once"]:
            relay.run_forever()
            return
        while relay.run_once() == options["batch"]:
            pass
        relay.close()


def _codec(path: str | None) -> Codec | None:
    """The codec at a dotted path. Raises CommandError if it does not exist."""
    if path is None:
        return None
    try:
        codec = import_string(path)
    except ImportError as error:
        raise CommandError(f"--codec: {error}") from None
    if not isinstance(codec, Codec):
        raise CommandError(f"--codec: {path} is no bunqueue.Codec, but a {type(codec).__name__}")
    return codec
