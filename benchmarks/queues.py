"""`python -m benchmarks.queues`: throughput of a queue with a limit of 50, a rate and priorities, beside DBOS.

Exit code 1 if Kagzi is not ahead, or if more than the limit were running at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.clocks import make_databases
from benchmarks.environments import ROOT, python_of
from benchmarks.systems.queued import LIMIT
from kagzi.testing.postgres import PostgresServer

SYSTEMS = {"kagzi": "Kagzi", "dbos": "DBOS"}


def measure(system: str, url: str, runs: int, directory: str) -> float:
    file = Path(directory, "queued.json")
    command = (python_of(system, print), "-m", "benchmarks.systems.queued", system, url, str(runs), str(file))
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    seconds, most = json.loads(file.read_text())
    if most > LIMIT:
        raise SystemExit(f"{SYSTEMS[system]}: {most} were running at once, of {LIMIT}")
    return runs / float(seconds)


def main(runs: dict[str, int], stores: Sequence[str], repeat: int) -> bool:
    ahead = True
    with PostgresServer() as server, tempfile.TemporaryDirectory() as directory:
        for store in stores:
            rates: dict[str, list[float]] = {system: [] for system in SYSTEMS}
            for number in range(repeat):
                for system, found in rates.items():
                    name = f"{system}_{number}"
                    url = f"sqlite:///{directory}/{name}.db"
                    if store == "postgresql":
                        asyncio.run(make_databases(server, [name]))
                        url = server.url_of(name)
                    found.append(measure(system, url, runs[system], directory))
            ours, theirs = median(rates["kagzi"]), median(rates["dbos"])
            ahead &= ours > theirs
            print(f"{store}: at most {LIMIT} at once, with a rate and priorities, runs a second", flush=True)
            for system, found in rates.items():
                print(f"  {SYSTEMS[system]:6} {median(found):8,.0f}   ({', '.join(f'{each:,.0f}' for each in found)})")
            print(f"  {ours / theirs:.1f} x")
    return ahead


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--peer-runs", type=int, default=500)
    parser.add_argument("--stores", default="postgresql,sqlite")
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    runs = {"kagzi": asked.runs, "dbos": asked.peer_runs}
    raise SystemExit(not main(runs, asked.stores.split(","), asked.repeat))
