"""The table of resources: which method and path map to which command.

The names in a path are fields of the command, and so are those of a query (GET, DELETE) or of the body (POST,
PUT). Everything else about a resource, including its description, follows from the command's declaration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bunqueue.protocol.commands import COMMANDS, Spec

OF_A_CONNECTION = frozenset({"Hello", "Auth", "SubscribeEvents", "UnsubscribeEvents"})
"""Commands that have no meaning over HTTP. /events and /ws replace them."""
OFFERED: Mapping[str, Spec] = {
    name: spec for name, spec in COMMANDS.items() if not spec.internal and name not in OF_A_CONNECTION
}


_PULL: Mapping[str, Any] = {"detach": True, "group": {"fair": True}}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {"PULL": _PULL, "PULLB": _PULL}
"""Defaults of commands over HTTP. A pulled job stays with its worker, because no connection ends that could
release it. Groups take turns by weight, as for workers of this package."""


def with_defaults(command: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request, with the defaults for missing ones, also within `group`."""
    found = {**DEFAULTS.get(command, {}), **fields}
    for name, default in DEFAULTS.get(command, {}).items():
        if isinstance(default, Mapping) and isinstance(found[name], Mapping):
            found[name] = {**default, **found[name]}
    return found


@dataclass(frozen=True)
class Resource:
    """One method of one path."""

    method: str
    path: str
    command: str
    tag: str
    whole: str | None = None
    """The field that gets the whole body, which may be any JSON value. The other fields are in the query."""

    @property
    def spec(self) -> Spec:
        return COMMANDS[self.command]

    @property
    def names(self) -> list[str]:
        """The fields in the path."""
        return re.findall(r"{(\w+)}", self.path)

    @property
    def has_body(self) -> bool:
        """Whether the other fields are in the body. If not, they are in the query."""
        return self.method in ("POST", "PUT") and self.whole is None


def _group(tag: str, prefix: str, *rows: tuple[str, str, str], whole: str | None = None) -> list[Resource]:
    return [Resource(method, prefix + path, command, tag, whole) for method, path, command in rows]


RESOURCES: tuple[Resource, ...] = (
    *_group(
        "Queues",
        "/queues",
        ("GET", "", "DashboardQueues"),
        ("GET", "/{queue}", "DashboardQueue"),
        ("DELETE", "/{queue}", "Obliterate"),
        ("POST", "/{queue}/pause", "Pause"),
        ("POST", "/{queue}/resume", "Resume"),
        ("GET", "/{queue}/paused", "IsPaused"),
        ("POST", "/{queue}/drain", "Drain"),
        ("POST", "/{queue}/clean", "Clean"),
        ("POST", "/{queue}/promote", "PromoteJobs"),
        ("POST", "/{queue}/retry-completed", "RetryCompleted"),
        ("GET", "/{queue}/counts", "GetJobCounts"),
        ("GET", "/{queue}/count", "Count"),
        ("GET", "/{queue}/priorities", "GetCountsPerPriority"),
        ("GET", "/{queue}/metrics", "Metrics"),
        ("GET", "/{queue}/stall-config", "GetStallConfig"),
        ("PUT", "/{queue}/stall-config", "SetStallConfig"),
        ("POST", "/{queue}/trim-events", "TrimEvents"),
    ),
    *_group(
        "Jobs of a queue",
        "/queues/{queue}",
        ("POST", "/jobs", "PUSH"),
        ("GET", "/jobs", "PULL"),
        ("POST", "/jobs/bulk", "PUSHB"),
        ("POST", "/jobs/pull", "PULL"),
        ("POST", "/jobs/pull-bulk", "PULLB"),
        ("GET", "/jobs/list", "GetJobs"),
        ("GET", "/jobs/find", "FindJobs"),
        ("POST", "/jobs/change", "ChangeJobs"),
        ("POST", "/jobs/wait", "WaitJobs"),
        ("POST", "/steps", "RecordSteps"),
        ("GET", "/jobs/{id}/steps", "GetSteps"),
        ("POST", "/jobs/{id}/suspend", "SuspendJob"),
        ("POST", "/jobs/{id}/continue-as-new", "ContinueAsNew"),
        ("GET", "/unique-keys/{deduplicationId}", "GetDeduplicationJobId"),
        ("DELETE", "/unique-keys/{deduplicationId}", "RemoveDeduplicationKey"),
    ),
    *_group(
        "Jobs",
        "/jobs",
        ("GET", "", "FindJobs"),
        ("POST", "/change", "ChangeJobs"),
        ("POST", "/ack", "ACKB"),
        ("POST", "/fail", "FAILB"),
        ("POST", "/heartbeat", "JobHeartbeatB"),
        ("POST", "/extend-locks", "ExtendLocks"),
        ("GET", "/{id}", "GetJob"),
        ("DELETE", "/{id}", "RemoveJob"),
        ("POST", "/{id}/ack", "ACK"),
        ("POST", "/{id}/fail", "FAIL"),
        ("POST", "/{id}/cancel", "Cancel"),
        ("POST", "/{id}/heartbeat", "JobHeartbeat"),
        ("POST", "/{id}/reencode", "Reencode"),
        ("POST", "/{id}/extend-lock", "ExtendLock"),
        ("GET", "/{id}/state", "GetState"),
        ("GET", "/{id}/result", "GetResult"),
        ("POST", "/{id}/wait", "WaitJob"),
        ("GET", "/{id}/progress", "GetProgress"),
        ("PUT", "/{id}/progress", "Progress"),
        ("GET", "/{id}/attempts", "GetAttempts"),
        ("GET", "/{id}/waiting", "WhyWaiting"),
        ("GET", "/{id}/logs", "GetLogs"),
        ("POST", "/{id}/logs", "AddLog"),
        ("DELETE", "/{id}/logs", "ClearLogs"),
        ("PUT", "/{id}/data", "Update"),
        ("PUT", "/{id}/priority", "ChangePriority"),
        ("PUT", "/{id}/delay", "ChangeDelay"),
        ("POST", "/{id}/promote", "Promote"),
        ("POST", "/{id}/move-to-delayed", "MoveToDelayed"),
        ("POST", "/{id}/move-to-wait", "MoveToWait"),
        ("POST", "/{id}/discard", "Discard"),
        ("DELETE", "/{id}/unique-key", "RemoveJobDeduplicationKey"),
    ),
    *_group("Jobs", "/custom-ids", ("GET", "/{customId}", "GetJobByCustomId")),
    *_group(
        "Flows",
        "",
        ("POST", "/flows", "PUSHF"),
        ("GET", "/flows", "ListFlows"),
        ("POST", "/flows/{flow}", "AddFlow"),
        ("GET", "/flows/{flow}", "GetFlow"),
        ("POST", "/flows/{flow}/close", "CloseFlow"),
        ("POST", "/flows/{flow}/cancel", "CancelFlow"),
        ("POST", "/flows/{flow}/retry", "RetryFlow"),
        ("GET", "/jobs/{id}/children/results", "GetChildrenValues"),
        ("GET", "/jobs/{id}/children/failures", "GetFailedChildrenValues"),
        ("GET", "/jobs/{id}/children/ignored", "GetIgnoredChildrenFailures"),
        ("DELETE", "/jobs/{id}/children", "RemoveUnprocessedChildren"),
        ("PUT", "/jobs/{childId}/parent", "UpdateParent"),
        ("DELETE", "/jobs/{id}/parent", "RemoveChildDependency"),
        ("POST", "/jobs/{id}/wait-for-children", "MoveToWaitingChildren"),
    ),
    *_group(
        "Workflows",
        "/workflows",
        ("GET", "/{id}", "GetWorkflow"),
        ("POST", "/{id}/signals/{name}", "SendSignal"),
        ("DELETE", "/{id}/signals/{number}", "DropSignal"),
        ("POST", "/{id}/retry", "RetryWorkflow"),
        ("POST", "/{id}/undo", "UndoWorkflow"),
    ),
    *_group("Workflows", "/signals", ("POST", "/{name}", "Broadcast")),
    *_group(
        "Workflows",
        "",
        ("POST", "/workflows/{id}/signals/{name}/raw", "SendSignal"),
        ("POST", "/signals/{name}/raw", "Broadcast"),
        whole="data",
    ),
    *_group(
        "Dead letters",
        "/queues/{queue}/dlq",
        ("GET", "", "Dlq"),
        ("DELETE", "", "PurgeDlq"),
        ("POST", "/retry", "RetryDlq"),
        ("GET", "/stats", "GetDlqStats"),
        ("GET", "/count", "CountDlq"),
        ("GET", "/config", "GetDlqConfig"),
        ("PUT", "/config", "SetDlqConfig"),
        ("DELETE", "/{jobId}", "RemoveDlqJob"),
        ("POST", "/{jobId}/retry", "RetryDlq"),
    ),
    *_group(
        "Limits",
        "/queues/{queue}",
        ("GET", "/limits", "GetQueueLimits"),
        ("GET", "/bounds", "GetBounds"),
        ("PUT", "/bounds", "SetBounds"),
        ("PUT", "/signal-types", "SetSignalTypes"),
        ("PUT", "/rate-limit", "RateLimit"),
        ("DELETE", "/rate-limit", "RateLimitClear"),
        ("PUT", "/concurrency", "SetConcurrency"),
        ("DELETE", "/concurrency", "ClearConcurrency"),
    ),
    *_group(
        "Circuit breakers",
        "/queues/{queue}/breaker",
        ("PUT", "", "SetBreaker"),
        ("DELETE", "", "ClearBreaker"),
        ("POST", "/trip", "TripBreaker"),
        ("POST", "/reset", "ResetBreaker"),
    ),
    *_group("Circuit breakers", "/breakers", ("GET", "", "ListBreakers")),
    *_group(
        "Groups",
        "/queues/{queue}/groups",
        ("GET", "", "ListGroups"),
        ("GET", "/count", "GetGroupsJobsCount"),
        ("GET", "/defaults", "GetGroupDefaults"),
        ("PUT", "/defaults", "SetGroupDefaults"),
        ("GET", "/{groupId}/jobs", "GetGroupJobs"),
        ("GET", "/{groupId}/count", "GetGroupJobsCount"),
        ("GET", "/{groupId}/active", "GetGroupActiveCount"),
        ("POST", "/{groupId}/pause", "PauseGroup"),
        ("POST", "/{groupId}/resume", "ResumeGroup"),
        ("GET", "/{groupId}/paused", "IsGroupPaused"),
        ("POST", "/{groupId}/hold", "RateLimitGroup"),
        ("GET", "/{groupId}/rate-limit", "GetGroupRateLimit"),
        ("PUT", "/{groupId}/rate-limit", "SetGroupRateLimit"),
        ("DELETE", "/{groupId}/rate-limit", "RemoveGroupRateLimit"),
        ("GET", "/{groupId}/rate-limit/ttl", "GetGroupRateLimitTtl"),
        ("GET", "/{groupId}/concurrency", "GetGroupConcurrency"),
        ("PUT", "/{groupId}/concurrency", "SetGroupConcurrency"),
        ("DELETE", "/{groupId}/concurrency", "RemoveGroupConcurrency"),
        ("GET", "/{groupId}/weight", "GetGroupWeight"),
        ("PUT", "/{groupId}/weight", "SetGroupWeight"),
        ("DELETE", "/{groupId}/weight", "RemoveGroupWeight"),
    ),
    *_group(
        "Cron",
        "/crons",
        ("GET", "", "CronList"),
        ("POST", "", "Cron"),
        ("GET", "/{name}", "CronGet"),
        ("GET", "/{name}/next", "CronNext"),
        ("POST", "/{name}/pause", "CronPause"),
        ("POST", "/{name}/resume", "CronResume"),
        ("POST", "/{name}/run", "CronTrigger"),
        ("PUT", "/{name}", "Cron"),
        ("DELETE", "/{name}", "CronDelete"),
    ),
    *_group(
        "Workers",
        "/workers",
        ("GET", "", "ListWorkers"),
        ("POST", "", "RegisterWorker"),
        ("PUT", "/{workerId}", "ControlWorker"),
        ("DELETE", "/{workerId}", "UnregisterWorker"),
        ("POST", "/{id}/heartbeat", "Heartbeat"),
    ),
    *_group(
        "Cluster",
        "/cluster",
        ("GET", "", "ClusterStatus"),
        ("POST", "/hosts/{host}/drain", "ClusterDrain"),
        ("DELETE", "/hosts/{host}", "ClusterForget"),
        ("PUT", "/shards/{shard}", "ClusterMove"),
        ("POST", "/rebalance", "ClusterRebalance"),
    ),
    *_group(
        "Webhooks",
        "/webhooks",
        ("GET", "", "ListWebhooks"),
        ("POST", "", "AddWebhook"),
        ("DELETE", "/{webhookId}", "RemoveWebhook"),
        ("PUT", "/{id}/enabled", "SetWebhookEnabled"),
        ("POST", "/{webhookId}/test", "TestWebhook"),
    ),
    *_group(
        "Server",
        "",
        ("GET", "/stats", "Stats"),
        ("GET", "/metrics", "Metrics"),
        ("GET", "/overview", "DashboardOverview"),
        ("GET", "/storage", "StorageStatus"),
        ("GET", "/encryption-keys", "ListKeys"),
        ("GET", "/shards", "ListShards"),
        ("GET", "/ping", "Ping"),
        ("GET", "/queue-names", "ListQueues"),
        ("GET", "/events/log", "GetEvents"),
        ("POST", "/compact", "CompactMemory"),
    ),
)
