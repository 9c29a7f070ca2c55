"""What the simulated workflows do: small programs drawn from a seed, and what each of them must answer.

A program is JSON, because it is the input of the run that executes it (`workload`). Every node says what it is, then
its number, then the rest. `judge` compares an answer with the program: races and timeouts may end one way or the other,
and everything else has one right answer.
"""

from __future__ import annotations

from random import Random
from typing import Any

Node = list[Any]

CRASH_ALWAYS = 99
# Nodes that have children.
FAMILY_KINDS = ("child", "fan", "leave", "hurry", "brief", "greet", "clash", "fail", "expire")


class Author:
    """Writes programs."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0

    def program(self) -> Node:
        """A few things one after the other."""
        size = self._random.choice((1, 2, 2, 3, 4))
        return ["seq", self._next(), [self.node(2) for _ in range(size)]]

    def node(self, depth: int, *, calm: bool = False) -> Node:
        """Any node; a calm one cannot fail in a way that cancels its surroundings."""
        number = self._next()
        kinds = _LEAVES if depth == 0 else _LEAVES + _BRANCHES
        kind = self._random.choice(kinds)
        if kind == "group" and calm:
            kind = "gather"
        match kind:
            case "step":
                return ["step", number, self._length()]
            case "flaky":
                return ["flaky", number, self._random.choice((1, 1, 2, 3)), self._length()]
            case "patient":
                return ["patient", number, self._random.choice((1, 2))]
            case "broken":
                return ["broken", number, self._random.choice((1, 2, 3))]
            case "stuck":
                return ["stuck", number]
            case "sleep":
                return ["sleep", number, self._random.choice((1, 50, 400, 900, 1500, 3000, 8000))]
            case "chance" | "spoil":
                return [kind, number]
            case "gather" | "completed" | "queue":
                return [kind, number, self._several(depth)]
            case "group":
                failing = self._random.random() < 0.4
                return ["group", number, self._several(depth), failing]
            case "timeout":
                return self._timeout(number, depth)
            case "race":
                return ["race", number, self._several(depth), self._random.random() < 0.5]
            case "saga":
                return ["saga", number, self.node(depth - 1)]
            case _:
                raise AssertionError(kind)

    def poison(self, crashes: int) -> Node:
        """Steps around one that takes its process down so often."""
        number = self._next()
        poison = ["poison", self._next(), crashes]
        return ["seq", number, [["step", self._next(), 0], poison, ["step", self._next(), 0]]]

    def _timeout(self, number: int, depth: int) -> Node:
        match self._random.choice(("late", "in time", "either")):
            case "late":
                inner = ["sleep", self._next(), 100_000]
                if self._random.random() < 0.5:
                    inner = ["gather", self._next(), [inner, ["step", self._next(), 0]]]
                return ["timeout", number, self._random.choice((5, 300, 2000)), inner, "late"]
            case "in time":
                return ["timeout", number, 10_000_000, self.node(depth - 1, calm=True), "in time"]
            case _:
                length = self._random.choice((10, 100, 500, 2500))
                return ["timeout", number, length, self.node(depth - 1, calm=True), "either"]

    def _several(self, depth: int) -> list[Node]:
        return [self.node(depth - 1, calm=True) for _ in range(self._random.choice((2, 2, 3, 4)))]

    def _length(self) -> int:
        return self._random.choice((0, 0, 0, 1, 20, 150, 600, 2500))

    def _next(self) -> int:
        self._number += 1
        return self._number


_LEAVES = ("step", "step", "step", "flaky", "patient", "broken", "stuck", "sleep", "sleep", "chance", "spoil")
_BRANCHES = ("gather", "gather", "completed", "queue", "group", "timeout", "race", "race", "saga")


class Wrong(Exception):
    """The answer of a program is not one it can have."""


def judge(node: Node, answer: Any) -> None:
    """Raise `Wrong` unless the program can have answered this."""
    kind, number = node[0], node[1]
    match kind:
        case "step" | "poison":
            _equal(node, answer, ["list", number, "done"])
        case "flaky" | "patient":
            _equal(node, answer, ["list", number, node[2] + 1])
        case "broken":
            _equal(node, answer, ["error", "Broken", f"{number} is broken for the {node[2]}. time", False])
        case "stuck":
            _equal(node, answer, ["error", "StepTimeout", number])
        case "sleep":
            _equal(node, answer, ["slept", number, True])
        case "say":
            _equal(node, answer, ["said", number])
        case "chance":
            _equal(node, answer, ["chance", number])
        case "spoil":
            _equal(node, answer, ["mine", [number]])
        case "seq" | "gather" | "completed" | "queue":
            _each(node, node[2], answer)
        case "group":
            if node[3]:
                _equal(node, answer, ["group failed", ["Broken"]])
            else:
                _each(node, node[2], answer)
        case "timeout":
            _timeout(node, answer)
        case "race":
            if not isinstance(answer, list) or answer[0] != "won" or not answer[1]:
                raise Wrong(f"{kind} {number} answered {answer!r}")
            for place, inner in answer[1]:
                judge(node[2][place], inner)
        case "told" | "heed" | "either" | "stream":
            _signals(node, answer)
        case _ if kind in FAMILY_KINDS:
            _family(node, answer)
        case "saga":
            if not isinstance(answer, list) or answer[:1] != ["undone"] or len(answer) != 3:
                raise Wrong(f"{kind} {number} answered {answer!r}")
            judge(node[2], answer[1])
            _equal(node, answer[2], ["list", number, "done"])
        case _:
            raise AssertionError(kind)


def _each(node: Node, inner: list[Node], answer: Any) -> None:
    if not isinstance(answer, list) or len(answer) != len(inner):
        raise Wrong(f"{node[0]} {node[1]} answered {answer!r}")
    for child, part in zip(inner, answer, strict=True):
        judge(child, part)


def _timeout(node: Node, answer: Any) -> None:
    _, number, _, inner, verdict = node
    if answer == ["late", number] and verdict != "in time":
        return
    if isinstance(answer, list) and answer[:1] == ["in time"] and verdict != "late":
        judge(inner, answer[1])
        return
    raise Wrong(f"timeout {number} ({verdict}) answered {answer!r}")


def _signals(node: Node, answer: Any) -> None:
    if not isinstance(answer, list) or answer[:2] != node[:2]:
        raise Wrong(f"{node[0]} {node[1]} answered {answer!r}")
    values = answer[2]
    names = node[2] if node[0] == "either" else [node[2]]
    fewest, most = {"told": (node[-1], node[-1]), "heed": (0, 1), "either": (1, 1), "stream": (0, 3)}[node[0]]
    foreign = [value for value in values if value.rpartition("-")[0] not in names]
    if foreign or len(set(values)) != len(values) or not fewest <= len(values) <= most:
        raise Wrong(f"{node[0]} {node[1]} for {names} answered {answer!r}")


def _family(node: Node, answer: Any) -> None:
    """A child that was found dead too often is lost; the checks know how each has really ended."""
    kind, number = node[0], node[1]
    if not isinstance(answer, list) or answer[:2] != [kind, number]:
        raise Wrong(f"{kind} {number} answered {answer!r}")
    if kind == "fan":
        for inner, part in zip(node[2], answer[2], strict=True):
            if part != "lost":
                judge(inner, part)
        return
    ends = {
        **{"child": ("lost",), "greet": ("lost",), "brief": ("lost", "late"), "hurry": ("lost", "cancelled")},
        **{"leave": ("left",), "clash": ("refused",), "fail": ("failed",), "expire": ("expired", "lost")},
    }
    if answer[2] not in ends[kind]:
        if kind not in ("child", "greet", "brief", "hurry"):
            raise Wrong(f"{kind} {number} answered {answer!r}")
        judge(node[2], answer[2])


def _equal(node: Node, answer: Any, expected: Any) -> None:
    if answer != expected:
        raise Wrong(f"{node[0]} {node[1]} answered {answer!r}, not {expected!r}")
