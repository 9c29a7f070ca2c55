"""A shop in Flask: requests start runs without await, and a worker of its own executes them.

gunicorn --workers 2 shop:web           # in this directory
kagzi worker shop.py                    # beside it, as often as you like
curl -X POST localhost:8000/orders/42   # and then curl localhost:8000/orders/42
"""

from flask import Flask
from flask.typing import ResponseReturnValue

from kagzi import Kagzi, NotFound

app = Kagzi()  # KAGZI_URL, else an SQLite file in .kagzi/
web = Flask(__name__)


@app.step
def charge(order: str) -> str:
    return f"payment-{order}"


@app.workflow
def checkout(order: str) -> str:
    return charge.call(order)


@web.post("/orders/<order>")
def place(order: str) -> ResponseReturnValue:
    run = checkout.options(id=order).start_sync(order)  # a second click finds the run of the first
    return {"run": run.id}, 202


@web.get("/orders/<order>")
def receipt(order: str) -> ResponseReturnValue:
    try:
        return {"payment": app.find_sync(order, checkout).result_sync(timeout=30)}
    except NotFound:
        return {"error": "there is no such order"}, 404
