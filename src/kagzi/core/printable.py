"""Makes text safe to show: text written by others must not move the cursor, repaint the screen or turn the reading
around.

A terminal obeys ESC and the C1 controls; bidi controls make text read otherwise than it is (`admin` for `nimda`).
"""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, but for tabs and ends of lines
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidi
    "\u2028\u2029"  # ends of lines to some programs
    "\ud800-\udfff"  # halves of surrogate pairs, which cannot be written at all
    "]"
)


def printable(text: str) -> str:
    r"""Returns the text with each hidden character as Python writes it: `\x1b`."""
    return _HIDDEN.sub(lambda found: repr(found[0])[1:-1], text)


def printable_json(document: str) -> str:
    r"""Returns the same JSON with each hidden character as JSON writes it: `\u001b`. They occur within texts only."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", document)
