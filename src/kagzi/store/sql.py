"""Named statements, kept in `.sql` files beside the store that speaks them.

    -- name: claim_runs
    -- Lease the due runs which have waited longest.
    WITH candidates AS (...

A statement begins at its `-- name:` line, is introduced by at least one sentence of comment, and ends where
the next one begins. The text reaches the database without its introduction and without the semicolon.

What several statements say alike stands once, as a fragment of any file in the folder, with a sentence of its own:

    -- fragment: claim_key(at, priority, now)
    -- The order of claiming.
    CASE WHEN {at} > {now} THEN {at} ELSE least({at} - {priority} * {{AGEING}}, {now}) END

A statement, or another fragment, has its text as `{{claim_key(r.available_at, r.priority, i.now)}}`. `{{AGEING}}` is
the constant of `core.run`, so that SQL and Python cannot differ. `{{carried(r)}}` and its like are columns that runs
carry (`kagzi.store.columns`).
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final, LiteralString

from msgspec import Struct

from kagzi.core.run import AGEING, CANCEL_GRACE, HELD_GRACE
from kagzi.store.columns import MAKERS

_HEADER: Final = re.compile(r"^-- (name|fragment): *(\w+)(?:\((.*)\))? *$", re.MULTILINE)
_USE: Final = re.compile(r"\{\{(\w+)(?:\((.*?)\))?\}\}")
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


class Fragment(Struct, frozen=True):
    """A piece of SQL, and the names of what it is given."""

    text: str
    parameters: tuple[str, ...] = ()


_CONSTANTS: Final = {
    name: Fragment(str(span))
    for name, span in (("AGEING", AGEING), ("CANCEL_GRACE", CANCEL_GRACE), ("HELD_GRACE", HELD_GRACE))
}


def load_statements(package: str) -> dict[str, LiteralString]:
    """Returns every statement in the `sql` folder of a package, by name.

    They come from files of ours and never from a caller, hence LiteralString.
    """
    folder = files(package).joinpath("sql")
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".sql")}
    return parse_statements(texts)


def parse_statements(texts: dict[str, str]) -> dict[str, LiteralString]:
    """Returns the statements of these files, with the text of their fragments in its place."""
    statements: dict[str, str] = {}
    fragments: dict[str, Fragment] = dict(_CONSTANTS)
    for file_name, text in sorted(texts.items()):
        # split() alternates between what lies before a header, the three parts of it, and what follows it.
        parts = _HEADER.split(text)
        for kind, name, parameters, body in zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True):
            if name in statements or name in fragments or name in MAKERS:
                raise ValueError(f"{file_name}: a {kind} called {name} exists already")
            piece = _without_introduction(body, name, file_name)
            if kind == "fragment":
                names = tuple(each.strip() for each in parameters.split(",")) if parameters else ()
                fragments[name] = Fragment(piece, names)
            else:
                statements[name] = piece
    return {name: _expand(text, fragments, name) for name, text in statements.items()}


def _without_introduction(body: str, name: str, file_name: str) -> str:
    lines = body.strip().splitlines()
    start = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
    piece = "\n".join(lines[start:]).strip().removesuffix(";").rstrip()
    if start == 0:
        raise ValueError(f"{file_name}: {name} has no sentence that introduces it")
    if not piece:
        raise ValueError(f"{file_name}: {name} is empty")
    return piece


def _expand(text: str, fragments: dict[str, Fragment], owner: str) -> str:
    def fill(use: re.Match[str]) -> str:
        name, given = use[1], _split(use[2]) if use[2] else []
        if name in MAKERS:
            try:
                return MAKERS[name](*given)
            except (TypeError, ValueError, IndexError) as error:
                raise ValueError(f"{owner}: {use[0]} is not understood: {error}") from None
        fragment = fragments.get(name)
        if fragment is None:
            raise ValueError(f"{owner}: there is no fragment called {name}")
        if len(given) != len(fragment.parameters):
            raise ValueError(f"{owner}: {name} takes {len(fragment.parameters)} values, not {len(given)}")
        values = dict(zip(fragment.parameters, given, strict=True))
        # Constants and other fragments are in double braces; what is left in single ones is a parameter.
        return _PARAMETER.sub(lambda part: values[part[1]], _expand(fragment.text, fragments, name))

    # Uses may be nested in what a fragment is given: the innermost have no use inside, so they go first.
    before = ""
    while text != before:
        before, text = text, _USE.sub(fill, text)
    return text


def _split(given: str) -> list[str]:
    """Splits at the commas that are in no parentheses."""
    values, depth = [""], 0
    for character in given:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            values.append("")
        else:
            values[-1] += character
    return [value.strip() for value in values]
