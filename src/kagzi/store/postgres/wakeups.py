"""Tells other processes that there is work or that a run has finished, and hears it from them.

Everything here is a hint. Notifications get lost when a connection breaks, behind poolers, and in a failover;
whoever waits also looks once a second. After every new connection `on_unknown` is called, because nobody
knows what was missed. Behind a PgBouncer in transaction mode nothing can be heard: there looking has to do, unless
we are told of another way to the database.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from kagzi.errors import KagziError
from kagzi.store.postgres.connection import Connector, translate
from kagzi.store.postgres.pool import Line, hang_up, lifetime
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.changes import Queue, RunKey

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

WORK = "kagzi_work"
DONE = "kagzi_done"
NEWS = "kagzi_news"
_EVERYTHING = "*"
_PAYLOAD_BYTES = 7900  # the server takes fewer than 8000
_PAYLOADS = 8  # beyond that "anything may have finished" is cheaper to hear
_FIRST_BACKOFF = 1.0
_LAST_BACKOFF = 30.0
_PROBE_SECONDS = 10.0
_TEST = "kagzi_test"
_TEST_SECONDS = 2.0
_NOTIFY = STATEMENTS["notify"]
_PAIRS = msgspec.json.Decoder(list[tuple[str, str]])
logger = logging.getLogger("kagzi.store.postgres")


class Wakeups:
    """See `store.protocol.wakeups.Wakeups`.

    Notifies on a connection of its own, which does not wait for the disk: a hint need not survive. It leads the way we
    listen on, too: there our own notifications can be told from others'.
    """

    def __init__(self, connector: Connector, chance: random.Random) -> None:
        self._connector = connector
        self._chance = chance
        self._line = Line(connector, chance, synchronous_commit="off")
        self._listeners: set[asyncio.Task[None]] = set()

    async def listen(
        self,
        on_work: Callable[[Queue], None],
        on_finished: Callable[[str, str], None],
        on_unknown: Callable[[], None],
        on_news: Callable[[str, str], None] | None = None,
    ) -> None:
        listener = Listener(
            self._connector,
            self._chance,
            lambda pid: pid == self._line.server_pid,
            on_work,
            on_finished,
            on_unknown,
            on_news,
        )
        task = asyncio.ensure_future(listener.listen())
        self._listeners.add(task)
        try:
            await task
        except asyncio.CancelledError:
            task.cancel()
            if not task.done() or (current := asyncio.current_task()) is None or current.cancelling():
                raise
        finally:
            self._listeners.discard(task)

    async def announce(self, work: Sequence[Queue], finished: Sequence[RunKey], news: Sequence[RunKey] = ()) -> None:
        notes = [(WORK, payload) for payload in payloads(work)]
        notes += [(DONE, payload) for payload in payloads(finished)]
        notes += [(NEWS, payload) for payload in payloads(news)]
        if not notes:
            return
        channels, texts = [channel for channel, _ in notes], [text for _, text in notes]
        await self._line.run(lambda connection: connection.fetch(_NOTIFY, channels, texts))

    async def stop_listening(self) -> None:
        for task in self._listeners:
            task.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)

    async def close(self) -> None:
        await self._line.close()


class Listener:
    """Hears notifications on a connection of its own, and makes a new one whenever it breaks."""

    def __init__(
        self,
        connector: Connector,
        chance: random.Random,
        is_own: Callable[[int], bool],
        on_work: Callable[[Queue], None],
        on_finished: Callable[[str, str], None],
        on_unknown: Callable[[], None],
        on_news: Callable[[str, str], None] | None = None,
    ) -> None:
        self._connector = connector
        self._chance = chance
        self._is_own = is_own
        self._on_work = on_work
        self._on_finished = on_finished
        self._on_unknown = on_unknown
        self._on_news = on_news

    async def listen(self) -> None:
        failures = 0
        while True:
            era = self._connector.era
            try:
                connection = await self._connector.connect()
            except KagziError as error:
                failures += 1
                logger.warning("cannot listen for wake-ups, polling instead: %s", error)
            else:
                failures = 0
                try:
                    if self._connector.pooled:
                        await hang_up(connection)
                        await self._look_only()
                    await self._hear(connection, era)
                finally:
                    connection.terminate()
            ceiling = min(_LAST_BACKOFF, _FIRST_BACKOFF * 2 ** min(failures, 10))
            await asyncio.sleep(ceiling * self._chance.uniform(0.5, 1.0))

    async def _look_only(self) -> None:
        logger.warning(
            "behind a connection pooler no wake-ups are heard: looking for work once a second. "
            "Set KAGZI_LISTEN_URL to the PostgreSQL behind it to hear them"
        )
        await asyncio.get_running_loop().create_future()

    async def _hear(self, connection: Connection, era: int) -> None:
        loop = asyncio.get_running_loop()
        good_until = loop.time() + lifetime(self._chance)
        broken = asyncio.Event()
        connection.add_termination_listener(lambda _: broken.set())
        try:
            await connection.add_listener(WORK, self._on_note)
            await connection.add_listener(DONE, self._on_note)
            await connection.add_listener(NEWS, self._on_note)
            self._on_unknown()
            while not connection.is_closed() and loop.time() < good_until and era == self._connector.era:
                try:
                    async with asyncio.timeout(_PROBE_SECONDS):
                        await broken.wait()
                except TimeoutError:
                    # A connection can die without a word; asking is the only way to find out.
                    await connection.execute("SELECT 1", timeout=10)
        except asyncio.CancelledError:
            await asyncio.shield(hang_up(connection))
            raise
        except Exception as error:
            logger.warning("stopped hearing wake-ups (%s), connecting again", type(error).__name__)

    def _on_note(self, connection: object, pid: int, channel: str, payload: object) -> None:
        del connection
        if self._is_own(pid):
            return
        try:
            pairs = None if payload == _EVERYTHING else _PAIRS.decode(str(payload))
        except msgspec.DecodeError:
            pairs = None
        if pairs is None:
            self._on_unknown()
            return
        for first, second in pairs:
            if channel == WORK:
                self._on_work((first, second))
            elif channel == NEWS:
                if self._on_news is not None:
                    self._on_news(first, second)
            else:
                self._on_finished(first, second)


async def are_heard(speaking: Connector, hearing: Connector) -> bool | None:
    """Returns whether announcements by one connection are heard on the other; None if nobody can listen, behind a
    pooler."""
    speaker = await speaking.connect()
    try:
        if hearing is speaking and speaking.pooled:
            return None
        listener = await hearing.connect()
        try:
            heard = asyncio.Event()
            word = f"{listener.get_server_pid()}"
            await listener.add_listener(_TEST, lambda *note: heard.set() if note[-1] == word else None)
            await speaker.fetch(_NOTIFY, [_TEST], [word])
            async with asyncio.timeout(_TEST_SECONDS):
                await heard.wait()
        finally:
            await hang_up(listener)
    except TimeoutError:
        return False
    except Exception as error:
        raise error if isinstance(error, KagziError) else translate(error) from None
    finally:
        await hang_up(speaker)
    return True


def payloads(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Writes pairs as JSON, in as few texts as the server allows; too many become one that means everything."""
    texts: list[str] = []
    parts: list[str] = []
    size = 2
    for pair in dict.fromkeys(pairs):
        part = msgspec.json.encode(pair).decode()
        length = len(part.encode()) + 1
        if size + length > _PAYLOAD_BYTES and parts:
            texts.append(f"[{','.join(parts)}]")
            parts, size = [], 2
        parts.append(part)
        size += length
    if parts:
        texts.append(f"[{','.join(parts)}]")
    return texts if len(texts) <= _PAYLOADS else [_EVERYTHING]
