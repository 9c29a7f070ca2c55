"""Who of the users of a Django project may see the dashboard: `get_app().asgi(auth=staff)`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth import aget_user
from django.http import HttpRequest

if TYPE_CHECKING:
    from starlette.requests import Request


async def staff(request: Request) -> str:
    """Returns the name of the staff member whose session a request shows; of others the empty text, which lets nobody
    in. They log in where they do otherwise, in Django's admin for example."""
    store = import_module(settings.SESSION_ENGINE).SessionStore
    seen = HttpRequest()
    seen.session = store(request.cookies.get(settings.SESSION_COOKIE_NAME))
    user = await aget_user(seen)
    return user.get_username() if user.is_active and getattr(user, "is_staff", False) else ""
