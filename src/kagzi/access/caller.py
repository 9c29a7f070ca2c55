"""The caller of a call: who the audit log names, what role, which namespace."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kagzi.core.key import Role
from kagzi.errors import PermissionDenied

ANYONE: Final = "anyone"  # where nobody is asked who they are
_SCHEME: Final = "bearer "


class Caller(Struct, frozen=True, kw_only=True):
    key_id: str | None  # None: no keys are configured, anyone may do anything
    namespace: str | None  # the only one it may see; None: all of them
    role: Role
    peer: str
    session: str | None = None  # of the dashboard, which it has logged in to
    user: str | None = None  # where a web app of the user's decides who comes in: whom it says it is

    @property
    def actor(self) -> str:
        """Returns the caller as the audit log names it."""
        if self.key_id is not None:
            return f"key:{self.key_id}"
        return ANYONE if self.user is None else f"user:{self.user}"

    def confine(self, namespace: str) -> str:
        """Returns the namespace that a request means: the one it names, else the key's, else (the empty text) the
        caller's choice. Raises PermissionDenied if the key is for another one."""
        if self.namespace is None or namespace == self.namespace:
            return namespace
        if namespace:
            raise PermissionDenied(
                f"this key is for namespace {self.namespace}, and the request names another; set KAGZI_NAMESPACE, or "
                "use another key"
            )
        return self.namespace


def shown_key(authorization: str | None) -> str | None:
    """Returns the key in the header (or metadata) `authorization`, with its scheme or without; None if there is no
    header."""
    if authorization is None:
        return None
    bare = authorization[: len(_SCHEME)].lower() != _SCHEME
    return authorization if bare else authorization[len(_SCHEME) :].strip()
