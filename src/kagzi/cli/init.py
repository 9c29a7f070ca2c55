"""kagzi init"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from kagzi.cli import output
from kagzi.errors import Conflict

_APP: Final = '''\
"""An order: charged once, packed in parallel, and approved by a person if it is dear."""

import asyncio

import kagzi
from kagzi import Kagzi

app = Kagzi()  # where runs live: KAGZI_URL, kagzi.toml, or .kagzi/kagzi.db


@app.step
async def charge(order: str, cents: int) -> str:
    return f"payment-{order}"  # talk to the world here, and only here


@app.step
async def pack(thing: str) -> str:
    return f"{thing} is packed"


@app.workflow
async def checkout(order: str, cents: int, things: list[str]) -> str:
    if cents > 100_00 and not await kagzi.wait_signal("approved", bool, timeout="3d", default=False):
        return "refused"
    payment = await charge(order, cents)
    await asyncio.gather(*(pack(thing) for thing in things))
    return payment
'''
_TEST: Final = '''\
"""Tests on virtual time: three days pass in a moment, and no database is needed."""

from kagzi.testing import run_virtually
from shop import app, checkout


def test_an_order_is_charged() -> None:
    async def main() -> str:
        return await checkout.run("42", 999, ["book", "pen"])

    assert run_virtually(app, main) == "payment-42"


def test_a_dear_order_that_nobody_approves_is_refused() -> None:
    async def main() -> str:
        return await checkout.run("43", 1_000_00, ["piano"])

    assert run_virtually(app, main) == "refused"
'''
_SETTINGS: Final = """\
app = "shop:app"
# url = "postgresql://shop:shop@localhost:5432/shop"   # `docker compose up -d`; without it an SQLite file in .kagzi/
"""
_COMPOSE: Final = """\
# PostgreSQL for developing: `docker compose up -d`, then take the comment off `url` in kagzi.toml.
services:
  postgres:
    image: postgres:17
    environment:
      POSTGRES_USER: shop
      POSTGRES_PASSWORD: shop
      POSTGRES_DB: shop
    ports:
      - "127.0.0.1:5432:5432"
    volumes:
      - data:/var/lib/postgresql/data

volumes:
  data:
"""
FILES: Final = {
    "shop.py": _APP,
    "test_shop.py": _TEST,
    "kagzi.toml": _SETTINGS,
    "compose.yaml": _COMPOSE,
    ".gitignore": ".kagzi/\n__pycache__/\n",
}


@click.command(short_help="Make a small project that runs.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), default=".")
def init(directory: Path) -> None:
    """Write an app, its test and a compose file for PostgreSQL into DIRECTORY, which is made if it is not there.

    Nothing is overwritten: exit code 5 if one of the files is there already.

    \b
    kagzi init shop
    """
    taken = [name for name in FILES if (directory / name).exists()]
    if taken:
        raise Conflict(f"{', '.join(taken)} in {directory} would be overwritten; nothing was written")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (directory / name).write_text(text, encoding="utf-8")
        click.echo(str(directory / name))
    there = "" if str(directory) == "." else f"cd {directory} && "
    output.note(f"now try: {there}kagzi run shop.py:checkout 42 999 '[\"book\"]'")
    output.note("and: kagzi dev shop.py (a dashboard), python -m pytest (the test)")
