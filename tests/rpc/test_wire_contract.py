"""The compiled wire contract is the one that clients in the field speak, and has room for all our own contract says.

The tables are written down here once more, apart from the protos, so that changing a number takes two decisions.
Notation: number, name, type; `?` optional, `*` repeated, `|` one of several; Ts and Dur are Timestamp and Duration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from kagzi._proto.v1 import (
    admin_pb2,
    common_pb2,
    exchange_pb2,
    job_pb2,
    namespace_pb2,
    worker_pb2,
    workflow_pb2,
    workflow_schedule_pb2,
)
from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    Chunk,
    CompleteRun,
    ContinueRun,
    EndCancelledRun,
    FailRun,
    HandBackRun,
    ParkRun,
    RepeatRun,
    RetryRun,
    Started,
    StartRun,
    StepOperation,
    TerminateRun,
)
from kagzi.api.workers import Claim, Heartbeat, HeartbeatAnswer, Poll, Polled, Registered, Registration
from kagzi.core.health import ComponentHealth
from kagzi.core.run import Run, RunStatus
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.core.worker import Worker, WorkerStatus, WorkflowType

PROTOS = Path(__file__).resolve().parents[2] / "proto"
MODULES = [common_pb2, workflow_pb2, worker_pb2, workflow_schedule_pb2, namespace_pb2, admin_pb2, exchange_pb2, job_pb2]
OURS_FROM = 50

# What clients in the field speak.
THEIRS: dict[str, str] = {
    "Payload": "1 data bytes, 2 metadata map<string,string>",
    "PageRequest": "1 page_size int32, 2 page_token string, 3 include_total_count bool",
    "PageInfo": "1 next_page_token string, 2 has_more bool, 3 total_count int64",
    "ErrorDetail": (
        "1 code ErrorCode, 2 message string, 3 non_retryable bool, 4 retry_after_ms int64, 5 subject string, "
        "6 subject_id string, 7 metadata map<string,string>"
    ),
    "RetryPolicy": (
        "1 maximum_attempts int32, 2 initial_interval_ms int64, 3 backoff_coefficient double, "
        "4 maximum_interval_ms int64, 5 non_retryable_errors *string"
    ),
    "Workflow": (
        "1 namespace string, 2 run_id string, 3 external_id string, 4 task_queue string, 5 workflow_type string, "
        "6 status WorkflowStatus, 7 version string, 8 input Payload, 9 output ?Payload, 10 error ?ErrorDetail, "
        "11 attempts int32, 12 priority ?int32, 13 timeout_ms ?int64, 14 created_at Ts, 15 started_at ?Ts, "
        "16 finished_at ?Ts, 17 wake_up_at ?Ts, 18 worker_id ?string, 19 parent_run_id ?string, "
        "20 parent_step_id ?string, 21 schedule_id ?string, 22 cron_expr ?string"
    ),
    "StartWorkflowRequest": (
        "1 namespace string, 2 external_id string, 3 task_queue string, 4 workflow_type string, 5 input Payload, "
        "7 version string, 8 retry_policy RetryPolicy"
    ),
    "StartWorkflowResponse": "1 run_id string, 2 already_exists bool",
    "GetWorkflowRequest": "1 namespace string, 2 run_id string",
    "GetWorkflowResponse": "1 workflow Workflow",
    "GetWorkflowByExternalIdRequest": "1 namespace string, 2 external_id string",
    "GetWorkflowByExternalIdResponse": "1 workflow Workflow",
    "ListWorkflowsRequest": (
        "1 namespace string, 2 status_filter ?WorkflowStatus, 3 page PageRequest, 4 workflow_type ?string, "
        "5 task_queue ?string, 6 created_after ?Ts, 7 created_before ?Ts"
    ),
    "ListWorkflowsResponse": "1 workflows *Workflow, 2 page PageInfo",
    "CancelWorkflowRequest": "1 namespace string, 2 run_id string",
    "CancelWorkflowResponse": "1 cancelled bool, 2 status WorkflowStatus",
    "RetryWorkflowRequest": "1 namespace string, 2 run_id string",
    "RetryWorkflowResponse": "1 new_run_id string, 2 already_running bool",
    "TerminateWorkflowRequest": "1 namespace string, 2 run_id string, 3 reason string",
    "TerminateWorkflowResponse": "1 terminated bool, 2 status WorkflowStatus",
    "WorkflowTypeConcurrency": "1 workflow_type string, 2 max_concurrent int32",
    "Worker": (
        "1 worker_id string, 2 task_queue string, 3 status WorkerStatus, 4 version string, "
        "5 workflow_types *string, 6 hostname string, 7 pid int32, 8 queue_concurrency_limit ?int32, "
        "9 workflow_type_concurrency *WorkflowTypeConcurrency, 10 active_workflow_count int32, "
        "11 registered_at Ts, 12 last_heartbeat_at Ts, 13 labels map<string,string>, "
        "14 capabilities map<string,string>"
    ),
    "Step": (
        "1 namespace string, 2 step_id string, 3 run_id string, 4 name string, 5 kind StepKind, "
        "6 status StepStatus, 7 attempt_number int32, 8 input Payload, 9 output ?Payload, 10 error ?ErrorDetail, "
        "11 created_at Ts, 12 started_at ?Ts, 13 finished_at ?Ts, 14 child_run_id ?string"
    ),
    "RegisterRequest": (
        "1 namespace string, 2 task_queue string, 3 workflow_types *string, 4 hostname string, 5 pid int32, "
        "6 version string, 7 labels map<string,string>, 8 queue_concurrency_limit ?int32, "
        "9 workflow_type_concurrency *WorkflowTypeConcurrency"
    ),
    "RegisterResponse": "1 worker_id string, 2 heartbeat_interval_secs int32",
    "HeartbeatRequest": "1 worker_id string",
    "HeartbeatResponse": "1 accepted bool, 2 should_drain bool",
    "DeregisterRequest": "1 worker_id string, 2 drain bool",
    "DeregisterResponse": "1 drained bool",
    "PollTaskRequest": "1 namespace string, 2 worker_id string, 3 task_queue string, 4 workflow_types *string",
    "PollTaskResponse": "1 run_id string, 2 workflow_type string, 3 input Payload",
    "BeginStepRequest": (
        "1 namespace string, 2 run_id string, 3 step_name string, 4 kind StepKind, 5 input Payload, "
        "6 retry_policy RetryPolicy"
    ),
    "BeginStepResponse": "1 step_id string, 2 should_execute bool, 3 cached_output Payload",
    "CompleteStepRequest": "1 namespace string, 2 run_id string, 3 step_id string, 4 output Payload",
    "CompleteStepResponse": "1 step Step",
    "FailStepRequest": "1 namespace string, 2 run_id string, 3 step_id string, 4 error ErrorDetail",
    "FailStepResponse": "1 scheduled_retry bool, 2 retry_at Ts",
    "CompleteWorkflowRequest": "1 namespace string, 2 run_id string, 3 output Payload",
    "CompleteWorkflowResponse": "1 status WorkflowStatus",
    "FailWorkflowRequest": "1 namespace string, 2 run_id string, 3 error ErrorDetail",
    "FailWorkflowResponse": "1 status WorkflowStatus",
    "SleepRequest": "1 namespace string, 2 run_id string, 3 step_id string, 4 duration Dur",
    "SleepResponse": "",
    "WorkflowSchedule": (
        "1 namespace string, 2 schedule_id string, 3 task_queue string, 4 workflow_type string, "
        "5 cron_expr string, 6 version string, 7 enabled bool, 8 input Payload, 9 max_catchup int32, "
        "10 total_runs int64, 11 successful_runs int64, 12 failed_runs int64, 13 created_at Ts, 14 updated_at Ts, "
        "15 next_fire_at ?Ts, 16 last_fired_at ?Ts"
    ),
    "CreateWorkflowScheduleRequest": (
        "1 namespace string, 2 task_queue string, 3 workflow_type string, 4 cron_expr string, 5 input Payload, "
        "6 enabled ?bool, 7 max_catchup ?int32, 8 version ?string"
    ),
    "CreateWorkflowScheduleResponse": "1 schedule WorkflowSchedule",
    "GetWorkflowScheduleRequest": "1 namespace string, 2 schedule_id string",
    "GetWorkflowScheduleResponse": "1 schedule WorkflowSchedule",
    "ListWorkflowSchedulesRequest": "1 namespace string, 2 task_queue ?string, 3 page PageRequest",
    "ListWorkflowSchedulesResponse": "1 schedules *WorkflowSchedule, 2 page PageInfo",
    "UpdateWorkflowScheduleRequest": (
        "1 namespace string, 2 schedule_id string, 3 task_queue ?string, 4 workflow_type ?string, "
        "5 cron_expr ?string, 6 input ?Payload, 7 enabled ?bool, 8 max_catchup ?int32, 9 next_fire_at ?Ts, "
        "10 version ?string"
    ),
    "UpdateWorkflowScheduleResponse": "1 schedule WorkflowSchedule",
    "DeleteWorkflowScheduleRequest": "1 namespace string, 2 schedule_id string",
    "DeleteWorkflowScheduleResponse": "1 deleted bool, 2 message string",
    "TriggerWorkflowScheduleRequest": "1 namespace string, 2 schedule_id string",
    "TriggerWorkflowScheduleResponse": "1 run_id string",
    "PauseWorkflowScheduleRequest": "1 namespace string, 2 schedule_id string",
    "PauseWorkflowScheduleResponse": "1 schedule WorkflowSchedule",
    "ResumeWorkflowScheduleRequest": "1 namespace string, 2 schedule_id string",
    "ResumeWorkflowScheduleResponse": "1 schedule WorkflowSchedule",
    "ListScheduleRunsRequest": "1 namespace string, 2 schedule_id string, 3 page PageRequest",
    "ListScheduleRunsResponse": "1 runs *Workflow, 2 page PageInfo",
    "Namespace": (
        "1 id string, 2 namespace string, 3 display_name string, 4 description string, 5 enabled bool, "
        "6 created_at Ts, 7 updated_at Ts"
    ),
    "CreateNamespaceRequest": "1 namespace string, 2 display_name string, 3 description ?string",
    "CreateNamespaceResponse": "1 namespace Namespace",
    "GetNamespaceRequest": "1 namespace string",
    "GetNamespaceResponse": "1 namespace Namespace",
    "ListNamespacesRequest": "1 page PageRequest",
    "ListNamespacesResponse": "1 namespaces *Namespace, 2 page PageInfo",
    "UpdateNamespaceRequest": "1 namespace string, 2 display_name ?string, 3 description ?string",
    "UpdateNamespaceResponse": "1 namespace Namespace",
    "EnableNamespaceRequest": "1 namespace string",
    "EnableNamespaceResponse": "1 namespace Namespace",
    "DisableNamespaceRequest": "1 namespace string",
    "DisableNamespaceResponse": "1 namespace Namespace",
    "ListWorkersRequest": "1 namespace string, 2 task_queue ?string, 3 status_filter ?WorkerStatus, 4 page PageRequest",
    "ListWorkersResponse": "1 workers *Worker, 2 page PageInfo",
    "GetWorkerRequest": "1 worker_id string",
    "GetWorkerResponse": "1 worker Worker",
    "GetStepRequest": "1 namespace string, 2 step_id string",
    "GetStepResponse": "1 step Step",
    "ListStepsRequest": "1 namespace string, 2 run_id string, 3 step_name ?string, 4 page PageRequest",
    "ListStepsResponse": "1 steps *Step, 2 page PageInfo",
    "HealthCheckRequest": "1 service ?string",
    "HealthCheckResponse": "1 status ServingStatus, 2 message string, 3 timestamp Ts",
    "GetServerInfoRequest": "",
    "GetServerInfoResponse": (
        "1 version string, 2 api_version string, 3 supported_features *string, 4 min_sdk_version string"
    ),
    "GetStatsRequest": "1 namespace ?string",
    "GetStatsResponse": (
        "1 total_workflows int64, 2 pending_workflows int64, 3 running_workflows int64, "
        "4 completed_workflows int64, 5 failed_workflows int64, 6 total_workers int64, 7 online_workers int64, "
        "8 total_schedules int64, 9 enabled_schedules int64, 10 workflows_by_status map<string,int64>, "
        "11 workflows_by_type map<string,int64>"
    ),
    "DrainWorkerRequest": "1 worker_id string",
    "DrainWorkerResponse": "1 success bool, 2 message string, 3 error ?ErrorDetail",
    "GetQueueDepthRequest": "1 namespace string, 2 task_queue ?string",
    "GetQueueDepthResponse": (
        "1 pending_count int64, 2 running_count int64, 3 sleeping_count int64, 4 depth_by_queue map<string,int64>"
    ),
    "ListWorkflowTypesRequest": "1 namespace string, 2 page PageRequest",
    "ListWorkflowTypesResponse": "1 workflow_types *WorkflowTypeInfo, 2 page PageInfo",
    "WorkflowTypeInfo": "1 workflow_type string, 2 total_runs int64, 3 active_runs int64, 4 task_queues *string",
}

# What we have added: fields to messages of theirs, and messages of our own.
OURS: dict[str, str] = {
    "ListStepsRequest": "50 whole bool, 51 identity ?string, 52 without_payloads bool, 53 fill bool",
    "PageInfo": "50 prev_page_token string, 51 total_is_least bool, 52 searched_until_us int64",
    "ErrorDetail": "50 exact_code string, 51 failure ?bytes",
    "Workflow": (
        "50 exact_status WorkflowStatus, 51 executions int32, 52 crashes int32, 53 available_at_us ?int64, "
        "54 deadline_at_us ?int64, 55 parent_policy ?string, 56 handles_run_id ?string, 57 superseded_by ?string, "
        "58 incarnation int32, 59 waiting_for *string, 60 on_failure ?string, 61 origin_run_id ?string, "
        "62 tags map<string,string>, 63 limit_key ?string, 64 scheduled_for_us ?int64, 80 timezone ?string, "
        "66 former_id ?string, "
        "67 cancel_deadline_us ?int64, 68 lease_expires_at_us ?int64, 69 seed_run_id ?string, "
        "70 parent_step_attempt_id ?string, 71 debounced DebouncedStarts, "
        "72 lineage ?string"
    ),
    "DebouncedStarts": "1 key string, 2 joins int32, 3 joined_at_us ?int64, 4 joined_by string",
    "StartWorkflowRequest": (
        "50 run_id string, 51 priority int32, 52 delay_us int64, 53 start_at_us ?int64, 54 timeout_us ?int64, "
        "55 deadline_at_us ?int64, 56 lease_us ?int64, 57 on_conflict OnConflict, 58 exact_retry_policy ?bytes, "
        "59 trace_context ?string, 60 wait_us int64, 61 parent_step_attempt_id ?string, 62 on_failure ?string, "
        "63 on_failure_queue ?string, "
        "64 signal ?StartSignal, 65 limit_key ?string, 66 tags map<string,string>, 67 debounce ?StartDebounce, "
        "75 limit_name ?string, 76 complete bool, 77 other_queue bool"
    ),
    "StartSignal": "1 name string, 2 value Payload, 3 key string",
    "StartDebounce": "1 key string, 2 wait_us int64, 3 most_us ?int64",
    "StartWorkflowResponse": (
        "50 exact_status WorkflowStatus, 51 available_at_us int64, 52 workflow Workflow, 53 note string"
    ),
    "ListWorkflowsRequest": (
        "50 exact_status_filter ?WorkflowStatus, 51 parent_run_id ?string, 52 tags map<string,string>, "
        "53 id_prefix ?string, 54 error_type ?string, 55 schedule_id ?string"
    ),
    "CancelWorkflowRequest": "50 grace_us ?int64",
    "RetryWorkflowRequest": (
        "50 new_run_id string, 51 from_scratch bool, 52 from_step ?string, 53 input ?Payload, 54 version ?string, "
        "56 leave_id bool, 57 fork bool"
    ),
    "StartWorkflowsRequest": "1 namespace string, 2 starts *StartWorkflowRequest",
    "StartWorkflowsResponse": "1 results *StartResult",
    "StartResult": "1 started |StartWorkflowResponse, 2 error |ErrorDetail",
    "WaitWorkflowRequest": "1 namespace string, 2 run_id string, 3 wait_us int64",
    "WaitWorkflowResponse": "1 workflow Workflow",
    "WaitWorkflowsRequest": "1 namespace string, 2 run_ids *string, 3 wait_us int64",
    "WaitWorkflowsResponse": "1 workflows *Workflow, 2 unknown_run_ids *string",
    "DeregisterRequest": "50 namespace string",
    "GetWorkerRequest": "50 namespace string",
    "DrainWorkerRequest": "50 namespace string",
    "HealthCheckRequest": "50 namespace string",
    "HealthCheckResponse": "50 components *ComponentHealth",
    "ComponentHealth": "1 name string, 2 status HealthStatus, 3 message string",
    "ListVersionsRequest": "1 namespace string, 2 workflow_type ?string",
    "ListVersionsResponse": "1 versions *WorkflowVersion, 2 more bool",
    "WorkflowVersion": (
        "1 workflow_type string, 2 version ?string, 3 is_default bool, 4 is_chosen bool, 5 task_queues *string, "
        "6 first_seen_at Ts, 7 last_seen_at Ts, 8 workers_online int64, 9 pending_runs int64, 10 running_runs int64, "
        "11 sleeping_runs int64, 12 at_least bool, 13 oldest_run_at Ts, 14 can_be_retired bool, "
        "15 summary string"
    ),
    "GetWorkflowInterfaceRequest": "1 namespace string, 2 workflow_type string, 3 version ?string",
    "GetWorkflowInterfaceResponse": "1 interface WorkflowInterface",
    "GetWorkflowReportRequest": "1 namespace string, 2 workflow_type ?string",
    "GetWorkflowReportResponse": (
        "1 runs int64, 2 whole bool, 3 since Ts, 4 runs_by_status map<string,int64>, 5 waited Spread, 6 took Spread, "
        "7 lengths *LengthBar, 8 slices *ReportSlice, 9 slice_width_us int64, 10 failures *FailureGroup, "
        "11 failures_read int64, 12 steps *StepReport, 13 step_runs int64, 14 versions *VersionReport"
    ),
    "Spread": "1 count int64, 2 p50_us int64, 3 p95_us int64, 4 p99_us int64, 5 longest_us int64",
    "LengthBar": "1 least_us int64, 2 below_us ?int64, 3 count int64",
    "ReportSlice": "1 begins_at Ts, 2 completed int64, 3 failed int64, 4 cancelled int64",
    "FailureGroup": (
        "1 error string, 2 place string, 3 message string, 4 count int64, 5 first_at Ts, 6 last_at Ts, "
        "7 last_run_id string"
    ),
    "StepReport": "1 name string, 2 attempts int64, 3 failed int64, 4 retried int64, 5 took Spread",
    "VersionReport": "1 version string, 2 runs int64, 3 failed int64",
    "WorkflowInterface": (
        "1 workflow_type string, 2 version ?string, 3 summary string, 4 input_schema ?string, 5 on_failure ?string, "
        "6 on_failure_queue ?string, 7 timeout_us ?int64, 8 queue ?string, 9 limit_name ?string, 10 limit_key ?string, "
        "11 debounce ?DebounceDefaults, 12 codec bool"
    ),
    "DebounceDefaults": "1 wait_us int64, 2 most_us ?int64, 3 key ?string",
    "SetDefaultVersionRequest": "1 namespace string, 2 workflow_type string, 3 version ?string, 4 force bool",
    "SetDefaultVersionResponse": "",
    "MoveWorkflowsRequest": (
        "1 namespace string, 2 workflow_type string, 3 from_version string, 4 to_version string, 5 dry_run bool, "
        "6 force bool, 7 after string"
    ),
    "MoveWorkflowsResponse": "1 moved int32, 2 after string",
    "CheckedRun": "1 run_id string, 2 executions int32",
    "MoveCheckedWorkflowsRequest": (
        "1 namespace string, 2 workflow_type string, 3 from_version string, 4 to_version string, 5 runs *CheckedRun"
    ),
    "MoveCheckedWorkflowsResponse": "1 moved int32",
    "FlowLimit": "1 namespace string, 2 scope LimitScope, 3 name string, 4 paused_at Ts, 5 paused_by string, "
    "6 pause_reason string, 7 concurrency ?int32, 8 declared ?int32, 9 key_concurrency ?int32, 10 key_declared ?int32, "
    "11 shares ?string, 12 rate RateLimit, 13 rate_declared RateLimit, 14 key_rate RateLimit, "
    "15 key_rate_declared RateLimit, 16 fair bool",
    "RateLimit": "1 count int32, 2 period_us int64, 3 burst int32",
    "ListLimitsRequest": "1 namespace string",
    "ListLimitsResponse": "1 limits *FlowLimit",
    "PauseClaimsRequest": "1 namespace string, 2 scope LimitScope, 3 name string, 4 reason string, 5 by string",
    "PauseClaimsResponse": "1 limit FlowLimit",
    "ResumeClaimsRequest": "1 namespace string, 2 scope LimitScope, 3 name string",
    "ResumeClaimsResponse": "1 limit FlowLimit",
    "SetLimitRequest": "1 namespace string, 2 scope LimitScope, 3 name string, 4 concurrency ?int32, "
    "5 key_concurrency ?int32, 6 rate RateLimit, 7 key_rate RateLimit",
    "SetLimitResponse": "1 limit FlowLimit",
    "ClearLimitRequest": "1 namespace string, 2 scope LimitScope, 3 name string",
    "ClearLimitResponse": "1 limit FlowLimit",
    "DeclaredLimit": "1 name string, 2 most ?int32, 3 key_most ?int32, 4 shares ?string, 5 rate RateLimit, "
    "6 key_rate RateLimit, 7 fair bool",
    "GetSlotWaitRequest": "1 namespace string, 2 run_id string",
    "GetSlotWaitResponse": "1 wait SlotWait",
    "SlotWait": "1 slots string, 2 running int32, 3 most int32, 4 before int32, 5 rate ?string, 6 next_at_us ?int64",
    "WorkflowType": "1 name string, 2 version ?string, 3 queue ?string",
    "Worker": (
        "50 namespace string, 51 queues *string, 52 types *WorkflowType, 53 concurrency int32, 54 completed int64, "
        "55 failed int64"
    ),
    "Step": (
        "50 exact_status StepStatus, 51 identity string, 52 completed_seq ?int64, 53 retry_at_us ?int64, "
        "54 input_hash int64"
    ),
    "RegisterRequest": (
        "50 worker_id string, 51 queues *string, 52 types *WorkflowType, 53 concurrency int32, "
        "54 schedules *DeclaredSchedule, 55 limits *DeclaredLimit, 56 look bool, "
        "57 interfaces *WorkflowInterface"
    ),
    "DeclaredSchedule": (
        "1 name string, 2 workflow_type string, 3 task_queue string, 4 cron_expr string, 5 timezone string, "
        "6 input bytes, 7 max_catchup int32, 8 overlap string, 9 jitter_us int64, 10 priority int32, "
        "11 timeout_us ?int64, 12 retry_policy ?bytes, 13 on_failure ?string, 14 on_failure_queue ?string, "
        "15 hash string, 16 limit_key ?string"
    ),
    "RegisterResponse": (
        "50 lease_us int64, 51 heartbeat_us int64, 52 payload_bytes int64, 53 schedules int32, "
        "54 schedule_warnings *string, 55 suspect_crashes int32"
    ),
    "HeldRun": "1 run_id string, 2 token string",
    "HeldRuns": "1 runs *HeldRun",
    "HeartbeatRequest": "50 held ?HeldRuns, 51 heard int64, 52 completed int64, 53 failed int64, 54 namespace string",
    "HeartbeatResponse": "50 lost *string, 51 news *string, 52 known bool, 53 now_us int64, 54 cancelled *string, "
    "55 run_news *RunNews, 56 unrenewed *string",
    "PollTasksRequest": (
        "1 namespace string, 2 worker_id string, 3 queues *string, 4 types *WorkflowType, 5 limit int32, "
        "6 number int64, 7 token string, 8 wait_us int64, 9 ending int32"
    ),
    "PollTasksResponse": "1 now_us int64, 2 claims *Claim, 3 waited_us int64",
    "Claim": (
        "1 run_id string, 2 token string, 3 workflow_type string, 4 version string, 5 task_queue string, "
        "6 external_id ?string, 7 input ?bytes, 8 started_at_us int64, 9 lease_us int64, 10 attempts int32, "
        "11 executions int32, 12 crashes int32, 13 inbox_seq int64, 14 retry_policy ?bytes, "
        "15 history *StepRecord, 16 history_page_token string, 17 cancel_requested bool, 18 origin_run_id ?string, "
        "19 trace_context ?string, 20 family bool, 21 handles_run_id ?string, 22 failed_input ?bytes, "
        "23 signals *Signal, 24 signals_complete bool, 25 incarnation int32, 26 depth int32, 27 limited bool, "
        "28 scheduled_for_us ?int64, 33 timezone ?string, "
        "30 executions_before int32, 32 woken ?string, 50 lineage ?string"
    ),
    "StepRecord": (
        "1 step_id string, 2 attempt int32, 3 kind StepKind, 4 status StepStatus, 5 completed_seq ?int64, "
        "6 started_at_us int64, 7 finished_at_us ?int64, 8 retry_at_us ?int64, 9 timeout_at_us ?int64, "
        "10 input_hash int64, 11 output ?bytes, 12 error ?bytes, 13 input ?bytes, 14 child_run_id ?string"
    ),
    "GetHistoryRequest": "1 namespace string, 2 run_id string, 3 token string, 4 page_token string",
    "GetHistoryResponse": ("1 history *StepRecord, 2 next_page_token string, 3 input ?bytes, 4 failed_input ?bytes"),
    "Namespace": "50 on_failure ?string, 51 on_failure_queue ?string",
    "UpdateNamespaceRequest": "50 on_failure ?string, 51 on_failure_queue ?string",
    "CommitBatchRequest": "1 namespace string, 2 chunks *Chunk, 3 packed *bytes",
    "CommitBatchResponse": "1 results *ChunkResult",
    "Chunk": (
        "1 run_id string, 2 token string, 3 steps *StepRecord, 4 park |ParkRun, 5 hand_back |HandBackRun, "
        "6 retry |RetryRun, 7 complete |CompleteRun, 8 fail |FailRun, 9 end_cancelled |EndCancelledRun, "
        "10 continue |ContinueRun, 11 values *SetValue"
    ),
    "ParkRun": "1 available_at_us int64, 2 inbox_seq int64, 3 waiting_for *string",
    "HandBackRun": "1 available_at_us ?int64",
    "RetryRun": "1 available_at_us int64, 2 keep_seq int64, 3 error bytes",
    "CompleteRun": "1 output bytes, 2 unless_cancelled bool",
    "FailRun": "1 error bytes",
    "EndCancelledRun": "1 error bytes",
    "ContinueRun": "1 input bytes, 2 version ?string",
    "ChunkResult": "1 answer ChunkAnswer, 2 error ErrorDetail",
    "RunNews": "1 run_id string, 2 inbox_seq int64, 3 cancelled bool",
    "WaitNewsRequest": "1 namespace string, 2 worker_id string, 3 wait_us int64",
    "WaitNewsResponse": "1 news *RunNews",
    "ReadInboxRequest": (
        "1 namespace string, 2 run_id string, 3 token string, 4 names *string, 5 children bool, 6 reconcile bool"
    ),
    "SpawnChildRequest": (
        "1 namespace string, 2 run_id string, 3 step_id string, 4 start StartWorkflowRequest, 5 parent_policy string"
    ),
    "SpawnChildResponse": "1 child_run_id string",
    "AwaitChildRequest": "1 namespace string, 2 run_id string, 3 step_id string",
    "AwaitChildResponse": "1 parked bool",
    "ReadInboxResponse": "1 inbox_seq int64, 2 cancel_requested bool, 3 signals *Signal, 4 outcomes *StepRecord",
    "WakeWorkflowRequest": "1 namespace string, 2 run_id string",
    "WakeWorkflowResponse": "1 woken bool, 2 status WorkflowStatus",
    "SignalWorkflowRequest": (
        "1 namespace string, 2 run_id string, 3 external_id string, 4 name string, 5 value Payload, 6 key string"
    ),
    "SignalWorkflowResponse": "1 run_id string, 2 seq int64, 3 status WorkflowStatus, 4 repeated bool, 5 key string",
    "SetValue": "1 name string, 2 value bytes, 3 number int64",
    "GetWorkflowValuesRequest": "1 namespace string, 2 run_id string, 3 names *string, 4 after_name string",
    "GetWorkflowValuesResponse": "1 values *RunValue, 2 more bool",
    "RunValue": "1 name string, 2 value Payload, 3 at_us int64",
    "ListSignalsRequest": "1 namespace string, 2 run_id string, 3 after_seq int64",
    "ListSignalsResponse": "1 signals *Signal",
    "Signal": "1 key string, 2 seq int64, 3 name string, 4 value Payload, 5 sent_at_us int64, 6 taken_seq ?int64",
    "ExchangeRequest": "1 calls *ExchangedCall, 2 given_up *int64",
    "ExchangedCall": "1 number int64, 2 method string, 3 request bytes, 4 timeout_us int64",
    "ExchangeResponse": "1 answers *ExchangedAnswer",
    "ExchangedAnswer": "1 number int64, 2 status int32, 3 response bytes, 4 error ErrorDetail",
    "GetStatsRequest": "50 live bool, 51 created_after ?Ts, 52 created_before ?Ts",
    "GetStatsResponse": (
        "50 counts *RunCount, 51 at_least bool, 52 workers_by_status map<string,int64>, 53 schedule_runs int64, "
        "54 successful_schedule_runs int64, 55 failed_schedule_runs int64, 56 skipped_firings int64"
    ),
    "RunCount": "1 workflow_type string, 2 task_queue string, 3 status WorkflowStatus, 4 count int64, 5 at_least bool",
    "GetQueueDepthResponse": "50 at_least bool",
    "WorkflowSchedule": (
        "50 name ?string, 51 timezone string, 52 overlap string, 53 jitter_ms int64, 54 skipped_runs int64, "
        "55 buffered_for ?Ts, 56 declared bool, 57 error ?string, 58 tags map<string,string>, "
        "59 on_failure ?string, "
        "60 on_failure_queue ?string, 61 exact_retry_policy ?bytes, "
        "62 pause_reason ?string, 63 priority int32, 64 timeout_us ?int64, 65 last_run_id ?string, "
        "66 changed_by_hand bool, 67 abandoned bool, 68 limit_key ?string"
    ),
    "CreateWorkflowScheduleRequest": (
        "50 schedule_id string, 51 name ?string, 52 timezone string, 53 overlap string, 54 jitter_ms int64, "
        "55 priority int32, 56 timeout_us ?int64, 57 limit_key ?string, 58 tags map<string,string>, "
        "59 on_failure ?string, 60 on_failure_queue ?string, 61 exact_retry_policy ?bytes, 62 complete bool, "
        "63 other_queue bool"
    ),
    "UpdateWorkflowScheduleRequest": (
        "52 timezone ?string, 53 overlap ?string, 54 jitter_ms ?int64, 55 priority ?int32, 56 timeout_us ?int64, "
        "57 limit_key ?string, 58 tags ScheduleTags, 59 on_failure ?string, 60 on_failure_queue ?string, "
        "61 exact_retry_policy ?bytes, 62 pause_reason ?string, "
        "63 reset bool"
    ),
    "Job": (
        "1 namespace string, 2 job_id string, 3 action string, 4 filter bytes, 5 rate int32, 6 children bool, "
        "7 status string, 8 matched int64, 9 done int64, 10 skipped int64, 11 failed int64, 12 created_by string, "
        "13 created_at Ts, 14 finished_at ?Ts, 15 error ?string, 16 options JobOptions, 17 reasons map<string,int64>"
    ),
    "JobOptions": "1 from_step ?string, 2 from_version ?string, 3 version ?string",
    "StartJobRequest": (
        "1 namespace string, 2 job_id string, 3 action string, 4 filter ListWorkflowsRequest, 5 everything bool, "
        "6 rate int32, 7 children bool, 8 created_by string, 9 options JobOptions"
    ),
    "StartJobResponse": "1 job Job",
    "PreviewJobResponse": "1 matched int64, 2 at_least bool, 3 children int64, 4 workflows *Workflow",
    "GetJobRequest": "1 namespace string, 2 job_id string",
    "GetJobResponse": "1 job Job",
    "ListJobsRequest": "1 namespace string, 2 page PageRequest",
    "ListJobsResponse": "1 jobs *Job, 2 page PageInfo",
    "CancelJobRequest": "1 namespace string, 2 job_id string",
    "CancelJobResponse": "1 job Job",
    "DeleteWorkflowRequest": "1 namespace string, 2 run_id string",
    "DeleteWorkflowResponse": "",
    "ScheduleTags": "1 tags map<string,string>",
    "TriggerWorkflowScheduleRequest": "50 run_id string",
    "PauseWorkflowScheduleRequest": "50 reason string",
    "PreviewWorkflowScheduleRequest": "1 cron_expr string, 2 timezone string, 3 count int32, 4 after ?Ts",
    "PreviewedFiring": "1 at Ts, 2 local string, 3 note string",
    "PreviewWorkflowScheduleResponse": "1 firings *PreviewedFiring",
    "BackfillWorkflowScheduleRequest": "1 namespace string, 2 schedule_id string, 3 since Ts, 4 until Ts",
    "BackfillWorkflowScheduleResponse": "1 started int64, 2 existing int64",
    "ListScheduleSkipsRequest": "1 namespace string, 2 schedule_id string",
    "ScheduleSkip": "1 first_at Ts, 2 last_at Ts, 3 count int64, 4 reason string, 5 at Ts",
    "ListScheduleSkipsResponse": "1 skips *ScheduleSkip",
}

THEIR_RPCS = {
    "WorkflowService": (
        "StartWorkflow GetWorkflow GetWorkflowByExternalId ListWorkflows CancelWorkflow RetryWorkflow TerminateWorkflow"
    ),
    "WorkerService": (
        "Register Heartbeat Deregister PollTask BeginStep CompleteStep FailStep CompleteWorkflow FailWorkflow Sleep"
    ),
    "WorkflowScheduleService": (
        "CreateWorkflowSchedule GetWorkflowSchedule ListWorkflowSchedules UpdateWorkflowSchedule "
        "DeleteWorkflowSchedule TriggerWorkflowSchedule PauseWorkflowSchedule ResumeWorkflowSchedule ListScheduleRuns"
    ),
    "NamespaceService": (
        "CreateNamespace GetNamespace ListNamespaces UpdateNamespace EnableNamespace DisableNamespace"
    ),
    "AdminService": (
        "ListWorkers GetWorker GetStep ListSteps HealthCheck GetServerInfo GetStats DrainWorker GetQueueDepth "
        "ListWorkflowTypes"
    ),
}
OUR_RPCS = {
    "WorkflowService": (
        "WakeWorkflow SignalWorkflow ListSignals GetWorkflowValues StartWorkflows WaitWorkflow WaitWorkflows"
    ),
    "WorkerService": "PollTasks GetHistory CommitBatch WaitNews ReadInbox SpawnChild AwaitChild",
    "AdminService": (
        "ListVersions GetWorkflowInterface GetWorkflowReport SetDefaultVersion MoveWorkflows MoveCheckedWorkflows "
        "ListLimits PauseClaims ResumeClaims SetLimit ClearLimit GetSlotWait"
    ),
    "WorkflowScheduleService": "PreviewWorkflowSchedule BackfillWorkflowSchedule ListScheduleSkips",
}

# Values without the name of their enum, which each of them begins with; 0 is UNSPECIFIED.
THEIR_ENUMS = {
    "ErrorCode": (
        "1 NOT_FOUND, 2 INVALID_ARGUMENT, 3 PRECONDITION_FAILED, 4 CONFLICT, 5 UNAUTHORIZED, 6 UNAVAILABLE, "
        "7 INTERNAL, 8 TIMEOUT"
    ),
    "WorkflowStatus": "1 PENDING, 2 RUNNING, 3 SLEEPING, 4 COMPLETED, 5 FAILED, 6 CANCELLED, 7 SCHEDULED, 8 PAUSED",
    "WorkerStatus": "1 ONLINE, 2 DRAINING, 3 OFFLINE",
    "StepKind": "1 FUNCTION, 2 SLEEP, 3 CHILD_WORKFLOW",
    "StepStatus": "1 PENDING, 2 RUNNING, 3 COMPLETED, 4 FAILED",
    "ServingStatus": "1 SERVING, 2 NOT_SERVING",
}
OUR_ENUMS = {
    "WorkflowStatus": "50 TIMED_OUT",
    "StepKind": "50 SIGNAL, 51 CANCEL",
    "StepStatus": "50 CANCELLED",
    "OnConflict": "1 RETURN, 2 FAIL, 3 RESTART_FINISHED, 4 RESTART_FAILED",
    "ChunkAnswer": "1 DONE, 2 LEASE_LOST, 3 NEWS",
    "LimitScope": "1 NAMESPACE, 2 QUEUE, 3 WORKFLOW",
    "HealthStatus": "1 HEALTHY, 2 DEGRADED, 3 UNHEALTHY",
}


def compiled() -> list[FileDescriptorProto]:
    files = []
    for module in MODULES:
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        files.append(file)
    return files


FILES = compiled()
MESSAGES = {message.name: message for file in FILES for message in file.message_type}
ENUMS = {enum.name: enum for file in FILES for enum in file.enum_type}
SERVICES = {service.name: service for file in FILES for service in file.service}


def fields_of(message: DescriptorProto) -> list[str]:
    maps = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    assert len(maps) == len(message.nested_type), f"{message.name} has nested messages"

    def type_of(field: FieldDescriptorProto) -> str:
        if field.type_name:
            return {"Timestamp": "Ts", "Duration": "Dur"}.get(name := field.type_name.rpartition(".")[2], name)
        return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()

    found = []
    for field in message.field:
        entry = maps.get(field.type_name.rpartition(".")[2])
        if entry is not None:
            label, kind = "", f"map<{','.join(type_of(part) for part in entry.field)}>"
        elif field.label == FieldDescriptorProto.LABEL_REPEATED:
            label, kind = "*", type_of(field)
        elif field.proto3_optional:
            label, kind = "?", type_of(field)
        else:
            label, kind = "|" if field.HasField("oneof_index") else "", type_of(field)
        found.append(f"{field.number} {field.name} {label}{kind}")
    return found


def listed(text: str) -> list[str]:
    return text.split(", ") if text else []


def number_of(entry: str) -> int:
    return int(entry.split()[0])


def test_there_are_no_other_messages_enums_or_services() -> None:
    assert MESSAGES.keys() == THEIRS.keys() | OURS.keys()
    assert ENUMS.keys() == THEIR_ENUMS.keys() | OUR_ENUMS.keys()
    assert SERVICES.keys() == THEIR_RPCS.keys() | {"ExchangeService", "JobService"}


@pytest.mark.parametrize("name", sorted(THEIRS.keys() | OURS.keys()))
def test_fields(name: str) -> None:
    fields = fields_of(MESSAGES[name])
    if name in THEIRS:
        assert [entry for entry in fields if number_of(entry) < OURS_FROM] == listed(THEIRS[name])
        assert [entry for entry in fields if number_of(entry) >= OURS_FROM] == listed(OURS.get(name, ""))
    else:
        assert fields == listed(OURS[name])


@pytest.mark.parametrize("name", sorted(THEIR_ENUMS.keys() | OUR_ENUMS.keys()))
def test_enums(name: str) -> None:
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    values = [f"{value.number} {value.name}" for value in ENUMS[name].value]
    entries = ["0 UNSPECIFIED", *listed(THEIR_ENUMS.get(name, "")), *listed(OUR_ENUMS.get(name, ""))]
    assert values == [entry.replace(" ", f" {prefix}_") for entry in entries]


def test_what_we_have_added_to_theirs_is_numbered_from_50() -> None:
    for name, entries in [*OURS.items(), *OUR_ENUMS.items()]:
        if name in THEIRS or name in THEIR_ENUMS:
            assert all(number_of(entry) >= OURS_FROM for entry in listed(entries)), name


@pytest.mark.parametrize("name", sorted(THEIR_RPCS))
def test_services(name: str) -> None:
    methods = [method.name for method in SERVICES[name].method]
    assert methods == [*THEIR_RPCS[name].split(), *OUR_RPCS.get(name, "").split()]
    for method in SERVICES[name].method:
        assert method.input_type == f".kagzi.v1.{method.name}Request"
        assert method.output_type == f".kagzi.v1.{method.name}Response"
        assert not method.client_streaming
        assert not method.server_streaming


def test_what_carries_calls() -> None:
    (exchange,) = SERVICES["ExchangeService"].method
    assert (exchange.name, exchange.client_streaming, exchange.server_streaming) == ("Exchange", True, True)
    assert exchange.input_type == ".kagzi.v1.ExchangeRequest"
    assert exchange.output_type == ".kagzi.v1.ExchangeResponse"


def test_package_and_syntax() -> None:
    assert [(file.package, file.syntax) for file in FILES] == [("kagzi.v1", "proto3")] * len(FILES)
    assert [file.name for file in FILES] == [
        f"kagzi/_proto/v1/{name}.proto"
        for name in ("common", "workflow", "worker", "workflow_schedule", "namespace", "admin", "exchange", "job")
    ]


def test_number_6_of_a_start_stays_free() -> None:
    message = MESSAGES["StartWorkflowRequest"]
    assert 6 not in [field.number for field in message.field]
    assert [(span.start, span.end) for span in message.reserved_range] == [(6, 7)]


# The protos as text.


def declarations() -> Iterator[tuple[str, str, bool]]:
    """(where, declaration, whether a comment belongs to it) for every message, enum, service, RPC, field and value."""
    for path in sorted(PROTOS.rglob("*.proto")):
        around: list[str] = []
        comment = False
        for line in path.read_text().splitlines():
            text = line.strip()
            if text.startswith("//"):
                comment = True
                continue
            opened = re.match(r"(message|enum|oneof|service) (\w+) \{(\})?$", text)
            if text == "}":
                around.pop()
            elif opened is not None:
                yield path.name, f"{opened[1]} {opened[2]}", comment
                if not opened[3]:
                    around.append(opened[2])
            elif around and (found := re.match(r"(?:.* )?(\w+) = (\d+);$|rpc (\w+)", text)) is not None:
                # The fields of a oneof belong to the message around it.
                yield path.name, f"{around[0]} {found[3] or f'{found[1]} {found[2]}'}", comment
            comment = False
        assert not around, f"{path.name}: a bracket is missing"


def test_everything_is_documented() -> None:
    bare = [f"{where}: {what}" for where, what, comment in declarations() if not comment]
    assert not bare


def test_generated_code_is_up_to_date() -> None:
    """What the protos declare is what was compiled; if not, install again: pip install -e '.[dev]'."""
    written = {what for _, what, _ in declarations() if not re.match(r"(message|enum|oneof|service) ", what)}
    built = {f"{message.name} {field.name} {field.number}" for message in MESSAGES.values() for field in message.field}
    built |= {f"{enum.name} {value.name} {value.number}" for enum in ENUMS.values() for value in enum.value}
    built |= {f"{service.name} {method.name}" for service in SERVICES.values() for method in service.method}
    assert written == built


# Everything our own contract says has a place on the wire.

FROM_THE_CALL = None  # said once for all items of a call, or known to the caller
PLACES: list[tuple[type[msgspec.Struct], str, dict[str, str | None]]] = [
    # A lease at birth is for workers in the engine's own process; so is the answer about it.
    (
        StartRun,
        "StartWorkflowRequest",
        {
            "lease_length": "lease_us",
            "lease": FROM_THE_CALL,
            "started_by": "parent_step_attempt_id",
            "by_name": "complete",
        },
    ),
    (
        Started,
        "StartWorkflowResponse",
        {
            "status": "exact_status",
            "born": FROM_THE_CALL,
            "started_at": FROM_THE_CALL,
            "end": "workflow",
            "left_line": None,  # for the engine that has made the start
            "signal": FROM_THE_CALL,
        },
    ),
    # Nobody but workers asks for its depth.
    (
        Run,
        "Workflow",
        {
            "status": "exact_status",
            "depth": None,
            "origin": "origin_run_id",
            "parent_attempt": "parent_step_attempt_id",
            "debounce_key": "debounced",
            "joins": "debounced",
            "joined_at": "debounced",
            "joined_by": "debounced",
        },
    ),
    (Step, "Step", {"step_id": "identity", "attempt": "attempt_number", "status": "exact_status"}),
    (Step, "StepRecord", {}),
    (StepOperation, "StepRecord", {}),
    (
        Registration,
        "RegisterRequest",
        {
            "queue_limit": "queue_concurrency_limit",
            "type_limits": "workflow_type_concurrency",
            "actor": FROM_THE_CALL,
            "peer": FROM_THE_CALL,
        },
    ),
    (Registered, "RegisterResponse", {"warnings": "schedule_warnings"}),
    (Poll, "PollTasksRequest", {"adopts": None}),  # every poll of this kind does
    (Polled, "PollTasksResponse", {"more": None, "held": None}),
    (Claim, "Claim", {"namespace": FROM_THE_CALL, "limited": None, "inbox": "signals"}),
    (Heartbeat, "HeartbeatRequest", {"confirmed": None}),
    (HeartbeatAnswer, "HeartbeatResponse", {"drain": "should_drain"}),
    (Chunk, "Chunk", {"namespace": FROM_THE_CALL, "operations": "steps"}),
    (ParkRun, "ParkRun", {}),
    (HandBackRun, "HandBackRun", {}),
    (RetryRun, "RetryRun", {}),
    # Who says it in protobuf leaves it to the server to look for a family.
    (CompleteRun, "CompleteRun", {"family": None}),
    (FailRun, "FailRun", {"family": None}),
    (EndCancelledRun, "EndCancelledRun", {"family": None}),
    (ContinueRun, "ContinueRun", {}),
    (CancelRun, "CancelWorkflowRequest", {}),
    (TerminateRun, "TerminateWorkflowRequest", {}),
    # The queue and the due time are for whoever wakes the workers, at the other end.
    (
        CancelAnswer,
        "CancelWorkflowResponse",
        {"run_id": FROM_THE_CALL, "effective": "cancelled", "task_queue": FROM_THE_CALL, "available_at": FROM_THE_CALL},
    ),
    (
        RepeatRun,
        "RetryWorkflowRequest",
        {"run_id": "new_run_id", "of_run_id": "run_id", "keep_steps": "from_scratch", "keep_id": "leave_id"},
    ),
    (
        Worker,
        "Worker",
        {
            "active": "active_workflow_count",
            "queue_limit": "queue_concurrency_limit",
            "type_limits": "workflow_type_concurrency",
        },
    ),
    (WorkflowType, "WorkflowType", {}),
    (ComponentHealth, "ComponentHealth", {}),
]


@pytest.mark.parametrize(("record", "message", "renamed"), PLACES, ids=lambda value: getattr(value, "__name__", None))
def test_our_records_fit(record: type[msgspec.Struct], message: str, renamed: dict[str, str | None]) -> None:
    places = {field.name for field in MESSAGES[message].field}
    for name in record.__struct_fields__:
        place = renamed.get(name, name)
        assert place is None or place in places or f"{place}_us" in places, f"{message} has no place for {name}"


@pytest.mark.parametrize(
    ("states", "enum"),
    [
        (RunStatus, "WorkflowStatus"),
        (WorkerStatus, "WorkerStatus"),
        (StepKind, "StepKind"),
        (StepStatus, "StepStatus"),
    ],
)
def test_our_states_fit(states: Any, enum: str) -> None:
    listed_values = f"{THEIR_ENUMS[enum]}, {OUR_ENUMS.get(enum, '')}"
    assert {state.value for state in states} <= set(re.findall(r"[A-Z_]+", listed_values))


def test_none_is_told_from_empty() -> None:
    """What may be None in our records is optional on the wire, and bytes of no length are not None."""
    record = worker_pb2.StepRecord(step_id="a", started_at_us=1, output=b"")
    again = worker_pb2.StepRecord.FromString(record.SerializeToString())
    assert again.HasField("output")
    assert not again.HasField("error")
    assert not again.HasField("completed_seq")
    assert not worker_pb2.HeartbeatRequest(worker_id="w").HasField("held")
    empty = worker_pb2.HeartbeatRequest(worker_id="w", held=worker_pb2.HeldRuns())
    assert worker_pb2.HeartbeatRequest.FromString(empty.SerializeToString()).HasField("held")
