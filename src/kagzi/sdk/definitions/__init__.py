"""Steps and workflows as users write them, typed to the letter."""

from kagzi.sdk.definitions.options import FailureHandler, WorkflowOptions
from kagzi.sdk.definitions.registrar import Registrar
from kagzi.sdk.definitions.step import STEP_TIMEOUT, Call, Step, run_step
from kagzi.sdk.definitions.workflow import DEFAULT_VERSION, Workflow

__all__ = [
    "DEFAULT_VERSION",
    "STEP_TIMEOUT",
    "Call",
    "FailureHandler",
    "Registrar",
    "Step",
    "Workflow",
    "WorkflowOptions",
    "run_step",
]
