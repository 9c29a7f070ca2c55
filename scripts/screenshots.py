"""Pictures of the dashboard for the documents: `make screenshots` writes docs/images/.

Shows the demo of `kagzi dev` in a directory of its own, waits until its order asks for approval, and looks at it with
the Chromium that is there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
SHOTS = (("run", "/runs/demo-1", "light"), ("run-dark", "/runs/demo-1", "dark"), ("overview", "/", "light"))
_PATIENCE_SECONDS = 120


def main() -> None:
    chromium = os.environ.get("KAGZI_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no Chromium; `make browser` installs it, KAGZI_CHROMIUM names one")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "pyproject.toml").touch()
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KAGZI_")}
        dev = subprocess.Popen(
            [sys.executable, "-m", "kagzi", "dev", "--http-port", "0"],
            cwd=directory,
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert dev.stderr is not None
            url = next(line for line in dev.stderr if line.startswith("dashboard: ")).split()[1]
            _wait_for_approval(url)
            _take(chromium, url)
        finally:
            dev.send_signal(signal.SIGTERM)
            dev.wait(timeout=60)


def _wait_for_approval(url: str) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{url}/api/v1/runs?id=demo-1", timeout=30) as answer:
            runs = json.load(answer)["runs"]
        if runs:
            with urllib.request.urlopen(f"{url}/api/v1/runs/demo-1", timeout=30) as answer:
                if "Waiting for signal" in (json.load(answer)["why"] or ""):
                    return
        time.sleep(0.2)
    sys.exit("the demo did not come as far as its signal")


def _take(chromium: str, url: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, path, theme in SHOTS:
            page = browser.new_page(color_scheme=theme, viewport={"width": 1200, "height": 860})  # type: ignore[arg-type]
            page.goto(url + path)
            page.wait_for_timeout(500)
            page.screenshot(path=IMAGES / f"{name}.png")
            print(f"docs/images/{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
