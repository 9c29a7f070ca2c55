"""What people read is true: programs in documents run, links lead somewhere, nothing of a machine is written down."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import Warm

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def programs() -> list[tuple[str, str]]:
    """Complete programs in documents: fenced Python that ends with a call of main()."""
    found = []
    for document in DOCUMENTS:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)):
            if "asyncio.run(main())" in code or code.endswith("\n    main()\n"):
                found.append((f"{document.name}-{number}", code))
    return found


@pytest.mark.parametrize(("name", "code"), programs(), ids=lambda value: value if len(value) < 60 else "code")
def test_programs_in_documents_run(name: str, code: str, tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "program.py").write_text(code)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("KAGZI_")}
    done = warm.run(["program.py"], directory=tmp_path, environ=environ, seconds=60)
    assert done.returncode == 0, f"{name}: {done.stderr}"
    assert done.stdout, f"{name} says nothing"


def test_the_readme_has_a_program() -> None:
    assert any(name.startswith("README") for name, _ in programs())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_importing_kagzi_is_light() -> None:
    """`import kagzi` loads no optional dependency and nothing that only a terminal needs."""
    code = "import sys, kagzi; print(' '.join(sorted(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"asyncpg", "pydantic", "attr", "rich", "click", "uvloop", "grpc", "starlette", "uvicorn", "sqlite3"}
    assert not heavy & set(loaded)


def test_every_error_is_in_the_tree() -> None:
    """The exception tree drawn in errors.py names every class there is."""
    from kagzi import errors

    drawn = set(re.findall(r"\b[A-Z]\w+\b", errors.__doc__ or ""))
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes <= drawn, classes - drawn
    codes = [value.code for value in vars(errors).values() if isinstance(value, type) and hasattr(value, "code")]
    assert len(codes) == len(set(codes)), "codes are unique"


def test_public_names_exist_and_are_sorted() -> None:
    import kagzi

    assert kagzi.__all__ == sorted(kagzi.__all__)
    for name in kagzi.__all__:
        assert getattr(kagzi, name) is not None
