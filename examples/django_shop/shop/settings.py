import os
from pathlib import Path

import django

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "only for this example"
DEBUG = os.environ.get("SHOP_DEBUG", "1") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

if "PGDATABASE" in os.environ:  # and PGUSER, PGHOST, PGPORT, as for psql
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["PGDATABASE"],
            "USER": os.environ.get("PGUSER", ""),
            "PASSWORD": os.environ.get("PGPASSWORD", ""),
            "HOST": os.environ.get("PGHOST", ""),
            "PORT": os.environ.get("PGPORT", ""),
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("SHOP_FILE", BASE_DIR / "shop.db"),
            # A transaction that will write waits for its turn when it begins, and is not refused in the middle.
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        }
    }

INSTALLED_APPS = ["shop", "kagzi.contrib.django"]
if django.VERSION < (6, 0):
    INSTALLED_APPS += ["django_tasks"]  # part of Django from 6.0 on

KAGZI = {"app": "shop.workflows:app"}
TASKS = {"default": {"BACKEND": "kagzi.contrib.django.backend.KagziBackend", "QUEUES": ["default", "mail"]}}
