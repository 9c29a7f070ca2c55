"""Tasks of the project, and functions that are none."""

from __future__ import annotations

from typing import Any

from django.db import connections

import kagzi
from kagzi import Kagzi, Retry
from kagzi.contrib.django import compat
from tests.contrib.django_project.models import Note

task: Any = compat.base.task
called: list[Any] = []
app = Kagzi("memory://")  # whose steps durable tasks call


@task
def add(left: int, right: int) -> int:
    return left + right


@task(queue_name="mail", priority=5)
async def greet(name: str) -> str:
    return f"hello {name}"


@task(takes_context=True)
def describe(context: Any, word: str) -> list[Any]:
    return [word, context.attempt, context.task_result.id]


@task
def flaky(succeeds_at: int) -> str:
    if kagzi.attempt() < succeeds_at:
        raise ValueError(f"attempt {kagzi.attempt()}")
    return "done"


flaky = flaky.using(retry=Retry(attempts=3, first=0))


@task
def note(alias: str, text: str) -> bool:
    """Whether the thread had no connection before."""
    fresh = connections[alias].connection is None
    Note.objects.using(alias).create(text=text)
    return fresh


@app.step
def double(number: int) -> int:
    called.append(number)
    return number * 2


@task
async def patient(number: int) -> int:
    first = await double(number)
    await kagzi.sleep("10ms")
    return await double(first)


@task
def plain_patient(number: int) -> int:
    return double.call(double.call(number))


patient = patient.using(durable=True)
plain_patient = plain_patient.using(durable=True)


@task
def strange() -> Any:
    return object()


def not_a_task(*args: Any) -> None:
    called.append(args)


def hidden(value: int) -> int:
    return value


renamed = task(hidden)
