"""A saga: when a later step fails for good, undo what the earlier ones did, in reverse order.

    python examples/saga.py

The compensations are steps like all others: if the worker dies in the middle of undoing, another one goes on undoing.
"""

import asyncio
from collections.abc import Awaitable, Callable

from kagzi import Kagzi, NonRetryable

app = Kagzi("memory://")


class NoRoom(NonRetryable):
    pass


@app.step
async def book_flight(trip: str) -> str:
    return f"flight for {trip}"


@app.step
async def cancel_flight(booking: str) -> str:
    return f"cancelled {booking}"


@app.step
async def book_car(trip: str) -> str:
    return f"car for {trip}"


@app.step
async def cancel_car(booking: str) -> str:
    return f"cancelled {booking}"


@app.step
async def book_hotel(trip: str, rooms: int) -> str:
    if rooms > 2:
        raise NoRoom(f"no {rooms} rooms left for {trip}")
    return f"hotel for {trip}"


@app.workflow
async def travel(trip: str, rooms: int) -> list[str]:
    undo: list[tuple[Callable[[str], Awaitable[str]], str]] = []
    try:
        flight = await book_flight(trip)
        undo.append((cancel_flight, flight))
        car = await book_car(trip)
        undo.append((cancel_car, car))
        hotel = await book_hotel(trip, rooms)
    except NoRoom as error:
        return [str(error)] + [await compensate(booking) for compensate, booking in reversed(undo)]
    return [flight, car, hotel]


async def main() -> tuple[list[str], list[str]]:
    async with app, app.worker():
        good = await travel.run("Lisbon", 1)
        bad = await travel.run("Oslo", 9)
    print("\n".join(good), "\n".join(bad), sep="\n\n")
    return good, bad


if __name__ == "__main__":
    asyncio.run(main())
