"""Pages that ask before something is changed: they say what will have happened, and hold the form that does it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kagzi.dashboard.shell import page
from kagzi.dashboard.system import PlainQuery
from kagzi.http.call import Call, Html


class AskQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class EmptyForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Option(Struct, frozen=True):
    """A value that can be chosen, and how it is called."""

    value: str
    label: str


class Field(Struct, frozen=True, kw_only=True):
    """A field of a form."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    error: str = ""  # what is wrong with the value
    kind: str = "text"  # of an <input>
    long: bool = False
    rows: int = 6
    required: bool = False
    hidden: bool = False
    box: bool = False  # to be ticked; its value is `true` or nothing
    choices: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()  # the same with names of their own
    step: str = "any"  # of a number, with the `least` and the `most` of it
    least: str = ""
    most: str = ""
    known: tuple[str, ...] = ()  # values that are offered, among others


class Subject(Struct, frozen=True, kw_only=True):
    """The subject of a question, and the page of it."""

    about: str
    path: str
    tab: str
    target: str | None = None  # the address of the form, where it is not below the page


class Question(Struct, frozen=True, kw_only=True):
    """A question that is asked before something is done. `label` is the link that leads to the question, `button` what
    is agreed to there, `consequence` what will have happened."""

    verb: str
    button: str
    consequence: str
    form: type[Struct]
    label: str = ""
    fields: tuple[Field, ...] = ()
    grave: bool = False

    async def ask(self, call: Call[AskQuery, None]) -> Html:
        return await self.show(call, await self.fields_for(call))

    async def show(
        self, call: Call[Any, Any], fields: tuple[Field, ...], *, status: int = 200, trouble: str = ""
    ) -> Html:
        """Returns the page that asks, with the fields as they are filled in, and with what was wrong with them."""
        subject = await self.subject(call)
        return await page(
            call,
            "ask.html",
            title=f"{self.button}: {subject.about}",
            tab=subject.tab,
            action=self,
            status=status,
            trouble=trouble,
            fields=fields,
            about=subject.about,
            back=subject.path,
            target=subject.target or f"{subject.path}/{self.verb}",
        )

    async def subject(self, call: Call[Any, Any]) -> Subject:
        raise NotImplementedError

    async def fields_for(self, call: Call[Any, Any]) -> tuple[Field, ...]:  # noqa: ARG002
        """Returns the fields as they are filled in for this subject."""
        return self.fields
