"""The app and its steps: a module, because the processes import it."""

import asyncio

import kagzi
from kagzi import Kagzi

app = Kagzi("memory://")


@app.step(executor="process", timeout="1m")
def count_primes(start: int, stop: int) -> int:
    found = 0
    for number in range(max(2, start), stop):
        if kagzi.cancelled():  # a second later the process would be killed
            break
        found += all(number % divisor for divisor in range(2, int(number**0.5) + 1))
    return found


@app.workflow
async def primes_below(limit: int, parts: int) -> int:
    size = limit // parts
    return sum(await asyncio.gather(*(count_primes(part * size, (part + 1) * size) for part in range(parts))))
