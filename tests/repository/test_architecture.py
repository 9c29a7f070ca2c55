"""What ARCHITECTURE.md, CONTRIBUTING.md and tests/README.md say about the tree is so."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "kagzi"
PACKAGES = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
MODULES = {path.name for path in SOURCE.glob("*.py") if not path.name.startswith("__")}


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md"])
def test_paths_that_are_named_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.py|\.sql|\.proto|\.md))`", text))
    assert named
    places = (ROOT, SOURCE, ROOT / "tests")
    # A name without a folder is one of a folder that the sentence is about.
    wrong = {
        name
        for name in named
        if not any((place / name).exists() for place in places)
        and (
            "/" in name.rstrip("/")
            or not any(any(place.rglob(name.rstrip("/"))) for place in (*places[1:], ROOT / "proto"))
        )
    }
    assert not wrong


def test_the_table_of_the_architecture_names_every_package() -> None:
    rows = [
        line for line in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    named = {name.split("/")[0] for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert named >= PACKAGES | MODULES, (PACKAGES | MODULES) - named


def test_the_import_contract_names_every_package() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    named = {name for layer in contracts[0]["layers"] for name in re.findall(r"kagzi\.(\w+)", layer)}
    rooms = {name.removesuffix(".py") for name in PACKAGES | MODULES} - {"_proto"}
    assert rooms <= named, rooms - named


def test_the_import_contract_names_every_module_of_the_store() -> None:
    """A module that it does not name could import one of the two databases, which share it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    named = {name for layer in contracts[0]["layers"] for name in re.findall(r"kagzi\.store\.(\w+)", layer)}
    store = SOURCE / "store"
    rooms = {path.parent.name for path in store.glob("*/__init__.py")} | {path.stem for path in store.glob("*.py")}
    assert rooms - {"__init__"} == named, (rooms - {"__init__"}) ^ named


def test_every_folder_of_the_tests_is_in_their_readme() -> None:
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= set(re.findall(r"`(\w+)[`/]", text)), folders


def _falls_through(match: ast.Match) -> bool:
    """Whether a value that no case names is passed over, or taken for the last one of an enumeration."""
    last = match.cases[-1]
    if not (isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None):
        return True
    members = any(
        isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Attribute) for node in ast.walk(match)
    )
    ends = last.body[-1]
    refuses = isinstance(ends, ast.Raise) or (isinstance(ends, ast.Expr) and "assert_never" in ast.unparse(ends))
    return members and not refuses


def test_no_match_forgets_a_case() -> None:
    """Each has a last case for everything else; over the members of an enumeration that one is `assert_never`, so that
    mypy names every place where a new member has to be thought of."""
    product = ROOT / "src" / "kagzi"
    forgetful = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in product.rglob("*.py")
        if "testing" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Match) and _falls_through(node)
    ]
    assert forgetful == []
