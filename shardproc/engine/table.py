"""All commands, peer messages and stored records of a shard, each with its function."""

from __future__ import annotations

from collections.abc import Mapping

from bunqueue.protocol.commands.bounds import GetBounds, SetBounds
from bunqueue.protocol.commands.breakers import (
    ClearBreaker,
    ListBreakers,
    ResetBreaker,
    SetBreaker,
    TripBreaker,
)
from bunqueue.protocol.commands.core import (
    Ack,
    AckBatch,
    ExtendLock,
    ExtendLocks,
    Fail,
    FailBatch,
    JobHeartbeat,
    JobHeartbeatBatch,
    PlainPush,
    PlainPushBatch,
    Pull,
    PullBatch,
    Push,
    PushBatch,
)
from bunqueue.protocol.commands.cron import (
    Cron,
    CronDelete,
    CronGet,
    CronList,
    CronNext,
    CronPause,
    CronResume,
    CronTrigger,
)
from bunqueue.protocol.commands.dedup import (
    GetDeduplicationJobId,
    RemoveDeduplicationKey,
    RemoveJobDeduplicationKey,
)
from bunqueue.protocol.commands.dlq import (
    CountDlq,
    Dlq,
    GetDlqConfig,
    GetDlqStats,
    PurgeDlq,
    RemoveDlqJob,
    RetryCompleted,
    RetryDlq,
    SetDlqConfig,
)
from bunqueue.protocol.commands.events import GetEvents, SubscribeEvents, TrimEvents, WaitJob, WaitJobs
from bunqueue.protocol.commands.find import ChangeJobs, FindJobs
from bunqueue.protocol.commands.flows import (
    AddFlow,
    CancelFlow,
    CloseFlow,
    GetChildrenValues,
    GetFailedChildrenValues,
    GetFlow,
    GetIgnoredChildrenFailures,
    ListFlows,
    MoveToWaitingChildren,
    PushFlow,
    RemoveChildDependency,
    RemoveUnprocessedChildren,
    RetryFlow,
    UpdateParent,
)
from bunqueue.protocol.commands.groups import (
    GetGroupActiveCount,
    GetGroupConcurrency,
    GetGroupDefaults,
    GetGroupJobs,
    GetGroupJobsCount,
    GetGroupRateLimit,
    GetGroupRateLimitTtl,
    GetGroupsJobsCount,
    GetGroupWeight,
    IsGroupPaused,
    PauseGroup,
    RateLimitGroup,
    RemoveGroupConcurrency,
    RemoveGroupRateLimit,
    RemoveGroupWeight,
    ResumeGroup,
    SetGroupConcurrency,
    SetGroupDefaults,
    SetGroupRateLimit,
    SetGroupWeight,
)
from bunqueue.protocol.commands.insight import GetAttempts, ListGroups, ListShards, WhyWaiting
from bunqueue.protocol.commands.jobs import (
    AddLog,
    Cancel,
    ChangeDelay,
    ChangePriority,
    ClearLogs,
    Discard,
    GetLogs,
    MoveToDelayed,
    MoveToWait,
    Promote,
    RemoveJob,
    Update,
)
from bunqueue.protocol.commands.keys import ListKeys, Reencode
from bunqueue.protocol.commands.limits import (
    ClearConcurrency,
    GetQueueLimits,
    RateLimit,
    RateLimitClear,
    SetConcurrency,
)
from bunqueue.protocol.commands.monitoring import (
    CompactMemory,
    DashboardOverview,
    DashboardQueue,
    DashboardQueues,
    Metrics,
    Prometheus,
    StorageStatus,
)
from bunqueue.protocol.commands.query import (
    Count,
    GetJob,
    GetJobByCustomId,
    GetJobCounts,
    GetJobs,
    GetProgress,
    GetResult,
    GetState,
    Progress,
)
from bunqueue.protocol.commands.queues import (
    Clean,
    Drain,
    GetCountsPerPriority,
    IsPaused,
    Obliterate,
    Pause,
    PromoteJobs,
    Resume,
)
from bunqueue.protocol.commands.server import ListQueues, Stats
from bunqueue.protocol.commands.stall import GetStallConfig, SetStallConfig
from bunqueue.protocol.commands.webhooks import (
    AddWebhook,
    GetDeliveries,
    ListWebhooks,
    RecordDelivery,
    RecordTrial,
    RemoveWebhook,
    SetWebhookEnabled,
    TryWebhook,
)
from bunqueue.protocol.commands.workflows import (
    Broadcast,
    ContinueAsNew,
    DropSignal,
    GetSteps,
    GetWorkflow,
    RecordSteps,
    RetryWorkflow,
    SendSignal,
    SetSignalTypes,
    SuspendJob,
    UndoWorkflow,
)
from bunqueue.server.links import peers as messages

from .handlers import (
    ack,
    bounds,
    breakers,
    cancel,
    dlq,
    group_rules,
    jobs,
    keys,
    limits,
    locks,
    logs,
    pull,
    push,
    queues,
    subscriptions,
    webhook_trials,
    webhooks,
)
from .handlers.crons import commands as cron_commands
from .handlers.crons import names as cron_names
from .handlers.crons import runs as cron_runs
from .handlers.search import change, find
from .handlers.views import dashboard, event_log, group_jobs, insight, query, stats
from .handlers.workflows import operate, record, signals, suspend, types
from .handlers.workflows import view as workflow_view
from .lifecycle import breakers as breaker_rules
from .lifecycle import child_results, dedup, dropped_letters, job_waiters, outcomes, unique_keys
from .memory import pointers, queue_configs, timetable
from .memory import recovery as memory_recovery
from .memory.dropped_letters import LETTER
from .peers import (
    callbacks,
    children,
    dependencies,
    directory,
    families,
    flow_graphs,
    flow_members,
    flows,
    moves,
    possession,
    reconcile,
    roll_call,
)
from .ready import queue_limits
from .table_types import Apart, Farewell, Handler, PeerAnswer, PeerDeferral, Record, Tables, at_id, at_queue

HANDLERS: Mapping[type, Handler] = {
    # handlers/breakers.py
    SetBreaker: breakers.set_breaker,
    ClearBreaker: breakers.clear_breaker,
    TripBreaker: breakers.trip_breaker,
    ResetBreaker: breakers.reset_breaker,
    ListBreakers: breakers.list_breakers,
    # handlers/ack.py
    Ack: ack.ack,
    AckBatch: ack.ack_batch,
    Fail: ack.fail,
    FailBatch: ack.fail_batch,
    # handlers/bounds.py
    SetBounds: bounds.set_bounds,
    GetBounds: bounds.get_bounds,
    # handlers/cancel.py
    Cancel: cancel.cancel,
    # handlers/crons/commands.py
    Cron: cron_commands.put,
    CronDelete: cron_commands.delete,
    CronGet: cron_commands.get,
    CronPause: cron_commands.pause,
    CronResume: cron_commands.resume,
    CronNext: cron_commands.next_runs,
    CronList: cron_commands.list_all,
    # handlers/crons/runs.py
    CronTrigger: cron_runs.trigger,
    # handlers/dlq.py
    SetDlqConfig: dlq.set_dlq_config,
    GetDlqConfig: dlq.get_dlq_config,
    Dlq: dlq.dlq,
    CountDlq: dlq.count_dlq,
    RetryDlq: dlq.retry_dlq,
    RetryCompleted: dlq.retry_completed,
    PurgeDlq: dlq.purge_dlq,
    RemoveDlqJob: dlq.remove_dlq_job,
    GetDlqStats: dlq.get_dlq_stats,
    # handlers/group_rules.py
    GetGroupJobsCount: group_rules.get_group_jobs_count,
    GetGroupsJobsCount: group_rules.get_groups_jobs_count,
    GetGroupActiveCount: group_rules.get_group_active_count,
    SetGroupRateLimit: group_rules.set_group_rate_limit,
    GetGroupRateLimit: group_rules.get_group_rate_limit,
    RemoveGroupRateLimit: group_rules.remove_group_rate_limit,
    GetGroupRateLimitTtl: group_rules.get_group_rate_limit_ttl,
    SetGroupConcurrency: group_rules.set_group_concurrency,
    GetGroupConcurrency: group_rules.get_group_concurrency,
    SetGroupDefaults: group_rules.set_group_defaults,
    GetGroupDefaults: group_rules.get_group_defaults,
    SetGroupWeight: group_rules.set_group_weight,
    GetGroupWeight: group_rules.get_group_weight,
    RemoveGroupWeight: group_rules.remove_group_weight,
    RemoveGroupConcurrency: group_rules.remove_group_concurrency,
    PauseGroup: group_rules.pause_group,
    ResumeGroup: group_rules.resume_group,
    IsGroupPaused: group_rules.is_group_paused,
    RateLimitGroup: group_rules.rate_limit_group,
    # handlers/jobs.py
    RemoveJob: jobs.remove_job,
    Update: jobs.update,
    ChangePriority: jobs.change_priority,
    Promote: jobs.promote,
    MoveToDelayed: jobs.move_to_delayed,
    ChangeDelay: jobs.change_delay,
    MoveToWait: jobs.move_to_wait,
    Discard: jobs.discard,
    # handlers/keys.py
    ListKeys: keys.list_keys,
    Reencode: keys.reencode,
    # handlers/limits.py
    RateLimit: limits.rate_limit,
    RateLimitClear: limits.rate_limit_clear,
    SetConcurrency: limits.set_concurrency,
    ClearConcurrency: limits.clear_concurrency,
    GetQueueLimits: limits.get_queue_limits,
    # handlers/locks.py
    JobHeartbeat: locks.heartbeat,
    JobHeartbeatBatch: locks.heartbeat_batch,
    ExtendLock: locks.extend_lock,
    ExtendLocks: locks.extend_locks,
    SetStallConfig: locks.set_stall_config,
    GetStallConfig: locks.get_stall_config,
    # handlers/pull.py
    Pull: pull.pull,
    PullBatch: pull.pull_batch,
    # handlers/push.py
    PlainPush: push.push_plain,
    PlainPushBatch: push.push_plain_batch,
    Push: push.push,
    PushBatch: push.push_batch,
    # handlers/queues.py
    Pause: queues.pause,
    Resume: queues.resume,
    IsPaused: queues.is_paused,
    Drain: queues.drain,
    Clean: queues.clean,
    Obliterate: queues.obliterate,
    PromoteJobs: queues.promote_jobs,
    GetCountsPerPriority: queues.counts_per_priority,
    # handlers/search/find.py
    FindJobs: find.find_jobs,
    # handlers/search/change.py
    ChangeJobs: change.change_jobs,
    # handlers/subscriptions.py
    SubscribeEvents: subscriptions.subscribe,
    TrimEvents: subscriptions.trim_events,
    # handlers/views/dashboard.py
    DashboardOverview: dashboard.overview,
    DashboardQueues: dashboard.dashboard_queues,
    DashboardQueue: dashboard.dashboard_queue,
    CompactMemory: dashboard.compact_memory,
    # handlers/views/event_log.py
    GetEvents: event_log.get_events,
    # handlers/views/group_jobs.py
    GetGroupJobs: group_jobs.get_group_jobs,
    # handlers/views/insight.py
    GetAttempts: insight.get_attempts,
    WhyWaiting: insight.why_waiting,
    ListGroups: insight.list_groups,
    ListShards: insight.list_shards,
    # handlers/logs.py
    AddLog: logs.add_log,
    GetLogs: logs.get_logs,
    ClearLogs: logs.clear_logs,
    # handlers/views/query.py
    GetJob: query.get_job,
    GetState: query.get_state,
    GetResult: query.get_result,
    GetJobs: query.get_jobs,
    GetJobCounts: query.get_job_counts,
    Count: query.count,
    Progress: query.progress,
    GetProgress: query.get_progress,
    # handlers/views/stats.py
    ListQueues: stats.list_queues,
    Stats: stats.stats,
    Metrics: stats.metrics,
    Prometheus: stats.prometheus,
    StorageStatus: stats.storage_status,
    # handlers/webhook_trials.py
    TryWebhook: webhook_trials.try_webhook,
    GetDeliveries: webhook_trials.get_deliveries,
    RecordTrial: webhook_trials.record_trial,
    # handlers/webhooks.py
    AddWebhook: webhooks.add_webhook,
    RemoveWebhook: webhooks.remove_webhook,
    SetWebhookEnabled: webhooks.set_webhook_enabled,
    ListWebhooks: webhooks.list_webhooks,
    RecordDelivery: webhooks.record_delivery,
    # handlers/workflows
    RecordSteps: record.record_steps,
    GetSteps: workflow_view.get_steps,
    GetWorkflow: workflow_view.get_workflow,
    SuspendJob: suspend.suspend_job,
    ContinueAsNew: suspend.continue_as_new,
    SendSignal: signals.send_signal,
    DropSignal: signals.drop_signal,
    SetSignalTypes: types.set_signal_types,
    Broadcast: signals.broadcast,
    RetryWorkflow: operate.retry_workflow,
    UndoWorkflow: operate.undo_workflow,
    # lifecycle/dedup.py
    GetDeduplicationJobId: dedup.holder_of,
    RemoveDeduplicationKey: dedup.remove_key,
    RemoveJobDeduplicationKey: dedup.remove_key_of_job,
    # lifecycle/job_waiters.py
    WaitJob: job_waiters.wait_job,
    WaitJobs: job_waiters.wait_jobs,
    # peers/directory.py
    GetJobByCustomId: directory.get_job_by_custom_id,
    # peers/families.py
    GetChildrenValues: families.get_children_values,
    GetFailedChildrenValues: families.get_failed,
    GetIgnoredChildrenFailures: families.get_ignored,
    UpdateParent: families.update_parent,
    RemoveChildDependency: families.remove_child_dependency,
    MoveToWaitingChildren: families.move_to_waiting_children,
    RemoveUnprocessedChildren: families.remove_unprocessed_children,
    # peers/flow_graphs.py
    AddFlow: flow_graphs.add_flow,
    GetFlow: flow_graphs.get_flow,
    ListFlows: flow_graphs.list_flows,
    CloseFlow: flow_graphs.close_flow,
    CancelFlow: flow_graphs.cancel_flow,
    RetryFlow: flow_graphs.retry_flow,
    # peers/flows.py
    PushFlow: flows.push_flow,
}
"""Commands.  A handler either raises CommandError and changes nothing, or does everything and returns the
reply; None means that the reply comes later."""

ANSWERS: Mapping[type, PeerAnswer] = {
    messages.Calls: callbacks.answer_calls,
    messages.CallsKnown: callbacks.known,
    messages.CronClaim: cron_names.answer_claim,
    messages.Obliterated: outcomes.obliterated,
    messages.Watch: dependencies.answer_watch,
    messages.Unwatch: dependencies.answer_unwatch,
    messages.Outcomes: dependencies.on_outcomes,
    messages.Values: dependencies.values,
    messages.Where: directory.where,
    messages.Claim: directory.answer_claim,
    messages.Verify: directory.verified,
    messages.DroppedLetters: dropped_letters.remember_dropped,
    messages.Forget: directory.forget,
    messages.StartChildren: children.start_children,
    messages.CancelChildren: children.cancel_children,
    messages.FamilyOperation: families.operate,
    messages.Members: flow_members.list_some,
    messages.Flows: flow_members.list_flows,
    messages.StopMembers: flow_members.stop,
    messages.ReviveMembers: flow_members.revive,
    messages.AskForMembers: flow_members.ask,
    messages.Gather: flow_members.gather,
    messages.CloseGathering: flow_members.close,
    messages.Prepare: flows.prepare,
    messages.Decide: flows.decide,
    messages.Have: possession.have,
    messages.Reconciled: reconcile.reconciled,
    messages.Announce: roll_call.announce,
    messages.MoveIn: moves.move_in,
    messages.MoveEnded: moves.move_ended,
    messages.Rehome: moves.rehome,
}
"""Messages from other shards.  Each function returns the answer, or is a generator that does."""

DEFERRED: Mapping[type, PeerDeferral] = {
    messages.Forward: directory.forwarded,
    messages.Recall: flows.recalled,
    messages.Settled: moves.settled,
}
"""Messages whose answer is delivered later."""

RECORDS: Mapping[str, Record] = {
    breaker_rules.RECORD: Record(breakers.recover, breakers.slot_of_record),
    queue_limits.GROUP_RECORD: Record(group_rules.recover_group, group_rules.slot_of_record),
    queue_limits.DEFAULTS_RECORD: Record(group_rules.recover_defaults, at_queue),
    queue_limits.RECORD: Record(limits.recover_limits, at_queue),
    queues.PAUSE: Record(queues.recover_pause, at_queue),
    unique_keys.KIND: Record(unique_keys.recover, group_rules.slot_of_record),
    webhooks.KIND: Record(webhooks.recover, webhooks.slot_of_record),
    timetable.KIND: Record(cron_commands.recover, cron_commands.slot_of_record),
    child_results.KIND: Record(child_results.recover, at_id),
    children.KIND: Record(children.recover, children.slot_of_record),
    outcomes.KIND: Record(outcomes.recover, at_id),
    pointers.KIND: Record(pointers.recover, Apart.DERIVED),
    dropped_letters.KIND: Record(dropped_letters.recover, at_queue),
    LETTER: Record(dropped_letters.recover_letter, at_id),
    "dlq": Record(queue_configs.recover_dlq, at_queue),
    "bounds": Record(bounds.recover, at_queue),
    "stall": Record(queue_configs.recover_stall, at_queue),
    "signal_types": Record(types.recover, at_queue),
    moves.LEAVING: Record(moves.recover_leaving, Apart.UNSETTLED),
    moves.ARRIVED: Record(moves.recover_arrived, Apart.UNSETTLED),
    flows.UNDECIDED: Record(flows.recover_part, Apart.UNSETTLED),
    flows.DECIDED: Record(flows.recover_decision, Apart.UNSETTLED),
    memory_recovery.KIND: Record(roll_call.recover, Apart.DERIVED),
    callbacks.KIND: Record(callbacks.recover, Apart.UNSETTLED),
    callbacks.CALLED: Record(callbacks.recover_called, Apart.DERIVED),
}
"""Stored records by kind: the function that restores one, and the shard that keeps it after resharding."""

FAREWELLS: tuple[Farewell, ...] = (
    group_rules.forget_groups,
    limits.forget_limits,
    breakers.forget,
    bounds.forget,
    queues.forget_pause,
    unique_keys.forget_queue,
    child_results.obliterate,
    outcomes.obliterate,
    dropped_letters.obliterate,
)
"""Functions that forget a queue's settings: Obliterate calls them when its jobs are gone."""

TABLES = Tables(HANDLERS, ANSWERS, DEFERRED, FAREWELLS)
