import django
from django.db.models import F

from kagzi import Retry
from shop.models import Order

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task(queue_name="mail")
def send_receipt(number: str) -> str:
    Order.objects.filter(number=number).update(receipts=F("receipts") + 1)
    return f"receipt for {number}"


# In Django 6.1, and with django-tasks, the decorator takes it: @task(retry=Retry(attempts=5), timeout="1m")
send_receipt = send_receipt.using(retry=Retry(attempts=5), timeout="1m")
