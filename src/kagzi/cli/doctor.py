"""kagzi doctor"""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import click
from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.admin import WorkerFilter
from kagzi.cli import output
from kagzi.cli.main import FAILED, UNREACHABLE
from kagzi.cli.options import as_json, quiet_home, run, where
from kagzi.cli.queues import pause_words
from kagzi.clock import SystemClock
from kagzi.connect import connect, credentials_of, default_url, engine_settings, make_store
from kagzi.core.duration import format_span
from kagzi.core.flow import FlowLimit
from kagzi.core.health import SEVERITY, ComponentHealth, HealthStatus, worst
from kagzi.core.instant import SECOND, Span
from kagzi.core.outdated import disregard
from kagzi.core.pythons import mixed_pythons
from kagzi.core.schedule import Schedule
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.engine import health
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest, KagziError, MissingDependency, SchemaMismatch, Unavailable
from kagzi.settings import DEFAULT, Loaded, Settings, mask_url
from kagzi.store.protocol.overview import Survey
from kagzi.store.protocol.store import Store
from kagzi.version import __version__

_PACKAGES = ("asyncpg", "grpcio", "msgspec", "uvloop")
_OLDEST_SQLITE = (3, 35)
_SKEW: Span = 2 * SECOND  # the database's clock decides, so a difference harms only those who compare
_SCHEDULES = 100  # looked at
_WORKERS = 100  # the newest that are online
_BAD_SKEW: Span = 60 * SECOND
UNEXPLAINED = "the server says why only to keys that open all namespaces, while its database tells it which those are"


class Findings(Struct):
    """What was found out, in the order in which it was."""

    components: list[ComponentHealth]
    reachable: bool = True
    survey: Survey | None = None

    def add(self, name: str, status: HealthStatus, message: str) -> None:
        self.components.append(ComponentHealth(name, status, message))

    @property
    def status(self) -> HealthStatus:
        return worst(component.status for component in self.components)


@click.command(short_help="Tell whether all is well.")
@where
@click.option("--quick", is_flag=True, help="Only whether the database answers and its schema fits.")
@as_json
def doctor(url: str | None, namespace: str | None, quick: bool, json: bool) -> None:
    """Tell whether everything Kagzi needs is there and well.

    Shows versions, every setting with its source, whether the database answers and can be written, its schema, whether
    background duties are done and workers are there, and what is paused. What is wrong comes first. Changes nothing.
    Exit code 0 if nothing is unhealthy, 1 if something is, 4 if the database cannot be reached.
    """
    loaded = quiet_home(url, namespace)
    target = default_url(loaded.settings, make=False)
    findings = run(examine(loaded, target, quick=quick))
    if json:
        output.document(_document(loaded, target, findings))
    else:
        _print(loaded, target, findings, quick=quick)
    if not findings.reachable:
        sys.exit(UNREACHABLE)
    if findings.status is HealthStatus.UNHEALTHY:
        sys.exit(FAILED)


async def examine(loaded: Loaded, url: str, *, quick: bool) -> Findings:
    findings = Findings([])
    settings = loaded.settings
    if url.partition("://")[0].lower() in ("grpc", "grpcs"):
        await _ask_server(findings, url, loaded, quick=quick)
        return findings
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE and not url.startswith("postgres"):
        findings.add("sqlite", HealthStatus.UNHEALTHY, f"{sqlite3.sqlite_version} is too old; 3.35 is the oldest")
    try:
        if url.startswith("postgres") and (held := await _held_up(url)) is not None:
            findings.components.append(held)
            return findings
        store = make_store(url)
        missing = await store.missing_migrations()
    except SchemaMismatch as error:
        findings.add("migrations", HealthStatus.UNHEALTHY, str(error))
        return findings
    except (Unavailable, InvalidRequest) as error:
        findings.reachable = isinstance(error, MissingDependency)
        findings.add("database", HealthStatus.UNHEALTHY, str(error))
        return findings
    if missing:
        _lacking(findings, store, len(missing), url)
        return findings
    if url.startswith("memory:"):
        return findings
    try:
        await store.open()
        try:
            await _look(findings, store, settings, quick=quick)
            if not quick and url.startswith("postgres"):
                findings.components.append(await _wake_ups(url, settings.listen_url))
        finally:
            await store.close()
    except KagziError as error:
        findings.reachable = False
        findings.add("database", HealthStatus.UNHEALTHY, str(error))
    return findings


async def _held_up(url: str) -> ComponentHealth | None:
    """Returns who holds a whole table, so that every further question would wait; None if nobody does."""
    store = make_store(url)
    try:
        blocker = await store.overview.blocker()
    finally:
        await store.close()
    return health.locks(blocker) if blocker is not None and blocker.everything else None


async def _ask_server(findings: Findings, url: str, loaded: Loaded, *, quick: bool) -> None:
    try:
        engine = connect(url, credentials=credentials_of(loaded))
        await engine.open()
    except KagziError as error:
        findings.reachable = isinstance(error, MissingDependency)
        findings.add("server", HealthStatus.UNHEALTHY, str(error))
        return
    try:
        found = await engine.health()
        locks = found.component("locks")
        waits = locks is not None and locks.status is HealthStatus.UNHEALTHY  # as would whatever is asked now
        schedules: Sequence[Schedule] = ()
        if not quick and not waits:
            with suppress(KagziError):  # an older server, or a key that may not look
                page = await engine.schedules.list(loaded.settings.namespace, page_size=_SCHEDULES)
                schedules = page.items
            with suppress(KagziError):
                online = WorkerFilter(namespace=loaded.settings.namespace, status=WorkerStatus.ONLINE)
                limits = await engine.limits.list(loaded.settings.namespace)
                workers = (await engine.admin.list_workers(online, page_size=_WORKERS)).items
                findings.components += [*_paused(limits), *_outdated(workers, limits), *_pythons(workers)]
    finally:
        await engine.close()
    findings.components += [_explained(part) for part in (found.components[:2] if quick else found.components)]
    findings.components += _schedules(schedules)
    database = found.component("database")
    findings.reachable = database is None or database.status is not HealthStatus.UNHEALTHY


def _lacking(findings: Findings, store: Store, missing: int, url: str) -> None:
    if url.startswith("memory:"):
        findings.add("database", HealthStatus.HEALTHY, "in memory, made anew by every process")
    elif missing == store.schema_version:
        findings.add("database", HealthStatus.HEALTHY, "is new: there are no tables yet")
        findings.add("migrations", HealthStatus.DEGRADED, "made at the first start of an app, or by: kagzi migrate")
    else:
        findings.add("database", HealthStatus.HEALTHY, "answered")
        findings.add(
            "migrations",
            HealthStatus.DEGRADED,
            f"{missing} of {store.schema_version} are missing; applied at the next start, or by: kagzi migrate",
        )


async def _look(findings: Findings, store: Store, settings: Settings, *, quick: bool) -> None:
    clock = SystemClock()
    chosen = EngineSettings(**engine_settings(settings))
    before = clock.now()
    findings.survey = survey = await store.overview.survey(chosen.worker_stale)
    skew = survey.now - (before + clock.now()) // 2
    found = await health.check(store, chosen)
    findings.components += found.components[:2] if quick else found.components
    findings.reachable = found.checked_at is not None
    if not quick:
        findings.components.append(_clocks(skew))
        findings.components += _schedules(await store.schedules.page(settings.namespace, None, None, _SCHEDULES))
        limits = await store.limits.read(settings.namespace)
        online = WorkerFilter(namespace=settings.namespace, status=WorkerStatus.ONLINE)
        workers = await store.workers.page(online, None, _WORKERS, chosen.worker_stale)
        findings.components += [*_paused(limits), *_outdated(workers, limits), *_pythons(workers)]


async def _wake_ups(url: str, listen_url: str | None) -> ComponentHealth:
    """Whether processes hear of each other's work, or have to look for it."""
    from kagzi.store.postgres.connection import Connector
    from kagzi.store.postgres.wakeups import are_heard

    speaking = Connector(url)
    try:
        heard = await are_heard(speaking, speaking if listen_url is None else Connector.for_listening(listen_url))
    except KagziError as error:
        return ComponentHealth("wake-ups", HealthStatus.DEGRADED, f"processes look once a second: {error}")
    pooler = " (there is a PgBouncer or another pooler in between)" if speaking.pooled else ""
    if heard:
        return ComponentHealth("wake-ups", HealthStatus.HEALTHY, f"processes hear of each other's work{pooler}")
    if heard is None:
        advice = "set KAGZI_LISTEN_URL to the PostgreSQL behind the pooler, and they hear of each other's work"
    else:
        advice = "what is announced is not heard at KAGZI_LISTEN_URL; it must lead to the same database, directly"
    return ComponentHealth("wake-ups", HealthStatus.DEGRADED, f"processes look once a second: {advice}")


def _schedules(found: Sequence[Schedule]) -> list[ComponentHealth]:
    """Finds what is odd about the newest schedules, if anything."""
    odd = {
        "could not fire the last time": [each for each in found if each.error is not None],
        "no live worker declares it any more, and it goes on firing": [each for each in found if each.abandoned],
        "was changed by a person, and what code declares does not count": [
            each for each in found if each.changed_by_hand
        ],
    }
    said = "; ".join(
        f"{', '.join(each.name or each.schedule_id for each in those)}: {what}" for what, those in odd.items() if those
    )
    degraded = any(each.error is not None or each.abandoned for each in found)
    status = HealthStatus.DEGRADED if degraded else HealthStatus.HEALTHY
    return [ComponentHealth("schedules", status, said)] if said else []


def _paused(limits: Sequence[FlowLimit]) -> list[ComponentHealth]:
    """What is paused in the namespace, if anything: runs wait for a person, and not for a worker."""
    said = "; ".join(f"{limit.about} is {pause_words(limit)}" for limit in limits if limit.paused_at is not None)
    return [ComponentHealth("pauses", HealthStatus.DEGRADED, said)] if said else []


def _explained(part: ComponentHealth) -> ComponentHealth:
    """The part with the reason for having none: a server tells of all namespaces only to those who may see them, and it
    has to ask the database who may."""
    if part.message or part.status is HealthStatus.HEALTHY:
        return part
    return replace(part, message=UNEXPLAINED)


def _outdated(workers: Sequence[Worker], limits: Sequence[FlowLimit]) -> list[ComponentHealth]:
    """Finds workers that do not know what is in force for their runs, if any."""
    said = disregard(workers, limits)
    return [] if said is None else [ComponentHealth("limits", HealthStatus.DEGRADED, said)]


def _pythons(workers: Sequence[Worker]) -> list[ComponentHealth]:
    said = mixed_pythons(workers)
    return [] if said is None else [ComponentHealth("pythons", HealthStatus.DEGRADED, said)]


def _clocks(skew: Span) -> ComponentHealth:
    where = "ahead of" if skew > 0 else "behind"
    message = f"the database's clock is {format_span(abs(skew))} {where} this host's"
    if abs(skew) < _SKEW:
        return ComponentHealth("clocks", HealthStatus.HEALTHY, message)
    status = HealthStatus.DEGRADED if abs(skew) < _BAD_SKEW else HealthStatus.UNHEALTHY
    return ComponentHealth("clocks", status, f"{message}; synchronise them (NTP)")


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "kagzi": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "sqlite": sqlite3.sqlite_version,
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _counts(survey: Survey | None) -> dict[str, int] | None:
    if survey is None:
        return None
    return {
        "pending": survey.pending,
        "running": survey.running,
        "sleeping": survey.sleeping,
        "workers_online": survey.workers_online,
        "workers_draining": survey.workers_draining,
    }


def _document(loaded: Loaded, target: str, findings: Findings) -> dict[str, object]:
    return {
        "status": findings.status.value,
        "versions": versions(),
        "url": mask_url(target),
        "settings": [
            {"name": name, "value": None if value == "-" else value, "source": source}
            for name, value, source in loaded.shown()
        ],
        "components": [
            {"name": component.name, "status": component.status.value, "message": component.message}
            for component in findings.components
        ],
        "counts": _counts(findings.survey),
    }


def _print(loaded: Loaded, target: str, findings: Findings, *, quick: bool) -> None:
    """What is wrong comes first, then what is not as it is everywhere."""
    if not quick:
        _heading(f"Health of {mask_url(target)}")
    worst_first = sorted(findings.components, key=lambda component: -SEVERITY.index(component.status))
    output.table(
        ("part", "status", ""),
        [(component.name, component.status.value, component.message) for component in worst_first],
    )
    if quick:
        return
    if (counts := _counts(findings.survey)) is not None:
        _heading("Runs and workers")
        output.table(("", ""), [(name.replace("_", " "), f"{count:,}") for name, count in counts.items()])
    given = [shown for shown in loaded.shown() if shown[-1] != DEFAULT]
    _heading("Settings" if given else "Settings: all are defaults")
    output.table(("setting", "value", "source"), given)
    _heading("Versions")
    output.table(("", ""), [(name, text or "not installed") for name, text in versions().items()])


def _heading(text: str) -> None:
    if sys.stdout.isatty():
        click.echo(f"\n{output.clean(text)}")
