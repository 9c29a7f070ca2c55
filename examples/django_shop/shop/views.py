from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from shop.models import Order
from shop.tasks import send_receipt
from shop.workflows import checkout


@csrf_exempt  # for curl
def order(request: HttpRequest, number: str) -> JsonResponse:
    if request.method == "POST":
        return place(number)
    found = Order.objects.filter(number=number).values("payment", "receipts").first()
    return JsonResponse(found or {"error": "there is no such order"}, status=200 if found else 404)


@transaction.atomic  # the order, its run and its task: all of them, or none
def place(number: str) -> JsonResponse:
    Order.objects.get_or_create(number=number)
    run = checkout.options(id=number, connection=connection).start_sync(number)  # a second click finds the first run
    receipt = send_receipt.using(key=f"receipt-{number}").enqueue(number)
    return JsonResponse({"run": run.id, "receipt": receipt.id}, status=202)
