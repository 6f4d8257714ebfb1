"""Tasks of all kinds."""

import asyncio
import threading

from django.db import connection

from bunqueue import Postpone, Unrecoverable

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

connections = []  # the database connections that tasks have used


@task
def add(one, two):
    return one + two


@task(queue_name="slow", priority=5)
async def add_later(one, two):
    await asyncio.sleep(0)
    return one + two


@task
def broken():
    raise ConnectionError("no route to the mail server")


def deep(level):
    if level:
        deep(level - 1)
    raise LookupError("down here")


@task
def deeply_broken():
    deep(8)


@task(backend="patient")
def hopeless():
    raise Unrecoverable("the account is closed")


@task
def put_off():
    raise Postpone(60_000)


@task(backend="patient")
def flaky(good_attempt):
    raise TimeoutError("not yet")


@task(takes_context=True)
def attempt(context, word):
    return [word, context.attempt, context.task_result.id]


@task
def ask_the_database():
    with connection.cursor() as cursor:
        cursor.execute("select 41 + 1")
        (value,) = cursor.fetchone()
    connections.append((threading.get_ident(), connection.connection))
    return value


def no_task():
    raise AssertionError("this is not to be run")
