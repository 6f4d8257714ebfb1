"""Names of commands in other programs, or where people first look for them: "did you mean" for each."""

from __future__ import annotations

OTHER_WORDS: dict[str, dict[str, str]] = {
    "": {
        "add enqueue publish send": "push QUEUE DATA",
        "cancel abort": "job cancel ID, bulk cancel, flow cancel ID, workflow cancel ID",
        "retry requeue replay": "job retry ID, dlq retry QUEUE, bulk retry",
        "remove delete rm": "job remove ID, queue obliterate QUEUE, dlq remove QUEUE",
        "purge clear empty": "queue drain QUEUE, queue clean QUEUE, dlq purge QUEUE",
        "drain": "queue drain QUEUE, worker drain WORKER",
        "pause resume": "queue pause QUEUE, worker pause WORKER, cron pause NAME",
        "list ls": "queue list, queue jobs QUEUE, job find, worker list, dlq list QUEUE",
        "find search query": "job find",
        "jobs": "queue jobs QUEUE, job find",
        "queues": "queue list",
        "workers": "worker list",
        "workflows": "workflow list",
        "flows": "flow list",
        "crons schedule schedules beat scheduler": "cron list, cron add",
        "dead dead-letters failed failures": "dlq list QUEUE, errors list",
        "get show inspect": "job get ID, queue counts QUEUE, flow show ID, workflow show ID",
        "logs log": "job logs ID, events",
        "status info": "stats, health, doctor",
        "serve server run": "start, worker run MODULE:APP",
        "stop kill shutdown": "worker stop WORKER; a server stops with SIGTERM",
        "dashboard web ui": "start --http-port PORT, which serves the dashboard",
    },
    "job": {
        "list ls": "queue jobs QUEUE, job find",
        "show info inspect view": "job get ID",
        "status": "job state ID",
        "add push create enqueue": "push QUEUE DATA",
        "delete rm drop": "job remove ID",
        "stop kill abort revoke": "job cancel ID",
        "requeue rerun restart": "job retry ID",
        "run now": "job promote ID",
        "search query": "job find",
        "fail": "job discard ID, fail ID",
        "history": "job attempts ID",
    },
    "queue": {
        "delete remove rm destroy": "queue obliterate QUEUE",
        "ls show": "queue list, queue counts QUEUE",
        "stats status info": "queue counts QUEUE",
        "purge empty clear flush": "queue drain QUEUE, queue clean QUEUE, dlq purge QUEUE",
        "stop": "queue pause QUEUE",
        "start unpause": "queue resume QUEUE",
        "create add new": "push QUEUE DATA, which makes the queue",
        "cancel": "bulk cancel",
    },
    "dlq": {
        "ls show get": "dlq list QUEUE",
        "delete rm drop": "dlq remove QUEUE, dlq purge QUEUE",
        "clear drain empty": "dlq purge QUEUE",
        "requeue replay redrive": "dlq retry QUEUE",
        "errors groups": "errors list, dlq stats QUEUE",
    },
    "worker": {
        "ls show get status": "worker list",
        "kill shutdown": "worker stop WORKER",
        "scale": "worker concurrency WORKER N",
        "unpause": "worker resume WORKER",
        "quiet": "worker pause WORKER, worker drain WORKER",
    },
    "cron": {
        "ls show": "cron list, cron get NAME",
        "remove rm": "cron delete NAME",
        "create update edit set": "cron add NAME",
        "trigger": "cron run NAME",
        "stop disable": "cron pause NAME",
        "start enable": "cron resume NAME",
    },
    "flow": {
        "ls": "flow list",
        "get": "flow show ID",
        "create push": "flow add",
        "stop abort": "flow cancel ID",
        "delete remove rm": "flow cancel ID",
    },
    "workflow": {
        "ls": "workflow list",
        "get status": "workflow show ID",
        "run execute": "workflow start",
        "stop kill abort terminate": "workflow cancel ID",
        "compensate rollback": "workflow undo ID",
    },
}
"""By group, words with spaces between them, and the commands that are meant."""


def meant_by(group: str, word: str) -> str | None:
    """The commands that somebody means who writes `word` after `bunqueue GROUP`."""
    for words, commands in OTHER_WORDS.get(group, {}).items():
        if word in words.split():
            return commands
    return None
