"""A Django view that stores an order and its job together, or not at all.

    pip install 'bunqueue[django]'
    python examples/django_outbox.py

In a project the settings are in settings.py, `python manage.py bunqueue_relay` forwards the jobs to the
server, and a worker is a process of its own. Here everything is in one process, so the engine is embedded.
"""

import asyncio
import tempfile
from pathlib import Path

import django
from django.conf import settings

folder = tempfile.TemporaryDirectory()
settings.configure(
    USE_TZ=True,
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["testserver"],
    INSTALLED_APPS=["bunqueue.integrations.django", "bunqueue.integrations.django.outbox"],
    DATABASES={
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(folder.name) / "shop.sqlite3"}
    },
)
django.setup()

from django.core.management import call_command  # noqa: E402  # after the settings
from django.db import connection, models, transaction  # noqa: E402
from django.http import HttpRequest, JsonResponse  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.http import require_POST  # noqa: E402

from bunqueue import Bunqueue  # noqa: E402
from bunqueue.integrations.django import outbox  # noqa: E402
from bunqueue.integrations.outbox import Relay  # noqa: E402

jobs = Bunqueue("orders", embedded=True)


class Order(models.Model):
    item = models.CharField(max_length=50)
    cents = models.IntegerField()
    charged = models.BooleanField(default=False)

    class Meta:
        app_label = "shop"


@require_POST
def place(request: HttpRequest) -> JsonResponse:
    try:
        with transaction.atomic():
            order = Order.objects.create(item=request.POST["item"], cents=int(request.POST["cents"]))
            job_id = outbox.add("orders", "charge", {"order": order.pk}, max_attempts=5)
            if order.cents > 100_000:  # a late check rolls back both order and job
                raise ValueError("that is more than we sell to strangers")
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=422)
    return JsonResponse({"order": order.pk, "job": job_id}, status=201)


urlpatterns = [path("orders", place)]


@jobs.job
def charge(order: int) -> str:
    """In a thread of the worker, with a connection of its own."""
    try:
        Order.objects.filter(pk=order).update(charged=True)
        return f"order {order} is charged"
    finally:
        connection.close()


async def results(job_ids: list[str]) -> list[str]:
    async with jobs:  # a worker, as long as this block lasts
        return [await charge.handle_async(job_id).result(timeout=10_000) for job_id in job_ids]


if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(Order)

    client = Client()
    good = client.post("/orders", {"item": "tea", "cents": 500})
    bad = client.post("/orders", {"item": "a ship", "cents": 900_000_000})
    print(good.status_code, bad.status_code, bad.json()["error"])
    print("orders:", Order.objects.count())

    relay = Relay(outbox.DjangoOutbox(), embedded=True)  # in a project: manage.py bunqueue_relay
    print("brought to the queue:", relay.run_once())
    print(asyncio.run(results([good.json()["job"]])))
    print("charged:", list(Order.objects.values_list("item", "charged")))
    relay.close()
    connection.close()
    folder.cleanup()
