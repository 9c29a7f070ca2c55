"""Which Pythons workers run on. A run may move between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from kagzi.core.worker import Worker

LABEL: Final = "python"  # of a worker: the version of its Python


def mixed_pythons(workers: Sequence[Worker]) -> str | None:
    """Returns a sentence about queues whose workers run on different Pythons; None if there are none."""
    queues: dict[str, Counter[str]] = {}
    for worker in workers:
        series = ".".join(worker.labels.get(LABEL, "").split(".")[:2])
        for queue in worker.queues if series else ():
            queues.setdefault(queue, Counter())[series] += 1
    said = "; ".join(
        f"queue {queue}: {', '.join(f'{series} ({count})' for series, count in sorted(found.items()))}"
        for queue, found in sorted(queues.items())
        if len(found) > 1
    )
    if not said:
        return None
    return (
        f"workers of one queue run on different Pythons, and runs move between them ({said}). Steps have the same "
        f"names on each; update the others if that is not meant to last"
    )
