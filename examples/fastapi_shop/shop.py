"""A shop in FastAPI: requests start runs, a worker inside of the server executes them, the dashboard is at /kagzi/.

uvicorn shop:api                        # in this directory; add --workers 2 for two processes, --reload to develop
curl -X POST localhost:8000/orders/42   # and then curl localhost:8000/orders/42
"""

from collections.abc import AsyncIterator

from fastapi import FastAPI
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
api.mount("/kagzi", app.asgi())


@api.post("/orders/{order}", status_code=202)
async def place(order: str) -> dict[str, str]:
    run = await checkout.options(id=order).start(order)  # a second click finds the run of the first
    return {"run": run.id}


@api.get("/orders/{order}")
def receipt(order: str) -> Receipt:  # a plain `def` may use the app, too
    return app.find_sync(order, checkout).result_sync(timeout=30)
