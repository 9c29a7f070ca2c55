"""Where settings come from, who wins, and what is refused in which words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kagzi.connect import Credentials, connect, credentials_of, default_url
from kagzi.errors import InvalidRequest
from kagzi.settings import Flag, Loaded, Settings, key, load, mask_url, variable


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory whose settings are its own, whatever lies above it."""
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    return tmp_path


def value(loaded: Loaded, field: str) -> tuple[object, str]:
    return getattr(loaded.settings, field), loaded.sources[field]


def refusal(project: Path, **environ: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        load(environ=environ, start=project)
    return str(caught.value)


def test_nothing_need_be_set(project: Path) -> None:
    loaded = load(environ={"PATH": "/bin", "HOME": "/root"}, start=project)
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.settings.server_host == "127.0.0.1"
    assert loaded.settings.server_port == 50051


def test_flags_beat_variables_beat_the_file_beats_defaults(project: Path) -> None:
    (project / "kagzi.toml").write_text("[server]\nport = 1\nhost = '127.0.0.2'\n[log]\nlevel = 'error'\n")
    loaded = load(
        {"server_port": Flag("--port", 3), "server_host": Flag("--host", None)},
        {"KAGZI_SERVER_PORT": "2", "KAGZI_LOG_LEVEL": "debug"},
        project,
    )
    assert value(loaded, "server_port") == (3, "--port")
    assert value(loaded, "log_level") == ("debug", "KAGZI_LOG_LEVEL")
    assert value(loaded, "server_host") == ("127.0.0.2", "kagzi.toml")
    assert value(loaded, "namespace") == ("default", "default")


def test_pyproject_is_read_from_below_and_its_own_file_is_preferred(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        "[tool.kagzi]\nnamespace = 'shop'\n[tool.kagzi.worker]\npoll_timeout_secs = 5\n"
    )
    deep = project / "src" / "shop"
    deep.mkdir(parents=True)
    loaded = load(environ={}, start=deep)
    assert value(loaded, "namespace") == ("shop", "pyproject.toml")
    assert value(loaded, "worker_poll_timeout_secs") == (5.0, "pyproject.toml")
    (project / "kagzi.toml").write_text("namespace = 'own'\n")
    assert value(load(environ={}, start=deep), "namespace") == ("own", "kagzi.toml")


def test_files_above_the_project_are_not_ours(project: Path) -> None:
    (project / "kagzi.toml").write_text("namespace = 'somebody else'\n")
    inner = project / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").touch()
    assert load(environ={}, start=inner).settings.namespace == "default"


def test_empty_variables_are_not_set(project: Path) -> None:
    assert load(environ={"KAGZI_URL": " ", "KAGZI_SERVER_PORT": ""}, start=project).settings == Settings()


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("KAGZI_SERVER_PORT", "abc", "a whole number from 0 to 65,535, not 'abc'"),
        ("KAGZI_SERVER_PORT", "65536", "a whole number from 0 to 65,535, not '65536'"),
        ("KAGZI_SERVER_PORT", "1.5", "a whole number"),
        ("KAGZI_COORDINATOR_BATCH_SIZE", "0", "a whole number from 1 to 100,000"),
        ("KAGZI_COORDINATOR_INTERVAL_SECS", "nan", "a number of seconds from 0.1 to 86,400"),
        ("KAGZI_COORDINATOR_INTERVAL_SECS", "inf", "a number of seconds from 0.1 to 86,400"),
        ("KAGZI_COORDINATOR_INTERVAL_SECS", "-1", "a number of seconds from 0.1 to 86,400"),
        ("KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS", "30s", "a number of seconds from 0.1 to 86,400, not '30s'"),
        ("KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS", "null", "a number of seconds from 0.1 to 86,400, not 'null'"),
        ("KAGZI_LOG_FORMAT", "xml", "auto, pretty or json, not 'xml'"),
        ("KAGZI_LOG_LEVEL", "LOUD", "debug, info, warning or error"),
        ("KAGZI_NAMESPACE", "n" * 256, "text of 1 to 255 characters"),
    ],
)
def test_a_refusal_names_the_variable_and_what_is_accepted(project: Path, name: str, text: str, accepted: str) -> None:
    message = refusal(project, **{name: text})
    assert message.startswith(f"{name} must be ")
    assert accepted in message
    assert len(message) < 300


def test_a_refusal_of_the_file_names_key_and_file(project: Path) -> None:
    (project / "kagzi.toml").write_text("[server]\nport = '50051x'\n[log]\nlevel = 3\n")
    message = refusal(project)
    assert "2 settings cannot be used" in message
    assert "server.port in kagzi.toml must be a whole number from 0 to 65,535, not '50051x'" in message
    assert "log.level in kagzi.toml must be debug, info, warning or error, not 3" in message


def test_a_malformed_file_is_named(project: Path) -> None:
    (project / "kagzi.toml").write_text("url = \n")
    assert "kagzi.toml is not valid TOML" in refusal(project)
    (project / "kagzi.toml").write_bytes(b"url = '\xff'")
    assert "kagzi.toml is not valid TOML" in refusal(project)
    (project / "kagzi.toml").unlink()
    (project / "pyproject.toml").write_text("[tool]\nkagzi = 3\n")
    assert "tool.kagzi in pyproject.toml must be a table" in refusal(project)


def test_unknown_names_are_refused_with_the_nearest_one(project: Path) -> None:
    assert "did you mean KAGZI_SERVER_PORT?" in refusal(project, KAGZI_SERVER_PROT="1")
    assert "KAGZI_COLOUR_OF_THE_SKY is not a setting of Kagzi" in refusal(project, KAGZI_COLOUR_OF_THE_SKY="blue")
    # Only secrets may be in files.
    assert "KAGZI_SERVER_PORT_FILE is not a setting" in refusal(project, KAGZI_SERVER_PORT_FILE="/x")
    (project / "kagzi.toml").write_text("[server]\nprot = 1\n[sevrer]\nport = 1\n")
    message = refusal(project)
    assert "server.prot in kagzi.toml is not a setting of Kagzi; did you mean server.port?" in message
    assert "sevrer in kagzi.toml is not a setting of Kagzi" in message


def test_retired_names_say_what_they_are_called_now(project: Path) -> None:
    assert "use KAGZI_COORDINATOR_INTERVAL_SECS" in refusal(project, KAGZI_SCHEDULER_INTERVAL_SECS="1")
    threshold = refusal(project, KAGZI_WATCHDOG_WORKER_STALE_THRESHOLD_SECS="1")
    assert "use KAGZI_COORDINATOR_WORKER_STALE_THRESHOLD_SECS" in threshold
    assert "use the KAGZI_COORDINATOR_* settings" in refusal(project, KAGZI_WATCHDOG_TEETH="sharp")


def test_tests_and_kubernetes_are_left_alone(project: Path) -> None:
    environ = {
        "KAGZI_TEST_POSTGRES_URL": "postgresql://x",
        "KAGZI_SERVER_PORT": "tcp://10.0.0.1:50051",
        "KAGZI_SERVER_SERVICE_HOST": "10.0.0.1",
        "KAGZI_SERVER_SERVICE_PORT": "50051",
        "KAGZI_SERVER_SERVICE_PORT_GRPC": "50051",
        "KAGZI_SERVER_PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "KAGZI_SERVER_PORT_50051_TCP_PROTO": "tcp",
        "KAGZI_SERVER_PORT_50051_TCP_PORT": "50051",
        "KAGZI_SERVER_PORT_50051_TCP_ADDR": "10.0.0.1",
        "KAGZI_PORT": "udp://10.0.0.1:53",
        "KAGZI_SERVICE_HOST": "10.0.0.1",
    }
    assert load(environ=environ, start=project).settings == Settings()


def test_secrets_from_files(project: Path) -> None:
    secret = project / "secret"
    secret.write_text("postgresql://shop:hunter2@db/shop\n")
    loaded = load(environ={"KAGZI_DB_URL_FILE": str(secret)}, start=project)
    assert value(loaded, "db_url") == ("postgresql://shop:hunter2@db/shop", "KAGZI_DB_URL_FILE")
    both = refusal(project, KAGZI_DB_URL_FILE=str(secret), KAGZI_DB_URL="memory://")
    assert "KAGZI_DB_URL and KAGZI_DB_URL_FILE are both set" in both
    assert "KAGZI_URL_FILE names a file that cannot be read (No such file" in refusal(project, KAGZI_URL_FILE="/none")
    secret.write_text(" \n")
    assert "KAGZI_URL_FILE names a file that is empty" in refusal(project, KAGZI_URL_FILE=str(secret))
    secret.write_bytes(b"\xff\xfe")
    assert "KAGZI_URL_FILE names a file that is not text" in refusal(project, KAGZI_URL_FILE=str(secret))


def test_secrets_are_not_shown(project: Path) -> None:
    url = "postgresql://shop:hunter2@db:5432/shop?sslmode=require&password=hunter2"
    shown = {name: text for name, text, _ in load(environ={"KAGZI_URL": url}, start=project).shown()}
    assert shown["KAGZI_URL"] == "postgresql://shop:***@db:5432/shop?sslmode=require&password=***"
    assert "hunter2" not in refusal(project, KAGZI_URL=f"{url}\0")
    assert list(shown) == [variable(field) for field in Settings.__struct_fields__]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///orders.db", "sqlite:///orders.db"),
        ("sqlite:////var/lib/orders.db", "sqlite:////var/lib/orders.db"),
        ("memory://", "memory://"),
        ("postgresql://db/shop", "postgresql://db/shop"),
        ("postgresql://me@db/shop", "postgresql://me@db/shop"),
        ("postgresql://me:p@ss:w@db1,db2/shop", "postgresql://me:***@db1,db2/shop"),
        ("postgresql://db/shop?sslkey=a&user=me&x_token=b", "postgresql://db/shop?sslkey=***&user=me&x_token=***"),
        ("grpc://kagzi:50051", "grpc://kagzi:50051"),
        ("hunter2", "***"),
        # Passwords that somebody forgot to write as %XX.
        ("postgresql://me:hunter2/x@db/shop", "postgresql://***"),
        ("postgresql://me:hunter2#x@db/shop", "postgresql://***"),
        ("postgresql://me:hunter2?x@db/shop", "postgresql://***"),
        ("sqlite:///me@home.db", "sqlite:///me@home.db"),
        ("postgresql://[::hunter2", "***"),
    ],
)
def test_masked_urls(url: str, shown: str) -> None:
    assert mask_url(url) == shown


def test_settings_that_contradict_each_other(project: Path) -> None:
    message = refusal(project, KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS="30")
    assert "KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS (30) must be shorter than" in message
    assert "KAGZI_TLS_CLIENT_CA needs KAGZI_TLS_CERT" in refusal(project, KAGZI_TLS_CLIENT_CA="ca.pem")
    assert "belong together" in refusal(project, KAGZI_TLS_CERT="cert.pem")
    assert "must not be above KAGZI_PAYLOAD_MAX_SIZE_BYTES" in refusal(project, KAGZI_PAYLOAD_MAX_SIZE_BYTES="100")


def test_every_field_has_one_variable_and_one_key() -> None:
    fields = Settings.__struct_fields__
    assert len({key(field) for field in fields}) == len({variable(field) for field in fields}) == len(fields)
    assert key("server_port") == "server.port"
    assert key("db_url") == "db_url"


# Files of others.

GiveAway = Callable[[Path], None]
KEY = f"kgz_{'0' * 16}_{'1' * 64}"


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> GiveAway:
    """Has a file belong to somebody else, who is not root either."""
    if os.geteuid() == 0:
        return lambda path: os.chown(path, 12_345, 12_345, follow_symlinks=False)
    # Without the right to give files away, everything here is somebody else's as soon as we are another user.
    other = os.geteuid() + 1
    return lambda _: monkeypatch.setattr(os, "geteuid", lambda: other)


def test_a_file_of_another_user_is_ignored_and_that_is_said(
    project: Path, give_away: GiveAway, caplog: pytest.LogCaptureFixture
) -> None:
    file = project / "kagzi.toml"
    file.write_text("url = 'grpc://collector:1'\napp = 'theirs:app'\n")
    give_away(file)
    assert load(environ={}, start=project).settings == Settings()
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert f"'{file}' is ignored because it belongs to another user" in record.getMessage()
    assert "chown" in record.getMessage()


def test_so_is_their_table_in_pyproject_and_what_is_malformed_there(
    project: Path, give_away: GiveAway, caplog: pytest.LogCaptureFixture
) -> None:
    file = project / "pyproject.toml"
    give_away(file)
    assert load(environ={}, start=project).settings == Settings()
    assert not caplog.records  # no word of files that say nothing to us
    file.write_text("[tool.kagzi]\napp = 'theirs:app'\n[")
    assert load(environ={}, start=project).settings == Settings()
    assert "pyproject.toml' is ignored" in caplog.text


def test_a_link_of_another_user_is_ignored_though_it_leads_to_our_own_file(
    tmp_path: Path, project: Path, give_away: GiveAway, caplog: pytest.LogCaptureFixture
) -> None:
    ours = tmp_path / "ours.toml"
    ours.write_text("app = 'production:app'\n")
    link = project / "kagzi.toml"
    link.symlink_to(ours)
    assert load(environ={}, start=project).settings.app == "production:app"
    give_away(link)
    assert load(environ={}, start=project).settings.app is None
    assert "is ignored" in caplog.text


def test_the_database_in_a_directory_of_another_user_is_not_taken_by_itself(project: Path, give_away: GiveAway) -> None:
    data = project / ".kagzi"
    data.mkdir()
    give_away(data)
    for make in (True, False):
        with pytest.raises(InvalidRequest, match=r"belongs to another user.*set KAGZI_URL"):
            default_url(Settings(), project, make=make)
    assert default_url(Settings(url="sqlite:///x.db"), project) == "sqlite:///x.db"


def credentials(project: Path, key: str | None = None, url: str | None = None, **environ: str) -> Credentials:
    return credentials_of(load(environ=environ, start=project), key=key, url=url)


@pytest.mark.parametrize("field", ["url", "db_url"])
def test_a_key_is_not_shown_to_an_address_that_ranks_below_it(project: Path, field: str) -> None:
    file = project / "kagzi.toml"
    file.write_text(f"{field} = 'grpcs://collector:1'\n")
    (project / "key").write_text(KEY)
    for environ in ({"KAGZI_AUTH_KEY": KEY}, {"KAGZI_AUTH_KEY_FILE": str(project / "key")}):
        with pytest.raises(InvalidRequest) as caught:
            credentials(project, **environ)
        message = str(caught.value)
        assert f"the key from {next(iter(environ))} is not shown to grpcs://collector:1" in message
        assert str(file) in message
        assert f"set KAGZI_{field.upper()}" in message
        assert KEY not in message
    with pytest.raises(InvalidRequest, match="the key given in code is not shown to grpcs://collector:1"):
        credentials(project, key=KEY)


def test_a_key_is_shown_to_an_address_of_its_own_rank_or_above(project: Path) -> None:
    file = project / "kagzi.toml"
    file.write_text("url = 'grpcs://server'\n")
    assert credentials(project).key is None
    assert credentials(project, KAGZI_AUTH_KEY=KEY, KAGZI_URL="grpcs://mine").key == KEY
    assert credentials(project, KAGZI_AUTH_KEY=KEY, url="grpcs://in-code").key == KEY
    assert credentials(project, key=KEY, url="grpcs://in-code").key == KEY
    flagged = load({"url": Flag("--url", "grpcs://typed")}, {"KAGZI_AUTH_KEY": KEY}, project)
    assert credentials_of(flagged).key == KEY
    # The file has a key of its own, or needs none.
    file.write_text(f"url = 'grpcs://server'\n[auth]\nkey = '{KEY}'\n")
    assert credentials(project).key == KEY
    file.write_text(f"url = 'grpcs://:{KEY}@server'\n")
    credentials(project, KAGZI_AUTH_KEY=KEY)
    file.write_text("url = 'sqlite:///x.db'\n")
    credentials(project, KAGZI_AUTH_KEY=KEY)


def test_a_key_that_leaves_this_machine_as_plain_text_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for near in ("grpc://localhost", "grpc://127.0.0.2:1,[::1]:2", "grpcs://kagzi.example.org"):
        connect(near, credentials=Credentials(key=KEY))
    connect("grpc://kagzi.example.org")
    assert not caplog.records
    for far in (f"grpc://:{KEY}@127.0.0.1.example.org,localhost", "grpc://kagzi.example.org"):
        caplog.clear()
        connect(far, credentials=Credentials(key=KEY))
        assert "the API key travels to" in caplog.text
        assert "example.org as plain text; use grpcs://" in caplog.text
        assert KEY not in caplog.text
