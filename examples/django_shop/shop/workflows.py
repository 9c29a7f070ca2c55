import os
import time

from kagzi import Kagzi
from shop.models import Order

app = Kagzi()  # in Django's own database, since nothing else is said


@app.step
def charge(number: str) -> str:
    time.sleep(float(os.environ.get("SHOP_BANK_SECONDS", "0")))  # the bank takes its time
    return f"payment-{number}"


@app.step
def book(number: str, payment: str) -> None:
    Order.objects.filter(number=number).update(payment=payment)  # the ORM is at home in steps


@app.workflow
def checkout(number: str) -> str:
    payment = charge.call(number)
    book.call(number, payment)
    return payment
