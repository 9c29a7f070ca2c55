"""Runs of an app with a codec, from a shell that has its app or not."""

from __future__ import annotations

from tests.cli.conftest import Shell

VAULT = """
from kagzi import Kagzi, Retry
from kagzi.codecs import Encrypt

app = Kagzi("sqlite:///vault.db", codec=Encrypt({"1": bytes(range(KEY, KEY + 32))}, current="1"))

@app.step(retry=Retry.none)
def charge(card: str) -> None:
    raise ValueError(f"card {card} was declined")

@app.workflow
def checkout(card: str) -> None:
    charge.call(card)
"""


def test_show_decodes_with_the_app_where_its_runs_live(shop: Shell) -> None:
    (shop.directory / "vault.py").write_text(VAULT.replace("KEY", "0"))
    (shop.directory / "other.py").write_text(VAULT.replace("KEY", "9"))
    assert shop("run", "vault.py:checkout", "4111", "--id", "c1").code == 1
    sealed = shop("runs", "show", "c1", "--url", "sqlite:///vault.db")
    assert "ValueError: (encoded by the codec of its app)" in sealed.out
    assert "4111" not in sealed.out
    plain = shop("runs", "show", "c1", "--app", "vault.py", "--json").json
    assert plain["input"] == ["4111"]
    assert "card 4111 was declined" in plain["error"]["message"]
    assert "in charge" in plain["error"]["traceback"]
    wrong = shop("runs", "show", "c1", "--app", "other.py")
    assert wrong.code != 0
    assert "is not the one" in wrong.err
