"""Random trees of all that handlers may do, for one run each through the tasks of a job.

What a handler does follows from the value that it gets and from the name of its step, so it is the same in whichever
order the handlers are called. `left_by` returns all that a tree leaves: outcomes, figures, rows, and what the handlers
got.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from random import Random
from time import sleep
from types import GeneratorType
from typing import Any
from zlib import crc32
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

from ackline.handler import Dead, Emit, Fail, Hold, InFlight, Record, Skip, Tuple, arrow_handler
from ackline.ledger.answers import TokenSigner
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.topology import StepBlock, Topology, topology
from ackline.worker.settings import OutputTargets
from tests.worker.task_lab import STAMP, TaskLab

MOST_STEPS = 4
_SIGNER = TokenSigner(b"key", "ledger", TurnId("orders", LIVE, 0, 1), {})
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_COLUMNS = {
    "value": "string", "path": "string", "number": "long", "half": "double", "at": "timestamp", "tags": "string",
    "amount": "decimal(20,4)", "raw": "binary", "yes": "boolean",
}  # fmt: skip
seen: list[str] = []
"""What the handlers of this process got since `left_by` has begun."""


class Word(str):
    __slots__ = ()


def shown(value: Any) -> str:
    """A value with the types of all its parts."""
    if isinstance(value, dict):
        inside = ", ".join(f"{shown(name)}: {shown(part)}" for name, part in value.items())
        return f"{type(value).__name__}{{{inside}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{', '.join(map(shown, value))}]"
    if isinstance(value, datetime):
        return f"{value.isoformat()} {type(value.tzinfo).__name__} {value.tzinfo}"
    return f"{type(value).__name__} {value!r}"


# ---- what a call does -----------------------------------------------------------------------------------------------


def _mapping(random: Random, path: str) -> dict[str, Any]:
    number = crc32(path.encode())
    whole = {
        "path": path, "number": number, "half": random.choice([None, number / 2, number]), "yes": number % 2 == 0,
        "at": _BEGIN + timedelta(seconds=number), "tags": [path, "odd", {"deep": None}], "raw": path.encode(),
        "amount": Decimal(number) / 8, "value": None,
    }  # fmt: skip
    return {name: whole[name] for name in random.sample([*whole], random.randrange(1, len(whole)))}


def _value(random: Random, path: str) -> Any:
    number, at = crc32(path.encode()), _BEGIN + timedelta(seconds=crc32(path.encode()))
    return random.choice([
        *[path] * 12, *[{"path": path, "number": number, "half": number / 2}] * 8, *[_mapping(random, path)] * 3,
        {"path": path, "extra": 1}, {"path": path, path: None}, {"path": path, "number": 1 << 70}, {}, [path, [number]],
        (path, number), number, -number, 1 << 80, number / 3, -0.0, float("nan"), float("inf"), True, False, None,
        path.encode(), at, at.replace(tzinfo=None), at.astimezone(timezone(timedelta(hours=2))),
        at.astimezone(ZoneInfo("Asia/Tokyo")), Decimal(number) / 3, f"{path}\ud800", {"a": f"{path}\udfff"},
        {1: path, None: True}, {"b": {"c": [path, {"d": (1, None)}]}}, {"t": at, "n": number},
        {"path": 3, "number": path},        {"half": "x"}, {"raw": bytes(3), "yes": None}, "", b"",
        {"path": "é" * 40 + path}, {"x\ny": path},
    ])  # fmt: skip


def _key(random: Random) -> Any:
    return random.choice(
        [*"abcabcabc", None, None, 1, 1.0, True, b"a", (1, "a"), Decimal(1), _BEGIN, {"k": 1}, "\ud800"]
    )


_WRONG: Sequence[Any] = (object(), {1, 2}, Word("text"), 3 + 4j, bytearray(b"x"), [set()], {"a": Word("x")}, type)


def deeds(path: str, step: str, given: Sequence[Any]) -> Iterator[Any]:
    """Yields what a call emits for a path, whose inputs are `given`, and raises what it raises."""
    random = Random(f"{path}/{step}")
    for number in range(random.choice((0, 1, 1, 2, 3))):
        value, stream, key = _value(random, f"{path[-20:]}{step}{number}"), random.choice(STREAMS), _key(random)
        if stream == "rows":
            value, key = {"path": path, "number": number, f"of_{number}": 1.5, "big": 1}, None
        deed = random.random()
        if deed < 0.86:
            yield Emit(value, stream, key)
        elif deed < 0.89:
            yield Emit(value, stream, key, anchors=())
        elif deed < 0.92:
            yield Emit(
                value, stream, key, anchors=random.choice([given, [*given[:1], *given[:1]], iter(given[-1:]), given[0]])
            )
        elif deed < 0.94:
            yield Emit(value, random.choice(["nowhere", "nowhere", f"path-{crc32(path.encode())}"]), key)
        elif deed < 0.97 and isinstance(value, dict | list):
            yield Emit(value, stream, key)
            value.clear()
        elif deed < 0.98:
            yield Emit(random.choice(_WRONG), stream, key)
        elif deed < 0.985:
            yield Emit(value, stream, random.choice(_WRONG))
        elif deed < 0.99:
            yield random.choice([object(), False, Emit, Emit(1, anchors=[object()]), Emit(1, stream="a b"), Fail(3)])  # type: ignore[arg-type]
    end = random.random()
    if end < 0.05:
        raise random.choice(
            [ValueError(f"broken {path}"), KeyError("x"), SystemExit(3), Dead(f"why {path}"), Skip("no")]
        )


STREAMS = ("default",) * 6 + ("other",) * 2 + ("rows",)


def _answered(random: Random, answers: Iterator[Any]) -> Any:
    """The answers in one of the forms that a handler may choose."""
    form = random.random()
    if form < 0.7:
        return answers
    collected = list(answers)
    if not collected:
        return None
    return (
        collected[0]
        if len(collected) == 1 and form < 0.9
        else random.choice([collected, tuple(collected), iter(collected)])
    )


def source(record: Record) -> Any:
    """The handler of the records."""
    path = json.loads(record.value)
    random = Random(path)
    if random.random() < 0.05:
        raise random.choice([ValueError(path), Skip("unwanted"), Dead("hopeless")])

    def answers() -> Iterator[Any]:
        yield from deeds(path, "source", [record])
        if path.startswith("wait") and random.random() < 0.3:
            yield InFlight(timeout=random.choice([None, "30s"]))

    return _answered(random, answers())


def _one(name: str) -> Any:
    def one(given: Tuple) -> Any:
        path, random = shown(given.value), Random(f"{shown(given.value)}{name}")
        seen.append(f"{name}: {path} | {shown(given.key)} | {given.step}.{given.stream} | {given.origins}")

        def answers() -> Iterator[Any]:
            if random.random() < 0.2 and isinstance(given.value, dict | list):
                given.value.clear()
            yield from deeds(path, name, [given])

        return answers() if random.random() < 0.7 else _answered(random, answers())

    return one


def _join(name: str) -> Any:
    def join(given: Sequence[Tuple]) -> Iterator[Any]:
        of_call = [
            f"{shown(each.value)} | {shown(each.key)} | {each.step}.{each.stream} | {each.origins}" for each in given
        ]
        # Those of no record come first, in no order.
        loose = sorted(each for each in of_call if each.endswith("| ()"))
        seen.append(f"{name}: {loose + [each for each in of_call if each not in loose]}")
        for each in given:
            path = shown(each.value)
            random = Random(f"{path}{name}")
            deed = random.random()
            if deed < 0.1:
                yield Hold(each)
            if 0.05 < deed < 0.15:
                yield Fail(each, f"unwanted {path}")
            if deed > 0.99:
                raise ValueError(f"broken {path}")
            for answer in deeds(path, name, given if deed < 0.5 else [each]):
                if deed > 0.7 and type(answer) is Emit and answer.anchors is None:
                    answer.anchors = (each, given[0])
                yield answer

    return join


_WORDS: Sequence[Any] = (("failed", "ValueError", "broken"), ("skipped", None, None), ("dead", None, "no"))


def _batches(name: str, join: bool) -> Any:
    @arrow_handler
    def batch(given: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        values = [column for column in given.schema.names if column not in ("key", "_tuple")]
        rows = given.select(values).to_pylist()
        keys = given.column("key").to_pylist()
        seen.extend(
            f"{name}: {shown(_fields(dict(sorted(row.items()))))} | {shown(key)}"
            for row, key in zip(rows, keys, strict=True)
        )
        words: dict[int, Any] = {}
        emitted: list[tuple[int, str, str, str]] = []
        for number, row in enumerate(rows):
            path = shown({key: part for key, part in sorted(row.items()) if part is not None})
            random = Random(f"{path}{name}")
            if random.random() < 0.1:
                words[number] = ("held", None, None) if join and random.random() < 0.4 else random.choice(_WORDS)
            for place in range(random.choice((0, 1, 1, 2))):
                stream = random.choice(("default", "default", "default", "other", "other", "nowhere"))
                emitted.append((number, f"{path[-20:]}{name}{place}", random.choice("abc"), stream))
        said = [words[number] for number in words]
        yield pa.record_batch({
            "_input": pa.array([*words], pa.int32()), "outcome": pa.array([word for word, _, _ in said], pa.string()),
            "error_class": pa.array([kind for _, kind, _ in said], pa.string()),
            "error_message": pa.array([text for _, _, text in said], pa.string()),
        })  # fmt: skip
        for fields in ("value", "path"):
            of_fields = [row for row in emitted if crc32(row[1].encode()) % 2 == (fields == "path")]
            if of_fields:
                inputs, texts, of_keys, streams = zip(*of_fields, strict=True)
                yield pa.record_batch({
                    fields: pa.array(texts), "_input": pa.array([[number] for number in inputs], pa.list_(pa.int64())),
                    "key": pa.array(of_keys), "stream": pa.array(streams),
                })  # fmt: skip

    return batch


@arrow_handler
def source_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The handler of a batch of records."""
    paths = [json.loads(value) for value in batch.column("value").to_pylist()]
    rows = [
        (number, f"{path}{place}", "abc"[place], ("default", "other")[crc32(path.encode()) % 2])
        for number, path in enumerate(paths)
        for place in range(crc32(path.encode()) % 4)
    ]
    inputs, texts, keys, streams = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.record_batch({
        "_input": pa.array(inputs, pa.int64()), "value": pa.array(texts, pa.string()),
        "key": pa.array(keys, pa.string()), "stream": pa.array(streams, pa.string()),
    })  # fmt: skip


def _overlapping(form: str, call: Callable[[Any], Any]) -> Any:
    """The same handler, whose calls overlap: on threads, or on an event loop in one of two ways."""
    pauses = Random(form)

    def on_a_thread(given: Any) -> Any:
        sleep(pauses.random() / 5_000)
        return call(given)

    async def on_a_loop(given: Any) -> Any:
        for _ in range(pauses.randrange(4)):
            await asyncio.sleep(0)
        return call(given)

    async def yielding(given: Any) -> Any:
        result = call(given)
        several = isinstance(result, GeneratorType | list | tuple | Iterator)
        for answer in result if several else [] if result is None else [result]:
            yield answer
            for _ in range(pauses.randrange(3)):
                await asyncio.sleep(0)

    return {"thread": on_a_thread, "loop": on_a_loop, "yielding": yielding}[form]


FORMS = ("thread", "loop", "yielding")
for _form in FORMS:
    globals()[f"source_{_form}"] = _overlapping(_form, source)
for _number in range(MOST_STEPS):
    globals().update({f"one{_number}_{_form}": _overlapping(_form, _one(f"s{_number}")) for _form in FORMS})
    globals()[f"one{_number}"], globals()[f"join{_number}"] = _one(f"s{_number}"), _join(f"s{_number}")
    globals()[f"batch{_number}"] = _batches(f"s{_number}", join=False)
    globals()[f"joinbatch{_number}"] = _batches(f"s{_number}", join=True)


# ---- a tree, and what it leaves -------------------------------------------------------------------------------------


def _topology(random: Random, records_only: bool) -> Topology:
    blocks: list[dict[str, Any]] = []
    for number in range(random.randrange(0, MOST_STEPS + 1)):
        names = ["source", *(block["name"] for block in blocks)]
        streams = [f"{name}{stream}" for name in names for stream in ("", "", ".other")]
        block: dict[str, Any] = {
            "name": f"s{number}",
            "input": sorted({*random.choices(streams, k=random.randrange(1, 4))}),
        }
        grouped = random.random() < 0.6
        join = grouped and random.random() < 0.3
        form = "" if records_only or random.random() < 0.75 else "batch"
        block["handler"] = f"{__name__}:{'join' if join else '' if form else 'one'}{form}{number}"
        blocks.append(block | ({"group_by": "key", "join": join} if grouped else {}))
    names = ["source", *(block["name"] for block in blocks)]
    outputs: list[dict[str, Any]] = [{"from": random.choices(names, k=1), "table": "declared", "columns": _COLUMNS}]
    outputs.append({"from": [f"{name}.rows" for name in names], "table": "inferred"})
    if random.random() < 0.5:
        outputs.append({"from": [f"{random.choice(names)}.other"], "table": "others", "columns": {"path": "string"}})
    if random.random() < 0.7:
        outputs.append({"from": [f"{name}{stream}" for name in names for stream in ("", ".other")], "topic": "sink"})
    chosen = outputs[random.randrange(0, 2) :] if blocks else outputs
    steps = [StepBlock.model_validate(block) for block in blocks]
    return topology(steps, [OutputBlock.model_validate(output) for output in chosen])


def _overlap(random: Random, of: Topology, handler: str) -> tuple[Topology, str, int | None]:
    """The topology with record steps whose calls overlap, and the same of the handler of records."""

    def drawn(path: str) -> tuple[str, int | None]:
        form = random.choice(FORMS)
        return f"{path}_{form}", random.choice([2, 3, 8] if form == "thread" else [2, 3, None])

    steps = {}
    for step in of.steps:
        if ":one" in step.handler and random.random() < 0.8:
            path, concurrency = drawn(step.handler)
            steps[step.number] = replace(step, handler=path, concurrency=concurrency)
    ordered = tuple(steps.get(step.number, step) for step in of.steps)
    takers = {stream: tuple(steps.get(step.number, step) for step in taken) for stream, taken in of.consumers.items()}
    overlapping = replace(of, steps=ordered, consumers=takers)
    return overlapping, *(drawn(handler) if handler == "source" and random.random() < 0.7 else (handler, None))


def left_by(number: int, lab: TaskLab, folder: Path, overlapping: bool = False) -> Mapping[str, list[str]]:
    """What the tree with this number leaves, also if calls overlap. Each 150th tree runs with isolated handlers, in
    other processes."""
    random = Random(f"tree {number}")
    isolated = number % 150 == 149
    of = _topology(random, isolated)
    handler = "source_batch" if not isolated and random.random() < 0.1 else "source"
    prefix = "wait" if random.random() < 0.3 else "go"
    tps = [TopicPartition(f"tree-{number}-{part}", 0) for part in range(2)]
    for part, tp in enumerate(tps):
        lab.world.create_topic(tp.topic, 1)
        lab.put_records(tp, [(None, json.dumps(f"{prefix}-{number}-{part}-{n}").encode()) for n in range(6)])
    columns = {output.number: dict(output.columns) for output in of.all_outputs if output.columns}
    settings: dict[str, Any] = {"topology": of, "now": STAMP, "isolated": isolated, "tracking": random.random() < 0.93}
    if of.all_outputs:
        settings["outputs"] = OutputTargets(
            TurnId("orders", LIVE, 0, 1), str(folder / f"{number}"), columns, producer=None
        )
    if prefix == "wait" and handler == "source":
        settings["tokens"] = _SIGNER
    path, concurrency = handler, None
    if overlapping:
        settings["topology"], path, concurrency = _overlap(Random(f"calls {number}"), of, handler)
    retries = {tps[1]: dict.fromkeys(range(6), 2)} if random.random() < 0.3 else {}
    fresh = {tp: (0, 6) for tp in tps if tp not in retries}
    job = lab.job(f"{__name__}:{path}", fresh, retries, concurrency=concurrency, **settings)
    seen.clear()
    result = lab.replayed(job)
    assert result.steps is not None
    rows = [
        f"{file.output} {shown(_fields(dict(sorted(row.items()))))}"
        for file in result.staged
        for row in pq.read_table(folder / f"{number}" / file.path).to_pylist()
    ]
    batches = {step.name for step in of.steps if "batch" in step.handler}  # get as many tuples a call as there are
    left = {
        "outcomes": _outcome_rows(lab, job, result),
        "figures": [
            f"{name} {done.numbers()} {'' if name in batches else done.execute.count}"
            for name, done in result.steps.steps.items()
        ],
        "rows": rows,
        "seen": [] if isolated else seen,
    }
    return {name: sorted(texts) for name, texts in left.items()}


def _fields(row: Any) -> Any:
    """A row without its fields that are null. Which other rows were in its batch or file decides which
    columns it has beside its own."""
    if isinstance(row, list):
        return [_fields(part) for part in row]
    if isinstance(row, dict):
        return {name: _fields(part) for name, part in row.items() if part is not None}
    return row


_FIELDS = ("partition", "offset", "outcome", "error_class", "error_message", "tree", "due", "attempt")


def _outcome_rows(lab: TaskLab, job: Any, result: Any) -> Iterator[str]:
    for file in result.files:
        table = pq.read_table(Path(job.target.root) / file.path, partitioning=None)
        for row in table.to_pylist():
            fields = {name: row[name] for name in ("topic", *_FIELDS) if name in row}
            yield f"{fields} {row.get('error_place') is not None}"
