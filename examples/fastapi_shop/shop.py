"""A shop in FastAPI: requests start runs, a worker inside of the server executes them, and the dashboard is at /kagzi/
for those who know the password.

SHOP_PASSWORD=secret uvicorn shop:api   # in this directory; add --workers 2 for two processes, --reload to develop
curl -X POST localhost:8000/orders/42   # and then curl localhost:8000/orders/42
"""

import os
from collections.abc import AsyncIterator
from hmac import compare_digest

from fastapi import FastAPI, HTTPException, Request
from fastapi.security import HTTPBasic
from pydantic import BaseModel

from kagzi import Kagzi

app = Kagzi()  # KAGZI_URL, else an SQLite file in .kagzi/


class Receipt(BaseModel):
    order: str
    payment: str


class Bank:
    """Stands for the client of a payment service: expensive to open, shared by all steps."""

    async def charge(self, order: str) -> str:
        return f"payment-{order}"


@app.resource
async def bank() -> AsyncIterator[Bank]:
    yield Bank()  # `async with httpx.AsyncClient() as client: yield client`


@app.step
async def charge(order: str) -> str:
    return await bank().charge(order)


@app.workflow
async def checkout(order: str) -> Receipt:
    return Receipt(order=order, payment=await charge(order))


api = FastAPI(lifespan=app.lifespan(worker=True))
basic = HTTPBasic()


async def staff(request: Request) -> str:
    """Returns who asks for the dashboard, if they know the password. In your shop: if they are logged in as staff."""
    shown = await basic(request)
    password = os.environ.get("SHOP_PASSWORD", "")
    if shown is None or not password or not compare_digest(shown.password.encode(), password.encode()):
        raise HTTPException(401, "for staff alone", {"www-authenticate": "Basic"})
    return shown.username


api.mount("/kagzi", app.asgi(auth=staff))


@api.post("/orders/{order}", status_code=202)
async def place(order: str) -> dict[str, str]:
    run = await checkout.options(id=order).start(order)  # a second click finds the run of the first
    return {"run": run.id}


@api.get("/orders/{order}")
def receipt(order: str) -> Receipt:  # a plain `def` may use the app, too
    return app.find_sync(order, checkout).result_sync(timeout=30)
