"""Build hook: makes src/kagzi/_proto/ from proto/.

Generated code is not kept in the repository. An sdist contains it, so that nobody who installs from one needs the
compiler, which is asked for only while something is out of date.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# 1.76 makes code for protobuf 6.31 and later, which runs under 7.x too. Later compilers would lock out users of 6.x;
# Python 3.15 has no wheels of 1.76.
COMPILER = ["grpcio-tools==1.76.*; python_version < '3.15'", "grpcio-tools>=1.85; python_version >= '3.15'"]

ROOT = Path(__file__).resolve().parent
SOURCES = sorted((ROOT / "proto").rglob("*.proto"))
# The folders below proto/ repeat the package, because imports in generated code follow the paths of the protos.
MODULES = [ROOT / "src" / proto.relative_to(ROOT / "proto").with_suffix("") for proto in SOURCES]
PACKAGES = {ROOT / "src/kagzi/_proto"} | {module.parent for module in MODULES}
MADE = [Path(f"{module}{suffix}") for module in MODULES for suffix in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")]


class WireContract(BuildHookInterface[BuilderConfig]):
    def dependencies(self) -> list[str]:
        return COMPILER if outdated() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        if outdated():
            generate()


def outdated() -> bool:
    if not all(path.exists() for path in MADE):
        return True
    newest = max(path.stat().st_mtime for path in [*SOURCES, Path(__file__)])
    return newest > min(path.stat().st_mtime for path in MADE)


def generate() -> None:
    try:
        from grpc_tools import protoc  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        if error.name != "grpc_tools":
            raise
        raise SystemExit(
            "Kagzi's code for gRPC is made from proto/ when Kagzi is built, and its compiler is not installed.\n"
            f"Run: pip install '{COMPILER[sys.version_info >= (3, 15)].partition(';')[0]}'\n"
            "or let pip fetch it for the build: leave out --no-build-isolation.\n"
            "Without a server and gRPC, Kagzi can be built without it: set HATCH_BUILD_NO_HOOKS=true."
        ) from None

    for package in PACKAGES:
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
    arguments = [f"--{kind}_out={ROOT / 'src'}" for kind in ("python", "pyi", "grpc_python")]
    arguments += [f"-I{ROOT / 'proto'}", f"-I{resources.files('grpc_tools') / '_proto'}", *map(str, SOURCES)]
    if protoc.main(["protoc", *arguments]) != 0:
        raise SystemExit("proto/ does not compile; see above")
