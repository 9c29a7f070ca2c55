"""`make pythons` finds interpreters; what it runs on them is the suite."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts import pythons
from scripts.pythons import LEFT_OUT, ROOT, TESTS, Python, ask, find, missing, supported


def interpreter(folder: Path, name: str, says: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


def test_interpreters_on_path_and_of_pyenv_are_found_once_each(tmp_path: Path) -> None:
    there, pyenv = tmp_path / "bin", tmp_path / "home" / ".pyenv" / "versions"
    first = interpreter(there, "python3", "echo 3 97 9 -")
    interpreter(there, "python3.97", "echo 3 97 8 -")  # another one of the same minor version
    interpreter(there, "python3.13", "echo shim: not chosen >&2; exit 127")
    interpreter(there, "python3.97-config", "echo 3 99 0 -")
    second = interpreter(pyenv / "3.98.0" / "bin", "python", "echo 3 98 0 -")
    threaded = interpreter(pyenv / "3.98.0t" / "bin", "python", "echo 3 98 0 t")
    interpreter(pyenv / "3.10.13" / "bin", "python", "echo 3 10 13 -")

    found = find({"PATH": f"{there}:{tmp_path / 'nowhere'}", "HOME": str(tmp_path / "home")})

    others = [python for python in found if python.path != Path(sys.executable)]
    assert others == [
        Python((3, 97, 9), "", first),
        Python((3, 98, 0), "", second),
        Python((3, 98, 0), "t", threaded),
    ]
    assert Path(sys.executable) in [python.path for python in found]


def test_what_is_not_there_is_named() -> None:
    assert supported()[:2] == ["3.11", "3.12"]
    assert missing([Python((3, 11, 7), "", Path("a")), Python((3, 12, 1), "", Path("b"))]) == supported()[2:]


def test_what_does_not_answer_is_no_interpreter(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("not a program")
    assert ask(tmp_path / "python3") is None
    assert ask(tmp_path / "absent") is None


def test_the_tests_that_it_runs_exist() -> None:
    assert [path for path in (*TESTS, *LEFT_OUT) if not (ROOT / path).exists()] == []
    assert pythons.ENVIRONMENTS.name in (ROOT / ".gitignore").read_text()
