"""A row as a job, and the options of a write: no Spark, no server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgpack
import pytest
from msgspec import UNSET

from bunqueue.errors import BunqueueError, OptionError, PayloadError
from bunqueue.model.ids import seq_of_id, slot_of_id, slot_of_queue
from bunqueue.spark.sink.delivery import Pace
from bunqueue.spark.sink.ids import row_id
from bunqueue.spark.sink.rows import RowJob, RowPlan, check_columns
from bunqueue.spark.sink.settings import SinkSettings, sink_settings


def made(row: dict[str, Any], write_id: str = "w", **options: str) -> RowJob:
    settings = sink_settings({"queue": "q", "name": "n", **options})
    check_columns(row, settings)
    return RowPlan(row, settings, write_id).job(row)


def data_of(job: RowJob) -> Any:
    return msgpack.unpackb(bytes(job.fields.data), timestamp=3)


# Settings


def test_options_in_any_case_and_their_defaults() -> None:
    settings = sink_settings({"QUEUE": "emails", "batchsize": "10", "checkpointLocation": "/somewhere"})
    assert (settings.queue, settings.name, settings.batch_size) == ("emails", None, 10)
    assert (settings.in_flight, settings.rate, settings.skip_bad_rows) == (2, None, False)
    assert (settings.endpoint.host, settings.endpoint.port) == ("127.0.0.1", 6789)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "/data"}, "path: jobs are added to a queue of a server"),
        ({"queu": "q"}, "writing has no option 'queu'; did you mean queue?"),
        ({"queue": "no blanks"}, "Queue name contains invalid characters: 'no blanks'"),
        ({"name": ""}, "name: a job cannot be called ''"),
        ({"batchSize": "0"}, "batchSize: '0' is not allowed; give a whole number from 1 to 10000"),
        ({"batchSize": "many"}, "batchSize: 'many' is not allowed"),
        ({"inFlight": "17"}, "inFlight: '17' is not allowed; give a whole number from 1 to 16"),
        ({"ratePerTask": "0"}, "ratePerTask: '0' is not allowed; give jobs per second, above 0"),
        ({"ratePerTask": "nan"}, "ratePerTask: 'nan' is not allowed"),
        ({"dataFormat": "xml"}, "dataFormat: 'xml' is not allowed; give one of value, json, msgpack"),
        ({"badRows": "drop"}, "badRows: 'drop' is not allowed; give one of fail, skip"),
        ({"rejectsPath": "/tmp/x"}, "rejectsPath: bad rows end the write"),
        ({"rejectsPath": "s3://bucket/x", "badRows": "skip"}, "rejectsPath: 's3://bucket/x' is an address"),
        ({"summaryPath": "hdfs:///x"}, "summaryPath: 'hdfs:///x' is an address; give a path of a disk"),
        ({"port": "65536"}, "port: '65536' is not allowed"),
        ({"url": "bunqueue://a", "host": "b"}, "url: it says where the server is"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as refused:
        sink_settings(options)
    assert text in str(refused.value)


def test_at_a_low_rate_batches_are_small() -> None:
    assert sink_settings({"ratePerTask": "25.5"}).batch_size == 25
    assert sink_settings({"ratePerTask": "0.1"}).batch_size == 1
    assert sink_settings({"ratePerTask": "100000"}).batch_size == 1000


# Columns


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["to", "subject"], "there is no column data for the data of the jobs, but to, subject; put"),
        ([], "there is no column data for the data of the jobs, but no column; put"),
        (["data", "prioriti"], "a job has nothing called 'prioriti'; did you mean priority?"),
        (["data", "dedup"], "a job has nothing called 'dedup'; there are backoff,"),
    ],
)
def test_columns_that_are_refused(columns: list[str], text: str) -> None:
    with pytest.raises(OptionError) as refused:
        check_columns(columns, sink_settings({"queue": "q", "name": "n"}))
    assert text in str(refused.value)


@pytest.mark.parametrize("name", ["queue", "name"])
def test_queue_and_name_are_a_column_or_an_option(name: str) -> None:
    options = {"queue": "q", "name": "n"}
    check_columns(["data"], sink_settings(options))
    del options[name]
    check_columns(["data", name], sink_settings(options))
    with pytest.raises(OptionError, match=f"{name}: neither an option nor a column says it"):
        check_columns(["data"], sink_settings(options))


# Rows


def test_a_row_says_what_its_job_is() -> None:
    moment = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    job = made(
        {
            "queue": "other",
            "name": "welcome",
            "data": {"to": "ada", "at": moment, "parts": [b"\0", None, 1.5]},
            "job_id": 17,
            "priority": 5,
            "delay": timedelta(seconds=2),
            "max_attempts": None,
            "tags": ["a", "b"],
            "group": "acme",
            "headers": {"traceparent": "00-1"},
        }
    )
    assert (job.queue, job.fields.name, job.id) == ("other", "welcome", "17")
    assert data_of(job) == {"to": "ada", "at": moment, "parts": [b"\0", None, 1.5]}
    assert (job.fields.priority, job.fields.delay, job.fields.max_attempts) == (5, 2000, UNSET)
    assert (job.fields.tags, job.fields.group_id) == (["a", "b"], "acme")
    assert job.fields.headers == {"traceparent": "00-1"}


def test_options_stand_in_for_what_a_row_leaves_out() -> None:
    job = made({"queue": None, "name": None, "data": None})
    assert (job.queue, job.fields.name, data_of(job)) == ("q", "n", None)


def test_data_as_json_and_as_messagepack() -> None:
    assert data_of(made({"data": '{"a": [1, 2.5, null]}'}, dataFormat="json")) == {"a": [1, 2.5, None]}
    raw: bytes = msgpack.packb({"a": 1})
    assert bytes(made({"data": raw}, dataFormat="msgpack").fields.data) == raw
    assert data_of(made({"data": None}, dataFormat="msgpack")) is None


@pytest.mark.parametrize(
    ("row", "options", "error", "text"),
    [
        ({"data": 1, "queue": "no blanks"}, {}, OptionError, "Queue name contains invalid characters"),
        ({"data": 1, "name": "n" * 257}, {}, OptionError, "name: a job cannot be called"),
        ({"data": 1, "priority": 2_000_000}, {}, OptionError, "priority"),
        ({"data": 1, "delay": -1}, {}, OptionError, "delay"),
        ({"data": 1, "job_id": 1.5}, {}, OptionError, "job_id"),
        ({"data": 1, "job_id": ""}, {}, OptionError, "job_id: '' is not allowed"),
        ({"data": 2**70}, {}, PayloadError, "data cannot be encoded"),
        ({"data": "x" * (11 << 20)}, {}, PayloadError, "data has"),
        ({"data": "xxx", "size_limit": 2}, {}, PayloadError, "data has 4 bytes, its size_limit is 2"),
        ({"data": "{"}, {"dataFormat": "json"}, PayloadError, "data: '{' is no JSON"),
        ({"data": 1}, {"dataFormat": "json"}, PayloadError, "data: 1 is no JSON"),
        ({"data": b"\x92\x01"}, {"dataFormat": "msgpack"}, PayloadError, "is no MessagePack"),
        ({"data": "text"}, {"dataFormat": "msgpack"}, PayloadError, "data: 'text' is no MessagePack"),
    ],
)
def test_what_is_wrong_with_a_row(
    row: dict[str, Any], options: dict[str, str], error: type[BunqueueError], text: str
) -> None:
    with pytest.raises(error) as wrong:
        made(row, **options)
    assert text in str(wrong.value)


def test_a_row_without_a_name() -> None:
    plan = RowPlan(["name", "data"], sink_settings({"queue": "q"}), "w")
    with pytest.raises(OptionError, match="name: the row has none, and there is no option name"):
        plan.job({"name": None, "data": 1})


# Ids


def test_an_id_is_of_the_content_alone() -> None:
    first = made({"data": {"a": 1, "b": {"x": 1, "y": 2}}, "priority": 3}).id
    assert made({"priority": 3, "data": {"b": {"y": 2, "x": 1}, "a": 1}}).id == first
    others = [
        made({"data": {"a": 1, "b": {"x": 1, "y": 2}}, "priority": 4}).id,
        made({"data": {"a": 1, "b": {"x": 1, "y": 3}}, "priority": 3}).id,
        made({"data": {"a": 1, "b": {"x": 1, "y": 2}}, "priority": 3}, write_id="v").id,
        made({"data": {"a": 1, "b": {"x": 1, "y": 2}}, "priority": 3, "name": "m"}).id,
        made({"data": {"a": 1, "b": {"x": 1, "y": 2}}, "priority": 3, "queue": "r"}).id,
        made({"data": {"a": True, "b": {"x": 1, "y": 2}}, "priority": 3}).id,
        made({"data": {"a": "1", "b": {"x": 1, "y": 2}}, "priority": 3}).id,
    ]
    assert len({first, *others}) == 8


def test_an_id_leads_to_the_shard_of_its_queue_and_is_none_of_the_servers() -> None:
    for queue in ("emails", "q", "a:b"):
        found = row_id("w", queue, "n", {}, None)
        assert slot_of_id(found) == slot_of_queue(queue)
        assert seq_of_id(found) is None
        assert len(found) == 36


# Pace


def test_a_pace_is_kept_and_no_time_is_saved_up() -> None:
    now, slept = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    pace = Pace(100.0, clock=lambda: now, sleep=sleep)
    for _ in range(3):
        pace.wait(50)
    assert slept == [0.5, 0.5]
    now += 10.0
    pace.wait(100)
    pace.wait(1)
    assert slept == [0.5, 0.5, 1.0]


def test_without_a_rate_there_is_no_waiting() -> None:
    pace = Pace(None, sleep=lambda _: pytest.fail("it waited"))
    pace.wait(1_000_000)
    pace.wait(1)


def test_settings_can_be_sent_to_tasks() -> None:
    import pickle

    settings = sink_settings(
        {"queue": "q", "url": "bunqueues://secret@host:1?verify=false", "timeout": "5000"}
    )
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert isinstance(settings, SinkSettings)
    assert "secret" not in repr(settings)
