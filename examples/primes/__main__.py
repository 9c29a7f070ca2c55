"""Work that keeps cores busy: each part in a process of its own.

python -m examples.primes
"""

import asyncio

from examples.primes.steps import app, primes_below


async def main() -> int:
    async with app, app.worker():
        found = await primes_below.run(20_000, 4)
    print(f"{found} primes below 20,000")
    return found


if __name__ == "__main__":
    asyncio.run(main())
