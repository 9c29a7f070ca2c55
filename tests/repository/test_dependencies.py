"""The least versions of what Kagzi needs."""

from __future__ import annotations

import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.repository.test_architecture import ROOT

# The last version with a hole that is known, and which one.
HOLES = {
    "h11": ("0.15", "CVE-2025-43859: chunked bodies that a proxy ends elsewhere"),
    "jinja2": ("3.1.5", "CVE-2025-27516: the sandbox"),
    "starlette": ("1.3.0", "CVE-2026-48710, CVE-2026-54283, CVE-2026-48818: the address that a Host header makes up"),
    "cryptography": ("49.0.0", "CVE-2026-69247"),
    "protobuf": ("6.33.4", "CVE-2025-4565, CVE-2026-0994: nesting without a bound"),
    "grpcio": ("1.84", "the size of a message is checked when all of it has come"),
}


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", HOLES)
def test_no_version_with_a_known_hole_is_accepted(name: str) -> None:
    worst, why = HOLES[name]
    named = [each for each in requirements() if each.name.lower() == name]
    assert named
    assert not [str(each) for each in named if each.specifier.contains(worst)], why
    assert Version(version(name)) > Version(worst)
