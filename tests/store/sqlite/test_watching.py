"""How closely a process looks whether another one has written."""

from __future__ import annotations

from pathlib import Path

from kagzi.store.sqlite.connection import WATCH_SECONDS, _ThreadLane, connect, use_write_ahead_log


def test_a_lane_looks_closely_after_another_process_has_written(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    ours, theirs = connect(path), connect(path)
    use_write_ahead_log(theirs)
    theirs.execute("CREATE TABLE written (n INTEGER)")
    lane = _ThreadLane("unstarted", path)
    lane._connection = ours
    lane._look()  # the first look always says "changed"
    lane._looks_closely = 0
    lane._look()
    assert lane._patience() == WATCH_SECONDS
    ours.execute("INSERT INTO written VALUES (1)")
    lane._look()
    assert lane._patience() == WATCH_SECONDS  # our own writing is no news
    theirs.execute("INSERT INTO written VALUES (2)")
    lane._look()
    assert lane._patience() <= WATCH_SECONDS / 5
    ours.close()
    theirs.close()
