"""A connection through PgBouncer in transaction mode, where nothing outlives a transaction.

The next transaction may reach another session of the server, so nothing may be left in one: no prepared statement,
no setting. Statements are sent unnamed, and every transaction begins by saying how it wants to be treated. What the
store sends as a single statement becomes a transaction of its own, so that both kinds of connection commit, lock and
fail alike. That costs two more round trips for each; group commit divides them among the callers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kagzi.store.postgres.arrays import AskingOnce

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"


class PooledConnection(AskingOnce):
    """A connection whose transactions stand by themselves (see above). `settings` must be set before the first
    statement."""

    _begin = _BEGIN

    def begin_with(self, settings: Mapping[str, str]) -> None:
        """Sets how every transaction is to be treated."""
        self._begin = "; ".join([_BEGIN, *(f"SET LOCAL {name} TO '{value}'" for name, value in settings.items())])

    @contextmanager
    def treated(self, **settings: str) -> Iterator[None]:
        """Has the transactions in this block be treated otherwise."""
        before = self._begin
        self._begin = "; ".join([before, *(f"SET LOCAL {name} TO '{value}'" for name, value in settings.items())])
        try:
            yield
        finally:
            self._begin = before

    def transaction(self, **_: Any) -> Any:
        """Begins a transaction. There is none within another, whose end would be that of both."""
        if self.is_in_transaction():
            raise AssertionError("there is no transaction within another")
        return _Transaction(self.command, self._begin, self.terminate)

    async def command(self, text: str) -> None:
        """Sends a command as it is."""
        await super().execute(text)

    async def fetch(self, query: str, *args: object, **options: Any) -> Any:
        return await self._whole(lambda: super(PooledConnection, self).fetch(query, *args, **options))

    async def fetchrow(self, query: str, *args: object, **options: Any) -> Any:
        return await self._whole(lambda: super(PooledConnection, self).fetchrow(query, *args, **options))

    async def fetchval(self, query: str, *args: object, **options: Any) -> Any:
        return await self._whole(lambda: super(PooledConnection, self).fetchval(query, *args, **options))

    async def execute(self, query: str, *args: object, **options: Any) -> str:
        return await self._whole(lambda: super(PooledConnection, self).execute(query, *args, **options))

    async def _whole(self, send: Callable[[], Awaitable[T]]) -> T:
        if self.is_in_transaction():
            return await send()
        async with self.transaction():
            return await send()


class _Transaction:
    def __init__(self, command: Callable[[str], Awaitable[None]], begin: str, cut: Callable[[], None]) -> None:
        self._command = command
        self._begin = begin
        self._cut = cut

    async def __aenter__(self) -> None:
        try:
            await self._command(self._begin)
        except BaseException:
            await self._roll_back()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self._command("COMMIT")
        else:
            await self._roll_back()

    async def _roll_back(self) -> None:
        try:
            await self._command("ROLLBACK")
        except Exception:
            self._cut()  # most likely it is gone already; if not, nobody may find it in the middle of this
