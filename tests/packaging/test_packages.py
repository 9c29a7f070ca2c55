"""What is built from the repository: an sdist that can be worked with, a wheel that says where it comes from, and what
builders and users are told when the code for gRPC cannot be made or was left out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_FILES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE")


def build(target: str, tree: Path, into: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)],
        cwd=tree,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def fresh_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel is made of, as a checkout has it: without generated code."""
    tree = tmp_path_factory.mktemp("checkout")
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "proto", tree / "proto")
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("_proto", "__pycache__"))
    return tree


@pytest.fixture(scope="module")
def wheel_without_grpc_code(fresh_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("wheel")
    done = build("wheel", fresh_tree, into, HATCH_BUILD_NO_HOOKS="true")
    assert done.returncode == 0, done.stderr
    (wheel,) = into.glob("*.whl")
    return wheel


def test_the_sdist_has_everything_that_its_makefile_calls(tmp_path: Path) -> None:
    # Without the hook, which would make the code for gRPC anew if a file of the checkout is newer.
    done = build("sdist", ROOT, tmp_path, HATCH_BUILD_NO_HOOKS="true")
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    makefile = (ROOT / "Makefile").read_text()
    modules = set(re.findall(r"-m ((?:scripts|benchmarks)(?:\.\w+)*)", makefile))
    assert {"benchmarks", "scripts.failover", "scripts.pgbouncer"} <= modules
    for module in modules:
        path = module.replace(".", "/")
        assert {f"{path}.py", f"{path}/__main__.py"} & names, f"make calls {module}"
    for path in re.findall(r"\$\(PY\) (\w[\w/]+\.py)", makefile):
        assert path in names, f"make calls {path}"
    assert {"Makefile", ".ci/run", "pyproject.toml", "hatch_build.py", "tests/conftest.py"} <= names
    assert "src/kagzi/_proto/v1/worker_pb2.py" in names  # so that whoever installs it needs no compiler


def test_the_wheel_says_where_the_project_is(wheel_without_grpc_code: Path) -> None:
    with zipfile.ZipFile(wheel_without_grpc_code) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        told = re.findall(r"^Project-URL: (\w+), https://", wheel.read(metadata).decode(), re.MULTILINE)
    assert set(told) == {"Repository", "Documentation", "Changelog", "Issues"}


def test_building_without_the_compiler_says_what_to_do(fresh_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "grpc_tools.py").write_text("raise ModuleNotFoundError(name='grpc_tools')")  # installed or not

    done = build("wheel", fresh_tree, tmp_path, PYTHONPATH=str(tmp_path))

    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "pip install 'grpcio-tools" in done.stderr
    assert "HATCH_BUILD_NO_HOOKS=true" in done.stderr


@pytest.mark.parametrize("command", [["server", "--port", "0"], ["runs", "list", "--url", "grpc://localhost:1"]])
def test_a_command_of_a_wheel_without_the_code_for_grpc_says_what_to_do(
    command: list[str], wheel_without_grpc_code: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel_without_grpc_code) as wheel:
        wheel.extractall(tmp_path / "installed")

    done = subprocess.run(
        [sys.executable, "-m", "kagzi", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert re.search(r"built\s+without\s+its\s+code\s+for\s+gRPC", done.stderr), done.stderr
