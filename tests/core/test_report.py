from __future__ import annotations

from kagzi.core.failure import Failure
from kagzi.core.report import places, report


def test_a_report_reads_as_python_prints_errors() -> None:
    group = Failure("builtins.ExceptionGroup", "two", traceback="  File c", members=(Failure("a.B", "first"),))
    failure = Failure(
        "shop.Gone", "boom", traceback="  File b", cause=Failure("builtins.KeyError", traceback="  File a")
    )
    above = "Traceback (most recent call last):\n  File a\nKeyError\n\nThe error above led to this one:\n\n"
    assert places(failure) == f"{above}Traceback (most recent call last):\n  File b"
    assert report(failure) == f"{places(failure)}\nshop.Gone: boom"
    assert report(group).splitlines()[1:] == [
        "  File c",
        "ExceptionGroup: two",
        "Error 1 of 1 in the group:",
        "  a.B: first",
    ]
    assert places(Failure("a.B", "nobody knows where")) == ""
