"""Who may call what, for every port of a server.

`table.py` is the one list of actions and who may take them; what is not in it is refused. `Gate` knows callers by their
keys and asks the table.
"""

from __future__ import annotations

from kagzi.access.caller import Caller, shown_key
from kagzi.access.gate import Gate
from kagzi.access.table import ACTIONS, Rule
from kagzi.core.key import Role

__all__ = ["ACTIONS", "Caller", "Gate", "Role", "Rule", "shown_key"]
