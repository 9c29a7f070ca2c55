"""Keys, namespaces and the audit log by command, with real servers that ask for keys."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
import trustme

from tests.cli.conftest import Shell, read_until
from tests.warm import ROOT, Process

KEY = re.compile(r"kgz_[0-9a-f]{16}_[0-9a-f]{64}")


def make_key(shell: Shell, *arguments: str) -> str:
    made = shell("keys", "create", "test", *arguments)
    assert made.code == 0, made
    assert KEY.fullmatch(made.out.strip()), made
    assert not KEY.search(made.err)
    return made.out.strip()


def key_id(key: str) -> str:
    return key.split("_")[1]


def serve(shell: Shell, *arguments: str, **environ: str) -> tuple[Process, str]:
    server = shell.spawn("server", "--port", "0", *arguments, **environ)
    ready = re.search(r"gRPC on [0-9.]+:(\d+)", read_until(server, "is ready"))
    assert ready is not None
    return server, ready[1]


def end(process: Process) -> str:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return errors


def test_the_life_of_a_key(shell: Shell) -> None:
    made = shell("keys", "create", "deploy", "--role", "client", "--expires", "90d", "--json")
    assert made.code == 0, made
    facts = made.json
    assert KEY.fullmatch(facts.pop("key"))
    assert (facts["name"], facts["role"], facts["namespace"], facts["state"]) == ("deploy", "client", "default", "live")
    listed = shell("keys", "list", "--json")
    assert listed.json["keys"] == [facts]
    assert "kgz_" not in listed.out

    rotated = shell("keys", "rotate", facts["key_id"], "--overlap", "1h", "--json").json
    assert KEY.fullmatch(rotated["key"])
    assert (rotated["name"], rotated["role"]) == ("deploy", "client")
    old = shell("keys", "list", "--json").json["keys"][1]
    assert old["key_id"] == facts["key_id"]
    assert old["expires_at"] < facts["expires_at"]

    assert shell("keys", "revoke", rotated["key"]).code == 0  # the whole key will do
    assert shell("keys", "list", "--json").json["keys"][0]["state"] == "revoked"
    assert shell("keys", "rotate", rotated["key_id"]).code == 3
    assert shell("keys", "revoke", "0123456789abcdef").code == 3

    entries = shell("audit", "--json").json["entries"]
    assert [(entry["action"], entry["result"]) for entry in entries] == [
        ("keys revoke", "OK"),
        ("keys rotate", "OK"),
        ("keys create", "OK"),
    ]
    assert entries[1]["target"] == f"key {facts['key_id']} by {rotated['key_id']}"
    assert entries[0]["actor"].startswith("cli:")
    first = shell("audit", "--limit", "1", "--json").json
    rest = shell("audit", "--page", first["next"], "--jsonl").out.splitlines()
    assert [json.loads(line)["action"] for line in rest] == ["keys rotate", "keys create"]


def test_what_cannot_be_done_with_keys(shell: Shell) -> None:
    for arguments, code, words in (
        (["create", "x"], 2, "--role"),
        (["create", "x", "-r", "king"], 2, "king"),
        (["create", "x", "-r", "client", "-n", "nowhere"], 3, "kagzi namespaces create"),
        (["create", "x", "-r", "client", "-n", "a", "--all-namespaces"], 2, "exclude each other"),
        (["create", "x", "-r", "client", "--expires", "0s"], 2, "longer than 0"),
        (["revoke", "kgz_0123"], 2, "not a whole key"),
    ):
        refused = shell("keys", *arguments)
        assert refused.code == code, refused
        assert words in refused.err
    refused = shell("keys", "list", KAGZI_URL="grpc://localhost:1")
    assert refused.code == 2
    assert "KAGZI_DB_URL" in refused.err


def test_a_server_asks_for_keys_and_workers_show_theirs(shop: Shell) -> None:
    admin = make_key(shop, "-r", "admin", "--all-namespaces")
    assert shop("namespaces", "create", "shop").code == 0
    worker, client, viewer = (make_key(shop, "-r", role, "-n", "shop") for role in ("worker", "client", "viewer"))
    server, port = serve(shop)
    remote = {"KAGZI_URL": f"grpc://127.0.0.1:{port}", "KAGZI_NAMESPACE": "shop"}
    (shop.directory / "go-1").touch()

    shop.spawn("worker", "shop.py:app", **remote, KAGZI_AUTH_KEY=worker)
    start = ("start", "checkout", "--input", '{"order": "1", "cents": 5}')
    done = shop(*start, "--wait", "--timeout", "60s", "--json", **remote, KAGZI_AUTH_KEY=client)
    assert done.code == 0, done
    run_id = done.json["run_id"]

    looked = shop("runs", "show", run_id, "--json", **remote, KAGZI_AUTH_KEY=viewer)
    assert looked.json["status"] == "COMPLETED"
    refused = shop(*start, **remote, KAGZI_AUTH_KEY=viewer)
    assert refused.code == 1
    assert "role viewer may not do this" in refused.err
    refused = shop("runs", "list", **remote)
    assert refused.code == 1
    assert "KAGZI_AUTH_KEY" in refused.err
    refused = shop("runs", "list", **(remote | {"KAGZI_NAMESPACE": "default"}), KAGZI_AUTH_KEY=viewer)
    assert refused.code == 1
    assert "this key is for namespace shop" in refused.err

    # Namespaces through the server: by the key for all of them.
    made = shop("namespaces", "create", "second", "--json", **remote, KAGZI_AUTH_KEY=admin)
    assert made.json["namespace"] == "second", made
    assert shop("namespaces", "disable", "shop", **remote, KAGZI_AUTH_KEY=client).code == 1
    assert shop("namespaces", "disable", "shop", **remote, KAGZI_AUTH_KEY=admin).code == 0
    refused = shop(*start, **remote, KAGZI_AUTH_KEY=client)
    assert refused.code == 1
    assert "disabled" in refused.err

    # At the database itself: servers notice within seconds.
    for command, code in (("enable", 0), ("disable", 1)):
        assert shop("namespaces", command, "shop").code == 0
        until = time.monotonic() + 60
        while shop(*start, **remote, KAGZI_AUTH_KEY=client).code != code:
            assert time.monotonic() < until

    assert shop("keys", "revoke", key_id(viewer)).code == 0
    until = time.monotonic() + 60
    while (refused := shop("runs", "list", **remote, KAGZI_AUTH_KEY=viewer)).code == 0:
        assert time.monotonic() < until
    assert "revoked" in refused.err

    errors = end(server)
    for key in (admin, worker, client, viewer):
        assert key not in errors
    actions = {
        (entry["action"].rpartition("/")[2], entry["result"]) for entry in shop("audit", "--json").json["entries"]
    }
    assert {("CreateNamespace", "OK"), ("DisableNamespace", "OK"), ("DisableNamespace", "PERMISSION_DENIED")} <= actions
    used = {key["key_id"]: key["last_used_at"] for key in shop("keys", "list", "--json").json["keys"]}
    assert all(used[key_id(key)] for key in (admin, worker, client))


def test_a_worker_whose_key_was_revoked_ends_with_an_error(shop: Shell) -> None:
    key = make_key(shop, "-r", "worker")
    server, port = serve(shop, KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS="2")
    (shop.directory / "key").write_text(f"{key}\n")
    worker = shop.spawn("worker", "shop.py", KAGZI_URL=f"grpc://127.0.0.1:{port}", KAGZI_AUTH_KEY_FILE="key")
    read_until(worker, "is up")
    assert shop("keys", "revoke", key_id(key)).code == 0
    _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 1, errors
    assert errors.strip().splitlines()[-1].startswith("Error: the server has refused this worker for 2s: the API key")
    assert key not in errors
    end(server)


def test_settings_never_show_keys(shell: Shell) -> None:
    key = "kgz_0123456789abcdef_" + "0" * 64
    environ = {
        "KAGZI_AUTH_KEY": key,
        "KAGZI_AUTH_PEPPER": "chilli-4711",
        "KAGZI_URL": f"grpcs://:{key}@localhost:1",
        "KAGZI_TLS_CA": "missing.pem",  # ends the attempt at once: nobody is there to be waited for
    }
    for arguments in (["doctor"], ["doctor", "--json"]):
        shown = shell(*arguments, **environ)
        assert "missing.pem" in shown.out
        assert "KAGZI_AUTH_KEY" in shown.out
        assert key not in shown.out + shown.err
        assert "0" * 64 not in shown.out + shown.err
        assert "chilli-4711" not in shown.out + shown.err


def test_a_server_beyond_this_machine_needs_tls_and_keys(shell: Shell) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = {name: str(shell.directory / f"{name}.pem") for name in ("cert", "key", "ca")}
    issued.cert_chain_pems[0].write_to_path(files["cert"])
    issued.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    tls = {"KAGZI_TLS_CERT": files["cert"], "KAGZI_TLS_KEY": files["key"]}

    refused = shell("server", "--host", "0.0.0.0", "--port", "0")
    assert refused.code == 2
    assert "refusing to listen on 0.0.0.0 without TLS and API keys" in refused.err
    refused = shell("server", "--host", "0.0.0.0", "--port", "0", **tls)
    assert refused.code == 2
    assert "without API keys" in refused.err
    key = make_key(shell, "-r", "admin", "--all-namespaces")
    refused = shell("server", "--host", "0.0.0.0", "--port", "0")
    assert refused.code == 2
    assert "without TLS" in refused.err

    server, port = serve(shell, "--host", "0.0.0.0", **tls)
    listed = shell(
        "namespaces", "list", "--url", f"grpcs://localhost:{port}", KAGZI_AUTH_KEY=key, KAGZI_TLS_CA=files["ca"]
    )
    assert listed.code == 0, listed
    refused = shell("namespaces", "list", "--url", f"grpc://localhost:{port}", KAGZI_AUTH_KEY=key)
    assert refused.code == 2
    assert "use grpcs://" in refused.err
    assert "--insecure" not in end(server)

    server = shell.spawn("server", "--port", "0", "--host", "0.0.0.0", "--insecure")
    said = read_until(server, "is ready")
    assert "listening on 0.0.0.0 without TLS (--insecure): keys and data travel as plain text" in said
    end(server)


@pytest.mark.parametrize("home", ["sqlite", "grpc"])
def test_namespaces(shell: Shell, home: str, tmp_path: Path) -> None:
    server = None
    if home == "grpc":
        server, port = serve(shell)
        shell.environ["KAGZI_URL"] = f"grpc://127.0.0.1:{port}"
    made = shell("namespaces", "create", "shop", "--description", "Orders", "--json")
    assert made.code == 0, made
    assert (made.json["display_name"], made.json["description"], made.json["enabled"]) == ("shop", "Orders", True)
    assert shell("namespaces", "create", "shop").code == 5
    changed = shell("namespaces", "update", "shop", "--display-name", "The shop", "--json").json
    assert (changed["display_name"], changed["description"]) == ("The shop", "Orders")
    assert shell("namespaces", "update", "shop").code == 2
    assert shell("namespaces", "disable", "shop", "--json").json["enabled"] is False
    assert shell("namespaces", "show", "shop", "--json").json["enabled"] is False
    assert shell("namespaces", "enable", "shop", "--json").json["enabled"] is True
    listed = shell("namespaces", "list", "--json").json
    assert [item["namespace"] for item in listed["namespaces"]] == ["default", "shop"]
    for command in ("show", "enable", "disable"):
        assert shell("namespaces", command, "nowhere").code == 3
    assert shell("namespaces", "list").out.splitlines()[1].split("\t")[:3] == ["shop", "The shop", "enabled"]

    if server is not None:
        end(server)  # and with it, what it has still to write
    shell.environ.pop("KAGZI_URL", None)
    results = [
        (entry["action"].rpartition("/")[2], entry["result"]) for entry in shell("audit", "--json").json["entries"]
    ]
    names = ("create", "disable") if home == "sqlite" else ("Create", "Disable")
    assert any(action.startswith(f"namespaces {names[0]}" if home == "sqlite" else names[0]) for action, _ in results)
    assert len(results) == 7 if home == "sqlite" else len(results) >= 7


def test_the_commands_of_the_manual_work(shell: Shell) -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    commands = [
        line.removeprefix("$ kagzi ").split()
        for block in re.findall(r"^```console\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if line.startswith(("$ kagzi keys", "$ kagzi audit"))
    ]
    assert len(commands) == 7
    assert shell("namespaces", "create", "shop").code == 0
    real = ""
    for arguments in commands:
        done = shell(*(argument.replace("5ac60792f11ac23d", real) for argument in arguments))
        assert done.code == 0, (arguments, done)
        if arguments[1:2] == ["create"]:
            real = key_id(done.out.strip())
