"""The Store contract as a test suite.

A store passes if these classes pass in a test module with a fixture `bench`:

    from kagzi.testing.conformance import *

    @pytest.fixture
    async def bench(clock):
        store = MyStore(now=clock.now)
        await store.open()
        yield Bench(store, clock)
        await store.close()

Each test begins with an empty store, opened with the bench's clock as its own. The tests see a store through
its contract alone, so they say nothing about tables.
"""

from pkgutil import iter_modules

import pytest

# The tests are imported, not collected from their own files, so pytest has to be asked for its messages.
pytest.register_assert_rewrite(*(f"{__name__}.{noun.name}" for noun in iter_modules(__path__)))

from kagzi.testing.conformance.admin import (  # noqa: E402
    TestConfirmedLeases,
    TestCounting,
    TestLookingAtWorkers,
    TestReadLease,
)
from kagzi.testing.conformance.bench import Bench  # noqa: E402
from kagzi.testing.conformance.cancels import TestCancelGrace, TestCancels, TestTermination  # noqa: E402
from kagzi.testing.conformance.children import TestChildren  # noqa: E402
from kagzi.testing.conformance.chunks import TestChunks, TestLeases  # noqa: E402
from kagzi.testing.conformance.claims import TestClaims, TestPolls  # noqa: E402
from kagzi.testing.conformance.continues import TestContinuing  # noqa: E402
from kagzi.testing.conformance.debounce import TestDebounce  # noqa: E402
from kagzi.testing.conformance.declarations import TestDeclarations  # noqa: E402
from kagzi.testing.conformance.duties import (  # noqa: E402
    TestDeadlines,
    TestHorizon,
    TestRecovery,
    TestRetention,
    TestStepTimeouts,
)
from kagzi.testing.conformance.firings import TestCounters, TestFiring, TestOverlap  # noqa: E402
from kagzi.testing.conformance.forks import TestForks  # noqa: E402
from kagzi.testing.conformance.handlers import TestFailureHandlers, TestHandlersOfNamespaces  # noqa: E402
from kagzi.testing.conformance.jobs import TestJobs  # noqa: E402
from kagzi.testing.conformance.keys import TestAuditLog, TestKeys  # noqa: E402
from kagzi.testing.conformance.limits import TestLimits  # noqa: E402
from kagzi.testing.conformance.listing import TestListing  # noqa: E402
from kagzi.testing.conformance.namespaces import TestNamespaces  # noqa: E402
from kagzi.testing.conformance.pairs import TestPairs  # noqa: E402
from kagzi.testing.conformance.pauses import TestPauses  # noqa: E402
from kagzi.testing.conformance.rates import TestRates, TestTurns  # noqa: E402
from kagzi.testing.conformance.repeats import TestRepeats  # noqa: E402
from kagzi.testing.conformance.restarts import TestRestarts, TestSignalsWithStarts  # noqa: E402
from kagzi.testing.conformance.runs import TestBirth, TestExternalIds, TestRunIds, TestRuns  # noqa: E402
from kagzi.testing.conformance.schedules import (  # noqa: E402
    TestChangingSchedules,
    TestSchedules,
    TestTriggersAndBackfills,
)
from kagzi.testing.conformance.signals import TestSignals  # noqa: E402
from kagzi.testing.conformance.steps import TestRunRetries, TestSteps  # noqa: E402
from kagzi.testing.conformance.survey import TestFacts, TestLoad, TestSample, TestSchema, TestSurvey  # noqa: E402
from kagzi.testing.conformance.unserved import TestUnservedRuns  # noqa: E402
from kagzi.testing.conformance.values import TestValues  # noqa: E402
from kagzi.testing.conformance.versions import (  # noqa: E402
    TestDefaultVersions,
    TestInterfaces,
    TestMovingRuns,
    TestRememberedVersions,
    TestRunsOfVersions,
)
from kagzi.testing.conformance.wakeups import TestWakeups  # noqa: E402
from kagzi.testing.conformance.why import TestWhy  # noqa: E402
from kagzi.testing.conformance.workers import TestHeartbeats, TestHeartbeatsTogether, TestWorkers  # noqa: E402

__all__ = [
    "Bench",
    "TestAuditLog",
    "TestBirth",
    "TestCancelGrace",
    "TestCancels",
    "TestChangingSchedules",
    "TestChildren",
    "TestChunks",
    "TestClaims",
    "TestConfirmedLeases",
    "TestContinuing",
    "TestCounters",
    "TestCounting",
    "TestDeadlines",
    "TestDebounce",
    "TestDeclarations",
    "TestDefaultVersions",
    "TestExternalIds",
    "TestFacts",
    "TestFailureHandlers",
    "TestFiring",
    "TestForks",
    "TestHandlersOfNamespaces",
    "TestHeartbeats",
    "TestHeartbeatsTogether",
    "TestHorizon",
    "TestInterfaces",
    "TestJobs",
    "TestKeys",
    "TestLeases",
    "TestLimits",
    "TestListing",
    "TestLoad",
    "TestLookingAtWorkers",
    "TestMovingRuns",
    "TestNamespaces",
    "TestOverlap",
    "TestPairs",
    "TestPauses",
    "TestPolls",
    "TestRates",
    "TestReadLease",
    "TestRecovery",
    "TestRememberedVersions",
    "TestRepeats",
    "TestRestarts",
    "TestRetention",
    "TestRunIds",
    "TestRunRetries",
    "TestRuns",
    "TestRunsOfVersions",
    "TestSample",
    "TestSchedules",
    "TestSchema",
    "TestSignals",
    "TestSignalsWithStarts",
    "TestStepTimeouts",
    "TestSteps",
    "TestSurvey",
    "TestTermination",
    "TestTriggersAndBackfills",
    "TestTurns",
    "TestUnservedRuns",
    "TestValues",
    "TestWakeups",
    "TestWhy",
    "TestWorkers",
]
