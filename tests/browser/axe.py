"""axe-core, which finds what people with a keyboard alone or with a screen reader cannot use. From npm, for
tests only."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page

_ROOT = Path(__file__).resolve().parents[2]
_HERE = _ROOT / ".pytest_cache" / "axe"
_FILE = Path("node_modules", "axe-core", "axe.min.js")
_RUN = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((each) => ["serious", "critical"].includes(each.impact))
  .map((each) => [each.id, each.help, ...each.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))]))"""


def find_axe() -> str | None:
    """Its source, if it is there. In CI it is fetched where npm can."""
    for place in (_ROOT, _HERE):
        if (place / _FILE).exists():
            return (place / _FILE).read_text()
    npm = shutil.which("npm")
    if npm is None or not os.environ.get("CI"):
        return None
    _HERE.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "axe-core@4"]
    try:
        done = subprocess.run(command, cwd=_HERE, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm could not fetch axe-core within two minutes; everything else of this test holds")
    if done.returncode:
        pytest.skip(f"npm could not fetch axe-core; everything else of this test holds: {done.stderr[-500:]}")
    return (_HERE / _FILE).read_text()


async def violations(page: Page, axe: str) -> list[Any]:
    """What is serious on the page as it stands."""
    await page.evaluate(axe)
    found: list[Any] = await page.evaluate(_RUN)
    return found
