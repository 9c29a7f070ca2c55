"""Logging in with an API key, and out again."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote_plus

from msgspec import Meta, Struct

from kagzi.dashboard.shell import links_of, plain_page
from kagzi.errors import Unauthenticated
from kagzi.http.call import Call, Html, NoQuery, Redirect
from kagzi.http.limits import PUBLIC_BYTES

_KEY_CHARACTERS: Final = 255
_ADDRESS_CHARACTERS: Final = 4_000
_SENT_CHARACTERS: Final = PUBLIC_BYTES // 2
_ACTION: Final = "POST /login"


class LoginQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    next: Annotated[str, Meta(max_length=_ADDRESS_CHARACTERS)] | None = None


async def ask_login(call: Call[LoginQuery, None]) -> Html | Redirect:
    to = _ours(call.query.next)
    if not await call.host.gate.configured():
        return Redirect(to)  # nobody is asked for a key
    return _form(call, to)


class LoginForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: Annotated[str, Meta(max_length=_KEY_CHARACTERS)] = ""
    next: Annotated[str, Meta(max_length=_ADDRESS_CHARACTERS)] | None = None


async def log_in(call: Call[NoQuery, LoginForm]) -> Html | Redirect:
    key, to = call.body.key.strip(), _ours(call.body.next)
    try:
        caller = await call.host.gate.recognise(_ACTION, key=key, peer=call.peer, request_id=lambda: call.request_id)
    except Unauthenticated as error:
        return _form(call, to, wrong=str(error) if key else "Enter a key.", status=401)
    if caller.key_id is None:
        return Redirect(to, session="")
    session = call.host.ids.token()
    await call.host.gate.log_in(caller, session, call.host.sessions.lifetime)
    return Redirect(to, session=call.host.sessions.cookie_of(session))


class LogoutForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


async def log_out(call: Call[NoQuery, LogoutForm]) -> Redirect:
    if (session := call.host.sessions.read(call.session)) is not None:
        await call.host.gate.log_out(session)
    return Redirect("/login", session="")


def _form(call: Call[LoginQuery, None] | Call[NoQuery, LoginForm], to: str, wrong: str = "", status: int = 200) -> Html:
    page = plain_page(
        "login.html",
        title="Log in",
        to=to,
        wrong=wrong,
        form_token=call.host.sessions.form_token(call.session),
        link=links_of(call),
    )
    return Html(page, status)


def _ours(address: str | None) -> str:
    """Returns where to go afterwards: a page of ours, and never one of another site."""
    if address is None or len(quote_plus(address)) > _SENT_CHARACTERS:  # more than the form may send
        return "/"
    if not address.startswith("/") or address.startswith("//") or "\\" in address:
        return "/"
    return address if address.isprintable() else "/"
