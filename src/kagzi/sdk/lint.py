"""Finds what does not belong into a workflow's body by reading its source: clocks, chance, I/O, steps that are not
awaited.

A workflow is executed again from its first line after a crash, and has to decide the same each time. Reading is all
that is done here: nothing is called. What a name stands for is taken from the imports of the file, so a call through a
variable or in a function of another module is not seen.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kagzi.sdk.definitions import Step, Workflow

_CLOCK: Final = "differs at every replay; use kagzi.now(), or read it in a step"
_CHANCE: Final = "differs at every replay; use kagzi.random() or kagzi.uuid4(), or draw it in a step"
_IO: Final = "happens again at every replay and holds up the worker; do it in a step"
_SLEEP: Final = "holds up the worker and is not durable; use `await asyncio.sleep(...)` or kagzi.sleep()"
_THREAD: Final = "is not seen by replays; do it in a step"
_ORDER: Final = "goes through bare coroutines in an order that may differ; give it tasks, or use kagzi.map"

_CALLS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("time.time", "time.time_ns", "time.monotonic", "time.perf_counter", "time.localtime"), _CLOCK),
    **dict.fromkeys(("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"), _CLOCK),
    "datetime.date.today": _CLOCK,
    "time.sleep": _SLEEP,
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4", "os.urandom"), _CHANCE),
    **dict.fromkeys(("open", "input", "io.open", "os.system", "os.popen", "urllib.request.urlopen"), _IO),
    **dict.fromkeys(("sqlite3.connect", "psycopg.connect", "asyncpg.connect", "aiohttp.ClientSession"), _IO),
    **dict.fromkeys(("asyncio.open_connection", "asyncio.create_subprocess_exec"), _IO),
    **dict.fromkeys(("threading.Thread", "asyncio.to_thread"), _THREAD),
}
_MODULES: Final[Mapping[str, str]] = {  # everything in them
    "random": _CHANCE,
    "secrets": _CHANCE,
    **dict.fromkeys(("requests", "httpx", "socket", "subprocess", "shutil", "smtplib"), _IO),
}
_METHODS: Final[Mapping[str, str]] = {  # of whatever object; names that hardly mean anything else
    **dict.fromkeys(("read_text", "write_text", "read_bytes", "write_bytes"), _IO),
}
# What has to be awaited: what begins at once, as tasks, and what begins when it is awaited.
_TASKS: Final = frozenset(f"asyncio.{name}" for name in ("create_task", "ensure_future", "gather", "shield"))
_AWAITED: Final = frozenset(
    [*(f"asyncio.{name}" for name in ("sleep", "wait", "wait_for"))]
    + [f"kagzi.{name}" for name in ("map", "parallel", "race", "run_step", "sleep", "sleep_until", "wait_signal")]
)


class Finding(Struct, frozen=True, order=True):
    """Something in a workflow that will go wrong."""

    file: str
    line: int
    workflow: str
    message: str


def check_workflow(workflow: Workflow[Any, Any]) -> list[Finding]:
    """Returns what is wrong in the body of a workflow; nothing if its source cannot be read."""
    function = inspect.unwrap(workflow.fn)
    code = getattr(function, "__code__", None)
    file = inspect.getsourcefile(function)
    if code is None or file is None:
        return []
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return []
    body = _function_at(tree, code.co_firstlineno)
    if body is None:
        return []
    imports = dict(_imports(tree))
    durable = {name for name, value in function.__globals__.items() if isinstance(value, Step | Workflow)}
    found = [
        Finding(file, line, workflow.name, message)
        for line, message in (*_calls(body, imports), *_unawaited(body, durable, imports))
    ]
    return sorted(found)


def _function_at(tree: ast.Module, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Returns the function whose first line, decorators included, is this one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= line <= node.lineno:
                return node
    return None


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Returns what names stand for: `dt` is `datetime` after `import datetime as dt`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _calls(body: ast.AST, imports: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(body):
        if not isinstance(node, ast.Call):
            continue
        name = _dotted(node.func, imports)
        why = None if name is None else _CALLS.get(name) or _MODULES.get(name.partition(".")[0])
        if name is not None and why is None and "." in name:
            why = _METHODS.get(name.rpartition(".")[2])
        if name == "asyncio.as_completed" and any(_has_bare_calls(argument) for argument in node.args[:1]):
            why = _ORDER
        if why is not None:
            yield node.lineno, f"{name}() {why}"


def _dotted(node: ast.expr, imports: Mapping[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Call):  # Path("x").read_text()
        return None if not parts else ".".join(["…", *reversed(parts)])
    if not isinstance(node, ast.Name):
        return None
    root = imports.get(node.id)
    if root is None and parts:
        return ".".join(["…", *reversed(parts)])  # of a variable
    return ".".join([root or node.id, *reversed(parts)])


def _has_bare_calls(node: ast.expr) -> bool:
    inner = node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else [getattr(node, "elt", node)]
    return any(
        isinstance(each, ast.Call) and not (isinstance(each.func, ast.Attribute) and each.func.attr == "create_task")
        for each in inner
    )


def _unawaited(body: ast.AST, durable: set[str], imports: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Finds what does nothing in an `async def`, or is cut off at its end: steps and workflows that are called as a
    statement of their own, and groups and tasks of which nobody hears again."""
    if not isinstance(body, ast.AsyncFunctionDef):
        return
    read = {node.id for node in ast.walk(body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in ast.walk(body):
        kept = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            kept = node.targets[0].id
        if not isinstance(node, ast.Expr | ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if isinstance(node, ast.Assign) and (kept is None or kept in read):
            continue
        called = node.value.func
        whole = _dotted(called, imports)
        while isinstance(called, ast.Attribute | ast.Call):
            called = called.value if isinstance(called, ast.Attribute) else called.func
        if whole in _TASKS:
            yield (
                node.lineno,
                f"{whole}(...) is never awaited, so what is not over when the workflow returns is cut off; write "
                f"`await {whole}(...)`",
            )
        elif whole in _AWAITED:
            yield node.lineno, f"{whole}(...) is not awaited, so it does not happen; write `await {whole}(...)`"
        elif isinstance(called, ast.Name) and called.id in durable:
            yield (
                node.lineno,
                f"{called.id}(...) is not awaited, so it does not happen; write `await {called.id}(...)`",
            )
