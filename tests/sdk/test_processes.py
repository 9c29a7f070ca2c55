"""The parent of several worker processes, with small programs in the place of workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND
from kagzi.errors import InvalidRequest
from kagzi.ids import RandomIds
from kagzi.sdk.worker import member as members
from kagzi.sdk.worker.processes import Processes, check_shared, process_count
from kagzi.sdk.worker.restarts import Restarts

CHILD = """
import os, socket, sys, time
place, group, channel = os.environ["KAGZI_WORKER_CHILD"].split(":")
channel = socket.socket(fileno=int(channel))
number = place.partition("/")[0]
"""


class Even(RandomIds):
    def jitter(self) -> float:
        return 0.0


def group_of(program: str, count: int = 2) -> Processes:
    clock = SystemClock()
    command = [sys.executable, "-c", CHILD + program]
    return Processes(command, count, clock=clock, ids=Even(clock.now), environ=os.environ)


def test_pauses_double_until_a_process_has_lived_for_a_minute_and_the_fifth_short_life_is_the_last() -> None:
    restarts = Restarts(lambda: 0.5)
    pauses = [restarts.pause(SECOND) for _ in range(4)]
    assert pauses == [1 * SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND]
    assert restarts.pause(61 * SECOND) == SECOND
    assert [restarts.pause(59 * SECOND) for _ in range(5)] == [1 * SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND, None]
    early, late = Restarts(lambda: 0.0), Restarts(lambda: 1.0)
    assert (early.pause(0), late.pause(0)) == (0.75 * SECOND, 1.25 * SECOND)


def test_a_process_that_dies_is_started_again_and_one_that_drains_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marker = tmp_path / "died"
    program = f"""
if number == "2" and not os.path.exists({str(marker)!r}):
    open({str(marker)!r}, "w").close()
    os.kill(os.getpid(), 9)
"""
    with caplog.at_level("INFO", "kagzi.worker"):
        assert group_of(program).run() == 0
    said = [record.getMessage() for record in caplog.records]
    (died,) = [line for line in said if "SIGKILL" in line]
    assert died.startswith("process 2/2 (pid ")
    assert died.endswith("was killed by SIGKILL; it starts again in 700ms")
    assert sum("has drained" in line for line in said) == 2


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        ("sys.exit(2)", 2, "cannot be used"),
        ("channel.send(b'u'); sys.exit(1)", 2, "cannot be used"),
        ("channel.send(b'r'); sys.exit(1)", 1, "refuses its key"),
    ],
)
def test_what_a_new_process_would_not_mend_ends_all(
    end: str, code: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = group_of(f"if number == '1': {end}\ntime.sleep(60)")
    begun = time.monotonic()
    assert group.run() == code
    assert time.monotonic() - begun < 30
    assert told in caplog.text


STUBBORN = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("told", number, flush=True))
print("up", flush=True)
while True:
    time.sleep(60)
"""


def test_two_signals_are_passed_on_and_the_third_kills() -> None:
    program = (
        "import os, sys; from kagzi.clock import SystemClock; from kagzi.ids import RandomIds;"
        "from kagzi.sdk.worker.processes import Processes; clock = SystemClock();"
        "sys.exit(Processes([sys.executable, '-c', sys.argv[1]], 1, clock=clock, ids=RandomIds(clock.now),"
        "environ=os.environ).run())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, CHILD + STUBBORN], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        for number in (signal.SIGINT, signal.SIGTERM):
            parent.send_signal(number)
            assert parent.stdout.readline() == "told 1\n"
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(30) == 1
        assert parent.stdout.read() == ""


def test_how_many_processes() -> None:
    assert process_count(3) == 3
    assert 1 <= process_count("auto") <= 256
    for wrong in (0, -1, 257, True, 1.5, "many", None):
        with pytest.raises(InvalidRequest, match="processes must be a whole number from 1 to 256"):
            process_count(wrong)
    with pytest.raises(InvalidRequest, match="memory://"):
        check_shared("memory://")


def test_a_variable_that_nobody_of_ours_has_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("2", "1/2:group:9999", "a/b:group:0"):
        monkeypatch.setenv(members.VARIABLE, wrong)
        with pytest.raises(InvalidRequest, match="kagzi worker --processes"):
            members.member()
        assert members.VARIABLE not in os.environ
