"""Envelopes: what was sealed is opened again, what was changed is refused, nothing grows beyond its bound."""

from __future__ import annotations

import base64
import tracemalloc
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from bunqueue import (
    Codec,
    CodecError,
    Compression,
    Encryption,
    KeyMissing,
    OptionError,
    PayloadTampered,
    PayloadTooLarge,
    new_key,
)
from bunqueue.client.codecs.envelope import associated, opened, problem_of, sealed, sealed_text
from bunqueue.client.codecs.incoming import MAX_REPLY, decoded
from bunqueue.client.codecs.outgoing import encoded
from bunqueue.protocol.commands import (
    COMMANDS,
    core,
    cron,
    flows,
    functions,
    jobs,
    keys,
    query,
    workflows,
)
from bunqueue.protocol.encoded import MARK, for_people, is_envelope

KEY, OTHER, HASH_KEY = bytes(range(32)), bytes(32), b"h" * 32
ENCRYPTION = Encryption({"k1": KEY}, hash_key=HASH_KEY)
CODECS = {
    "zstd": Codec(compression=Compression(min_size=0)),
    "aes": Codec(encryption=ENCRYPTION),
    "both": Codec(compression=Compression(), encryption=ENCRYPTION),
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


def envelope_of(codec: Codec, value: object) -> dict[str, Any]:
    found = unpack(sealed(codec, pack(value)))
    assert is_envelope(found)
    return dict(found)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(value=VALUES)
def test_what_is_sent_comes_back(codec: Codec, value: object) -> None:
    command = encoded(codec, core.Push(queue="q", data=Raw(pack(value))))
    assert isinstance(command, core.Push)
    answer = pack({"ok": True, "job": {"id": "1", "data": command.data}, "more": [value]})
    expected = {"ok": True, "job": {"id": "1", "data": value}, "more": [value]}
    assert unpack(decoded(codec, answer)) == expected


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_value_that_looks_like_an_envelope_is_none(codec: Codec) -> None:
    value = {MARK: "mine", "v": 1, "body": b"\x01", "key": "k1"}
    sent = sealed(codec, pack(value))
    assert unpack(decoded(codec, pack({"data": Raw(sent)}))) == {"data": value}


@given(text=st.text(min_size=1, max_size=200), before=st.text(max_size=20))
def test_texts_come_back_wherever_they_stand(text: str, before: str) -> None:
    codec = CODECS["aes"]
    within = f"{before} child failed: {sealed_text(codec, text)} (again)"
    assert unpack(decoded(codec, pack({"error": within}))) == {
        "error": f"{before} child failed: {text} (again)"
    }


def test_what_others_have_sent_without_a_codec_stays() -> None:
    value = {"lines": ["one $encoded:\ntwo", f"[{MARK}]{MARK}:AAAA"], MARK: "x", "same": "$same:0123"}
    for codec in CODECS.values():
        assert unpack(decoded(codec, pack({"data": value}))) == {"data": value}


def test_only_large_payloads_are_compressed() -> None:
    codec = Codec(compression=Compression(min_size=100))
    assert sealed(codec, pack("x" * 50)) == pack("x" * 50)
    found = envelope_of(codec, "x" * 5000)
    assert found[MARK] == f"compressed (zstd), {len(found['body'])} B"
    assert (found["compression"], found["size"]) == ("zstd", 5003)
    noise = bytes(range(256))
    assert sealed(codec, pack(noise)) == pack(noise)  # it would not become smaller


def test_the_format_is_the_one_of_the_documentation() -> None:
    """Made by hand, as another language would."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    plain = pack({"to": "ada"})
    packed = zstandard.ZstdCompressor().compress(plain)
    about = f"bunqueue:1:zstd:{len(plain)}:k1".encode()
    assert about == associated("zstd", len(plain), "k1")
    nonce = b"n" * 12
    body = AESGCM(KEY).encrypt(nonce, packed, about)
    fields = {MARK: "mine", "v": 1, "compression": "zstd", "size": len(plain), "key": "k1"}
    for envelope in (
        {**fields, "nonce": nonce, "body": body},
        {**fields, "nonce": base64.b64encode(nonce).decode(), "body": base64.b64encode(body).decode()},
    ):
        assert unpack(opened(CODECS["both"], envelope)) == {"to": "ada"}


def test_what_was_changed_is_refused() -> None:
    good = envelope_of(CODECS["both"], "x" * 5000)
    body, nonce = good["body"], good["nonce"]
    for change in (
        {"body": bytes([body[0] ^ 1]) + body[1:]},
        {"body": body[:-1]},
        {"body": b""},
        {"nonce": nonce[::-1]},
        {"nonce": b""},
        {"nonce": 7},
        {"size": 5004},
        {"compression": None},
        {"body": "no base64 !"},
    ):
        with pytest.raises(PayloadTampered):
            opened(CODECS["both"], {**good, **change})


def test_a_key_of_the_same_name_with_another_value_is_seen() -> None:
    other = Codec(encryption=Encryption({"k1": OTHER}, hash_key=HASH_KEY))
    with pytest.raises(PayloadTampered, match="another key of this name"):
        opened(other, envelope_of(CODECS["aes"], 1))


def test_a_missing_key_is_named_with_those_that_are_there() -> None:
    other = Codec(encryption=Encryption({"k2": KEY, "k3": KEY}, hash_key=HASH_KEY))
    with pytest.raises(KeyMissing, match="'k1'; the keys here are: 'k2', 'k3'") as caught:
        opened(other, envelope_of(CODECS["aes"], 1))
    assert (caught.value.key, caught.value.code) == ("k1", "key_missing")


@pytest.mark.parametrize("change", [{"v": 2}, {"compression": "lzma"}])
def test_what_is_not_known_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CodecError, match="not known here"):
        opened(CODECS["zstd"], {**envelope_of(CODECS["zstd"], "x" * 5000), **change})


def test_a_zip_bomb_costs_no_memory() -> None:
    size = 512 << 20
    compressor = zstandard.ZstdCompressor(level=19).compressobj(size=size)
    bomb = b"".join([*(compressor.compress(bytes(1 << 20)) for _ in range(512)), compressor.flush()])
    assert len(bomb) < 100_000
    unsaid = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
    tracemalloc.start()
    honest = {MARK: "a bomb", "v": 1, "compression": "zstd", "size": size, "body": bomb}
    with pytest.raises(PayloadTooLarge, match=f"{size} bytes, the codec's max_size is"):
        opened(CODECS["zstd"], honest)
    with pytest.raises(PayloadTampered, match="says that it has 10 bytes"):
        opened(CODECS["zstd"], {**honest, "size": 10})
    with pytest.raises(PayloadTampered):
        opened(CODECS["zstd"], {**honest, "size": 1 << 20, "body": unsaid})
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_many_large_payloads_of_one_reply_are_bounded_together() -> None:
    codec = Codec(compression=Compression())
    size = 30 << 20
    one = sealed(codec, pack(bytes(size)))
    answer = unpack(decoded(codec, pack({"jobs": [Raw(one)] * 10})))
    whole = [each for each in answer["jobs"] if isinstance(each, bytes)]
    assert len(whole) == MAX_REPLY // size
    problem = problem_of(answer["jobs"][-1], "the data")
    assert isinstance(problem, PayloadTooLarge)
    assert problem.together


def test_one_that_cannot_be_opened_spoils_no_other() -> None:
    codec = CODECS["aes"]
    foreign = sealed(Codec(encryption=Encryption({"old": KEY}, hash_key=HASH_KEY)), pack("mine"))
    answer = unpack(decoded(codec, pack({"jobs": [Raw(foreign), Raw(sealed(codec, pack("yours")))]})))
    assert answer["jobs"][1] == "yours"
    problem = problem_of(answer["jobs"][0], "the data of job 7")
    assert isinstance(problem, KeyMissing)
    assert str(problem).startswith("the data of job 7 cannot be read: it is encrypted with key 'old'")


@pytest.mark.parametrize(
    "plain",
    [b"", b"\xc1", b"\x92\x01", b"\x01\x02", b"\xa1\xff", b"\x91" * 5000 + b"\xc0"],
    ids=["nothing", "no opcode", "cut", "two values", "no UTF-8", "deep"],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_one_that_holds_no_value_spoils_no_other(plain: bytes, compressed: bool) -> None:
    """Whoever may add jobs can send this, without any key."""
    how = {"compression": "zstd", "size": len(plain)} if compressed else {}
    body = zstandard.ZstdCompressor().compress(plain) if compressed else plain
    bad = {MARK: "bad", "v": 1, **how, "body": body}
    good = Raw(sealed(CODECS["zstd"], pack("x" * 2000)))
    text = f"[bad]{MARK}:{base64.b64encode(pack(bad)).decode()}"
    answer = unpack(decoded(CODECS["both"], pack({"jobs": [bad, good], "id": "j", "log": text})))
    assert answer["jobs"][1] == "x" * 2000
    assert (answer["id"], answer["log"]) == ("j", text)
    assert isinstance(problem_of(answer["jobs"][0], "the data"), PayloadTampered)


def test_a_deep_value_beside_it_spoils_no_other() -> None:
    deep: Any = 1
    for _ in range(490):
        deep = [deep]
    reply = {"jobs": [{"data": deep}, {"data": Raw(sealed(CODECS["aes"], pack("yours")))}]}
    answer = unpack(decoded(CODECS["aes"], pack(reply)))
    assert answer["jobs"] == [{"data": deep}, {"data": "yours"}]
    hostile = base64.b64encode(b"\x91" * 9000 + b"\xc0").decode()
    answer = unpack(decoded(CODECS["aes"], pack({**reply, "log": f"[x]{MARK}:{hostile}"})))
    assert answer["jobs"][1] == {"data": "yours"}
    assert for_people({"data": deep}) == {"data": deep}


def test_texts_are_bounded_together_with_payloads() -> None:
    size = 30 << 20
    bomb = base64.b64encode(sealed(Codec(compression=Compression()), pack("a" * size))).decode()
    texts = [f"[x]{MARK}:{bomb}"] * 12
    answer = unpack(decoded(CODECS["both"], pack({"logs": texts})))
    assert sum(len(each) > size // 2 for each in answer["logs"]) == MAX_REPLY // size
    assert answer["logs"][-1] == texts[-1]


def test_without_a_codec_it_says_what_is_needed() -> None:
    problem = problem_of(envelope_of(CODECS["aes"], 1), "the result")
    assert isinstance(problem, KeyMissing)
    assert str(problem).startswith(
        "the result is encrypted with key k1 (AES-GCM), 17 B, and there is no codec"
    )
    assert problem_of({"v": 1}, "the result") is None


def test_people_see_words() -> None:
    codec = CODECS["both"]
    value = {"data": envelope_of(codec, "x" * 2000), "error": f"ValueError: {sealed_text(codec, 'secret')}"}
    shown = for_people([value, 7])
    assert shown[0]["data"].startswith("encrypted with key k1 (AES-GCM), compressed (zstd), ")
    assert shown == [
        {"data": shown[0]["data"], "error": "ValueError: [encrypted with key k1 (AES-GCM), 23 B]"},
        7,
    ]


def test_sizes_are_shown_as_people_read_them() -> None:
    for size, shown in ((10, "28 B"), (1200, "1.2 kB"), (1_500_000, "1.5 MB")):
        assert envelope_of(CODECS["aes"], bytes(size))[MARK].endswith(shown)


# -- commands

SECRET = "geheim-4711"
DATA = Raw(pack({"note": SECRET}))
FIELDS = core.JobFields(data=DATA, on_dead=core.OnDead(data=DATA))
STEP = workflows.StepRecord(
    id="1", token="t", name="s", result=DATA, cursor=DATA, error=f"ValueError: {SECRET}",
    child=workflows.ChildJob(queue="q", input=FIELDS), schema=DATA, unfit=SECRET,
)  # fmt: skip
SECRETS = [
    core.Push(queue="q", data=DATA, on_dead=core.OnDead(data=DATA)),
    core.PushBatch(queue="q", jobs=[FIELDS]),
    core.Ack(id="1", result=DATA),
    core.AckBatch(ids=["1"], results=[DATA]),
    core.Fail(
        id="1", error=f"ValueError: {SECRET}", stack=["Traceback", SECRET], error_types=["m.ValueError"]
    ),
    core.Fail(id="1", error=f"{SECRET}: what a person wrote", stack=SECRET),
    core.FailBatch(
        ids=["1"], failures=[core.FailFields(error=f"ValueError: {SECRET}", stack=["Traceback", SECRET])]
    ),
    flows.PushFlow(jobs=[flows.FlowJob(id="1", queue="q", input=FIELDS)]),
    flows.AddFlow(flow="f", nodes=[flows.FlowNode(name="n", queue="q", input=FIELDS)]),
    functions.DeclareFunctions(
        queue="q",
        functions=[
            functions.FunctionFields(
                name="f", schema=DATA, options=functions.FunctionOptions(on_dead=core.OnDead(data=DATA))
            )
        ],
    ),
    jobs.Update(id="1", data=DATA),
    jobs.AddLog(id="1", message=SECRET),
    query.Progress(id="1", progress=5, message=SECRET),
    cron.Cron(name="c", queue="q", data=DATA, schedule="* * * * *"),
    workflows.RecordSteps(queue="q", steps=[STEP]),
    workflows.ContinueAsNew(queue="q", id="1", token="t", data=DATA),
    workflows.SendSignal(id="1", name="s", data=DATA),
    workflows.SetSignalTypes(queue="q", workflows={"w": {"s": DATA}}),
    workflows.Broadcast(name="s", key="k", data=DATA),
    workflows.UndoWorkflow(id="1", data=DATA),
    keys.Reencode(id="1", token="t", data=DATA, on_dead=DATA, steps=[keys.ReencodedStep("s", DATA)]),
]


@pytest.mark.parametrize("command", SECRETS, ids=lambda each: type(each).__name__)
def test_no_command_shows_what_was_given(command: msgspec.Struct) -> None:
    before = pack(command)
    assert SECRET.encode() in before
    sent = pack(encoded(CODECS["aes"], command))
    assert SECRET.encode() not in sent
    assert pack(command) == before  # it may have to be sent again
    kind = type(command)
    again = msgspec.msgpack.Decoder(kind).decode(decoded(CODECS["aes"], sent))
    assert SECRET.encode() in pack(again)


def test_every_command_that_can_carry_data_is_tried_above() -> None:
    from bunqueue.client.codecs.outgoing import _plan

    carrying = {spec.request for spec in COMMANDS.values() if _plan(spec.request)}
    assert carrying == {type(each) for each in SECRETS}


def test_the_class_of_an_error_stays() -> None:
    sent = encoded(CODECS["aes"], SECRETS[4])
    assert isinstance(sent, core.Fail)
    assert str(sent.error).startswith("ValueError: [encrypted with key k1 (AES-GCM)")
    assert sent.stack is not None
    assert sent.stack[0] == "Traceback (most recent call last):"


def test_long_texts_are_cut_so_that_they_can_be_read() -> None:
    """Servers cut what is longer, and half an envelope is none."""
    codec, long = CODECS["aes"], "ä" * 100_000
    for command, field, most in (
        (core.Fail(id="1", error=long), "error", 1 << 16),
        (query.Progress(id="1", progress=1, message=long), "message", 4096),
        (workflows.StepRecord(id="1", token="t", name="s", error=long), "error", 4096),
        (jobs.AddLog(id="1", message=long), "message", 1 << 16),
    ):
        sent = getattr(encoded(codec, command), field)
        assert len(sent) <= most
        assert unpack(decoded(codec, pack(sent))).startswith("äää")
    stack = encoded(codec, core.Fail(id="1", stack=long + "\nthe end"))
    assert isinstance(stack, core.Fail)
    assert stack.stack is not None
    assert sum(map(len, stack.stack)) < 16_384
    assert unpack(decoded(codec, pack(stack.stack)))[-1] == "the end"


def test_what_is_compared_is_the_same_each_time_and_comes_back() -> None:
    codec = CODECS["aes"]
    step = workflows.StepRecord(id="1", token="t", name="s", arguments="0123456789abcdef")
    first, second = encoded(codec, step), encoded(codec, step)
    assert isinstance(first, workflows.StepRecord)
    assert isinstance(second, workflows.StepRecord)
    assert first.arguments == second.arguments != step.arguments
    assert len(first.arguments or "") <= 64
    assert unpack(decoded(codec, pack({"arguments": first.arguments}))) == {"arguments": step.arguments}
    push = core.Push(queue="q", idempotency_hash="0123")
    sent = encoded(codec, push)
    assert isinstance(sent, core.Push)
    assert sent.idempotency_hash not in (None, "0123")
    rotated = Codec(encryption=Encryption({"k2": OTHER, "k1": KEY}, hash_key=HASH_KEY))
    again = encoded(rotated, push)
    assert isinstance(again, core.Push)
    assert again.idempotency_hash == sent.idempotency_hash


# -- options


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Codec(), "codec: it does nothing"),
        (lambda: Codec(compression=3), "codec: compression: 3"),  # type: ignore[arg-type]
        (lambda: Codec(encryption=ENCRYPTION, max_size=0), "codec: max_size: 0"),
        (lambda: Compression(level=40), "Compression: level: 40"),
        (lambda: Encryption({}, hash_key=HASH_KEY), "Encryption: keys: give at least one"),
        (lambda: Encryption({"k 1": KEY}, hash_key=HASH_KEY), "Encryption: keys: the name 'k 1'"),
        (lambda: Encryption({"k1": b"short"}, hash_key=HASH_KEY), "'k1' \\(not shown\\) has 5 bytes"),
        (lambda: Encryption({"k1": "no base64!"}, hash_key=HASH_KEY), "'k1' \\(not shown\\) is no Base64"),
        (lambda: Encryption({"k1": KEY}, hash_key=b""), "hash_key \\(not shown\\) has 0 bytes"),
    ],
)
def test_options_that_cannot_be_are_refused(make: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()


def test_keys_are_not_shown() -> None:
    assert "k1" not in repr(ENCRYPTION)
    key = new_key()
    assert len(base64.b64decode(key)) == 32
    assert key != new_key()
    assert key not in repr(Codec(encryption=Encryption({"k1": key}, hash_key=key)))
