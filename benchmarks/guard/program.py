"""What valgrind runs: `python -m benchmarks.guard.program URL`. Prints the version of the server and, by segment, how
many marks each of its backends had set before."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys

from benchmarks.guard import backend, embedded


def mark(segment: str) -> None:  # noqa: ARG001
    os.getppid()


def main(url: str) -> None:
    # When garbage is collected depends on what else is in memory.
    gc.disable()
    embedded.run(mark)
    print(json.dumps(asyncio.run(backend.run(url, mark))))


if __name__ == "__main__":
    main(sys.argv[1])
