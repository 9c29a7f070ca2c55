"""A shop in Django: requests store an order and start its run in one transaction, workers execute runs and tasks.

python manage.py migrate                                  # in this directory; makes Kagzi's tables, too
python manage.py kagzi_worker                             # as often as you like; starts anew when you change a file
python manage.py runserver                                # or gunicorn --workers 2 shop.wsgi
curl -X POST localhost:8000/orders/42                     # and then curl localhost:8000/orders/42
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
