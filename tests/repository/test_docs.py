"""The documentation is true: its code runs or at least compiles, its tables agree with the signatures, its names exist.

Complete programs (those that call `asyncio.run(main())`) and links are checked by test_documents.py.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kagzi
from kagzi import errors
from kagzi.cli.main import COMMANDS
from kagzi.testing import run_virtually

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("**/*.md"))
SOURCES = sorted((ROOT / "src" / "kagzi").glob("**/*.py"))
TEXT = {page: page.read_text() for page in DOCS}
EVERYTHING = "\n".join(TEXT.values())

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[Any]:
    found = []
    for page, text in TEXT.items():
        codes = [code for name, code in _FENCE.findall(text) if name == language]
        found += [pytest.param(code, id=f"{page.stem}-{number}") for number, code in enumerate(codes)]
    return found


def prose(text: str) -> str:
    """What is written for people, with the Python in it and without SQL and terminals."""
    return _FENCE.sub(lambda fence: fence[2] if fence[1] == "python" else "", text)


# Code.


@pytest.mark.parametrize("code", blocks("python"))
def test_python_compiles(code: str) -> None:
    compile(code, "docs", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("code", [block for block in blocks("python") if "\ndef test_" in block.values[0]])
def test_tests_in_the_docs_pass(code: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    module = ModuleType(f"docs_{request.node.callspec.id.replace('-', '_')}")
    # Annotations and dataclasses are looked up by the name of their module.
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, module.__name__, "exec"), module.__dict__)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        given = inspect.signature(test).parameters
        test(**{name: request.getfixturevalue(name) for name in given})


def test_the_tutorial_survives_the_kill(tmp_path: Path) -> None:
    """What the tutorial tells people to do, with its own program: only the step that was cut down runs again."""
    (code,) = [
        code for name, code in _FENCE.findall(TEXT[ROOT / "docs" / "tutorial.md"]) if code.startswith("# shop.py")
    ]
    # The same with less waiting, and so long a step at first that it is surely killed in the middle of it.
    for slow, fast in (('lease="5s"', 'lease="3s"'), ('"2s")\n', '"1.1s")\n')):
        assert slow in code
        code = code.replace(slow, fast)
    assert "asyncio.sleep(10)" in code
    (tmp_path / "shop.py").write_text(code.replace("asyncio.sleep(10)", "asyncio.sleep(60)"))
    with started(tmp_path, "first", "worker") as first, started(tmp_path, "buyer") as buyer:
        until(lambda: "shipping 2 boxes" in first.said())
        first.process.kill()
        first.process.wait()
        (tmp_path / "shop.py").write_text(code.replace("asyncio.sleep(10)", "asyncio.sleep(0.1)"))
        with started(tmp_path, "second", "worker") as second:
            assert buyer.process.wait(60) == 0, buyer.said()
            second.process.send_signal(signal.SIGTERM)
            assert second.process.wait(60) == 0, second.said()
    assert re.findall(r"\] (\w+ing)", first.said()) == ["charging", "packing", "packing", "shipping"]
    assert re.findall(r"\] (\w+ing)", second.said()) == ["shipping"]
    assert "was started" in buyer.said()
    assert "payment-42, tracking-7" in buyer.said()
    assert "ended; it is PENDING now" in second.said() + buyer.said()


class Program:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def said(self) -> str:
        return self.log.read_text()


@contextmanager
def started(directory: Path, name: str, *arguments: str) -> Iterator[Program]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KAGZI_")}
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        command = [sys.executable, "shop.py", *arguments]
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=output)
    try:
        yield Program(process, log)
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


# Names.


def sql_names() -> set[str]:
    store = ROOT / "src" / "kagzi" / "store" / "postgres"
    made = "\n".join(path.read_text() for path in (*store.glob("migrations/*.sql"), store / "sql" / "migrations.sql"))
    return set(re.findall(r"CREATE (?:TABLE|FUNCTION) kagzi\.(\w+)", made))


def attribute_names() -> set[str]:
    """Attributes of spans."""
    return {name for path in SOURCES for name in re.findall(r'"(kagzi\.\w+)"', path.read_text())}


def logger_names() -> set[str]:
    return {name for path in SOURCES for name in re.findall(r'getLogger\("(kagzi[\w.]*)"\)', path.read_text())}


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one, or of a class in one."""
    at: Any = kagzi
    path = "kagzi"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if hasattr(at, part):
            at = getattr(at, part)
        elif isinstance(at, ModuleType) and importlib.util.find_spec(path) is not None:
            at = importlib.import_module(path)
        else:
            return False
    return True


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_names_exist(page: Path) -> None:
    text = prose(TEXT[page])
    sql, loggers = sql_names(), logger_names()
    names = set(re.findall(r"(?<![\w./])(kagzi(?:\.[a-zA-Z]\w*)+)", text))
    unknown = {name for name in names if not exists(name) and name not in loggers and name.split(".")[1] not in sql}
    unknown -= {"kagzi.db", "kagzi.toml"}  # files
    unknown = {name for name in unknown - attribute_names() if not name.startswith("kagzi.v1")}  # the wire
    assert not unknown
    for module, imported in re.findall(r"^from (kagzi[\w.]*) import (.+)$", text, re.MULTILINE):
        for name in imported.split(","):
            assert exists(f"{module}.{name.strip()}"), f"{page.name} imports {name.strip()} from {module}"


@pytest.mark.parametrize("code", blocks("sql"))
def test_names_in_sql_exist(code: str) -> None:
    assert set(re.findall(r"kagzi\.(\w+)", code)) <= sql_names()


NOT_YET = TEXT[ROOT / "docs" / "not-yet.md"]


@pytest.mark.parametrize(
    "absent", [one.strip() for some in re.findall(r"<!-- absent: (.+?) -->", NOT_YET) for one in some.split(",")]
)
def test_what_is_said_to_be_missing_is_missing(absent: str) -> None:
    """Names of `kagzi`, options as `function(option)`, and commands. Whoever adds one of them takes its row away."""
    if absent.startswith("command "):
        assert absent.removeprefix("command ") not in COMMANDS
        return
    name, _, option = absent.rstrip(")").partition("(")
    if not option:
        assert not exists(f"kagzi.{name}")
        return
    function: Any = kagzi
    for part in name.split("."):
        function = getattr(function, part)
    assert option not in inspect.signature(function).parameters


def test_every_row_about_something_missing_is_held_by_a_name() -> None:
    table = [line for line in NOT_YET.splitlines() if line.startswith("|")][2:]
    assert len(table) > 1
    assert [line for line in table if "<!-- absent: " not in line] == []


def test_every_public_name_is_documented() -> None:
    missing = {name for name in kagzi.__all__ if not re.search(rf"\b{re.escape(name)}\b", EVERYTHING)}
    # What annotations name, and users never make: Handle is what start() returns, Step and Workflow what decorators do.
    assert missing <= {"Step", "Workflow", "StepKind", "StepStatus", "__version__"}


# Tables.


def rows(text: str) -> list[list[str]]:
    lines = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines]


def test_every_error_has_its_row() -> None:
    table = {row[0].strip("`"): row[1].strip("`") for row in rows(TEXT[ROOT / "docs" / "retries-and-errors.md"])}
    classes = {
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.KagziError)
    }
    assert {cls.__name__: cls.code for cls in classes}.items() <= table.items()


@pytest.mark.parametrize(
    "function",
    [
        kagzi.Kagzi.__init__,
        kagzi.Kagzi.worker,
        kagzi.Kagzi.run_worker,
        kagzi.Kagzi.step,
        kagzi.Kagzi.workflow,
        kagzi.Kagzi.runs,
        kagzi.Step.options,
        kagzi.Workflow.options,
        kagzi.Retry.__init__,
        kagzi.Retry.fixed,
        run_virtually,
    ],
    ids=lambda function: function.__qualname__,
)
def test_every_parameter_is_mentioned(function: Callable[..., Any]) -> None:
    parameters = [name for name in inspect.signature(function).parameters if name not in ("self", "fn", "app", "main")]
    missing = [name for name in parameters if not re.search(rf"`{name}`|\b{name}=", EVERYTHING)]
    assert not missing


@pytest.mark.parametrize("name", re.findall(r"<!-- defaults of (\S+) -->", EVERYTHING))
def test_defaults_are_those_of_the_code(name: str) -> None:
    """Tables that are marked so list every parameter with its default."""
    at: Any = kagzi
    for part in name.split(".")[1:]:
        at = getattr(at, part)
    table = EVERYTHING.partition(f"<!-- defaults of {name} -->\n")[2].partition("\n\n")[0]
    documented = {}
    for names, default, *_ in rows(table)[2:]:
        for parameter in re.findall(r"`(\w+)`", names):
            documented[parameter] = ast.literal_eval(default.strip("`"))
    actual = {
        parameter.name: parameter.default
        for parameter in inspect.signature(at).parameters.values()
        if parameter.name != "self"
    }
    assert documented == actual


def test_there_are_tables_of_defaults() -> None:
    assert len(re.findall(r"<!-- defaults of ", EVERYTHING)) >= 3
