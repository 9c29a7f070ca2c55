"""Due runs that no worker of their queue executes. For both databases.

Claims walk over the due runs of a queue in their order and pass over those of other workflows and versions. A hundred
thousand that nobody executes would be walked over by every poll. So they are *set aside*: `ASIDE` takes the place of
their claim key, and claims do not meet them. Their place follows from when they were due and from their priority.

    due ──no live worker of the queue executes it──▶ aside ──one does──▶ due

Nothing is set aside in a queue without workers: nobody is slowed down there. What is set aside by mistake, because a
worker has come in the same moment, is brought back at the next look, a second later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from kagzi.core.instant import NEVER, SECOND, Instant, Span
from kagzi.store.protocol.changes import Queue
from kagzi.store.protocol.duties import Offer, SetAside

ASIDE: Final[Instant] = NEVER + 2
OVERDUE: Final[Span] = 10 * SECOND  # what is due for so long is looked at
LOOKED_AT: Final = 500  # runs of each queue in a look that finds nothing
MOST_LOOKED_AT: Final = 1_000  # in one that follows others which have found some; PostgreSQL may plan larger ones badly


class Line(Struct, frozen=True):
    """The runs of one workflow and version in a queue: a worker that executes one of them executes each of them."""

    namespace: str
    task_queue: str
    workflow_type: str
    version: str


class Served:
    """The workflows and versions that workers execute, queue by queue."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        self._offers: dict[Queue, set[tuple[str, str | None]]] = {}
        for offer in offers:
            self._offers.setdefault((offer.namespace, offer.task_queue), set()).add(
                (offer.workflow_type, offer.version)
            )

    @property
    def queues(self) -> list[Queue]:
        return sorted(self._offers)

    @property
    def columns(self) -> tuple[list[str], list[str], list[str], list[str | None]]:
        """Returns all offers: their namespaces, queues, workflows, and versions; None: any."""
        offers = [(*queue, *offer) for queue, offered in sorted(self._offers.items()) for offer in offered]
        return tuple(map(list, zip(*offers, strict=True))) if offers else ([], [], [], [])  # type: ignore[return-value]

    def executes(self, line: Line) -> bool:
        offers = self._offers.get((line.namespace, line.task_queue), ())
        return (line.workflow_type, None) in offers or (line.workflow_type, line.version) in offers


def looked(aside: int, back: set[Queue], left: bool) -> SetAside:
    """Returns what a look has done. Where it has brought runs back there may be more: of an offer of any version it
    takes one version at a time."""
    return SetAside(aside=aside, back=tuple(sorted(back)), left=left or aside > 0, more=aside > 0 or bool(back))


def offers_of(namespace: str, queues: Iterable[str], types: Iterable[str], versions: Iterable[str]) -> list[Offer]:
    """Returns what a worker executes, as its row has it."""
    named = list(zip(types, versions, strict=True))
    return [Offer(namespace, queue, name, version or None) for queue in queues for name, version in named]
