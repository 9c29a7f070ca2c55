"""Kagzi in a Django project: `INSTALLED_APPS += ["kagzi.contrib.django"]`, then `manage.py kagzi_worker`.

`get_app()` is the app of the project, the one that `KAGZI = {"app": "shop.workflows:app"}` names or one that is made
here. Its runs live in Django's own database unless something else is said. `get_app().asgi(auth=staff)` is the
dashboard for the staff of the project. See docs/django.md.
"""

from kagzi.contrib.django.access import staff
from kagzi.contrib.django.project import get_app

__all__ = ["get_app", "staff"]
