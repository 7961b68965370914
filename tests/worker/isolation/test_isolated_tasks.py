"""Faults 11 and 12 in the tasks of a job: a call that kills or hangs its process fails its record or tuples alone."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ackline.errors import ConfigError
from ackline.ledger.answers import TokenSigner
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.streams import Stream, Translation
from ackline.pipeline.topology import Topology
from ackline.spark.job import with_possible_isolation
from ackline.worker.settings import ReplayJob
from ackline.worker.streams import load_functions_of_job
from tests.worker.isolation.lab import EXPECTED, GROUPED, HANDLERS, SPLIT, WORDS, items, steps
from tests.worker.task_lab import TaskLab

CHAINED = steps({"name": "first", "input": "source"}, {"name": "second", "input": "first"})
JOINED = steps(
    {"name": "first", "input": "source"},
    {"name": "meet", "input": "first", "group_by": "key", "join": True},
    {"name": "second", "input": "meet"},
)

DEEDS = {
    "segfault": "WorkerLost",
    "exit3": "WorkerLost",
    "kill": "WorkerLost",
    "hang": "Timeout",
    "exit": "SystemExit",
    "hoard": "MemoryError",
    "fail": "ValueError",
    "skip": "Skip",
}


def put(tasks: TaskLab, records: list[list[dict[str, Any]]]) -> Any:
    return tasks.put(*(json.dumps({"items": record}).encode() for record in records))


def ran(tasks: TaskLab, records: list[list[dict[str, Any]]], of: Topology, **settings: Any) -> ReplayJob:
    """Runs a job over records with these items, and checks that no call was made twice."""
    tp = put(tasks, records)
    settings = {"isolated": True, "record_timeout": 4.0, "topology": of, **settings}
    job = tasks.ran(SPLIT, {tp: (0, len(records))}, **settings)
    assert set(tasks.calls(tp.topic).values()) == {1}
    return job


def job_topic(job: ReplayJob) -> str:
    [tp] = job.fresh
    return tp.topic


@pytest.mark.parametrize("handler", ["by_deed", "arrow_by_deed"])
def test_what_kills_or_hangs_its_process_fails_alone(tasks: TaskLab, handler: str) -> None:
    """Fresh records of one partition and retries of another, in one job."""
    topic = tasks.new_topic(2)
    fresh, retries = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for tp in (fresh, retries):
        tasks.put_records(tp, [(b"k", word) for word in WORDS])
    attempts = {retries: dict.fromkeys(range(1, 6), 2)}
    job = tasks.job(handler, {fresh: (0, 6)}, attempts, isolated=True, record_timeout=3.0)
    result = tasks.run(job)
    assert (tasks.outcomes(job), result.calls) == (EXPECTED + EXPECTED[1:], 9)


PATH = "tests.spark.stream_handlers:{}".format
NOTES = Translation((Stream("notes", PATH("notes"), PATH("any_note"), value="utf8"),))


@pytest.mark.parametrize(
    ("handler", "translation", "reason"),
    [("column_words", None, r"is a column handler.*record_timeout"), ("arrow_words", NOTES, "Arrow handler")],
)
def test_a_handler_that_can_not_be_isolated_is_refused_only_if_its_pipeline_asks_for_that(
    tasks: TaskLab, caplog: pytest.LogCaptureFixture, handler: str, translation: Translation | None, reason: str
) -> None:
    """A column handler stays in the JVM; an Arrow handler behind a filter is called in the midst of other records."""
    tp = tasks.put(b"acked")
    job = tasks.job(handler, {tp: (0, 1)}, isolated=True, translation=translation)
    function = load_functions_of_job(job.settings)
    with pytest.raises(ConfigError, match=reason):
        with_possible_isolation(job, function)
    unasked = replace(job, isolation_reason="started 3 times without outcomes")
    assert with_possible_isolation(unasked, function).settings == replace(job.settings, isolated=False)
    assert "process of its own" not in caplog.text


@pytest.mark.parametrize(("of", "once"), [
    pytest.param(GROUPED, False, id="grouped"),
    pytest.param(GROUPED, True, id="grouped, once", marks=pytest.mark.deep),
    pytest.param(CHAINED, False, id="chained", marks=pytest.mark.deep),
    pytest.param(CHAINED, True, id="chained, once", marks=pytest.mark.deep),
])  # fmt: skip
def test_a_tuple_that_kills_or_hangs_its_process_fails_its_record_alone(
    tasks: TaskLab, of: Topology, once: bool
) -> None:
    """In the second step: the siblings of that tuple, and all other records, have one call and are acked."""
    records = [items({}, {"second": deed}, {}) for deed in DEEDS]
    job = ran(tasks, [items({}, {}), *records, items({}, {})], of, once=once)
    expected: list[tuple[int, str, str | None]] = [(0, "acked", None)]
    for offset, error_class in enumerate(DEEDS.values(), 1):
        expected.append((offset, "skipped" if error_class == "Skip" else "failed", error_class))
    assert tasks.outcomes(job) == [*expected, (len(expected), "acked", None)]
    messages = {row["error_class"]: row["error_message"] for row in tasks.rows(job) if row["offset"] in (1, 4)}
    assert messages["WorkerLost"].startswith("step second: the handler's process was killed by SIGSEGV; ")
    assert messages["Timeout"].startswith("step second: the handler did not return within 4 s; ")
    calls = Counter(call[2] // 100 for call in tasks.calls(job_topic(job)))
    assert calls == {0: len(records) + 2, 1: 3 * len(records) + 4, 2: 3 * len(records) + 4}


def test_what_a_source_or_the_first_step_does_fails_its_record_alone(tasks: TaskLab) -> None:
    job = ran(
        tasks,
        [
            items({}),
            items({}, {"source": "segfault"}),
            items({"source after a yield": "hang"}),
            items({"first after a yield": "hang"}, {}),
            items({"first after a yield": "kill"}),
            items({"source": "fork"}, {"first": "fork", "second": "fork"}),
            items({}),
        ],
        GROUPED,
    )
    assert tasks.outcomes(job) == [
        (0, "acked", None),
        (1, "failed", "WorkerLost"),
        (2, "failed", "Timeout"),
        (3, "failed", "Timeout"),
        (4, "failed", "WorkerLost"),
        (5, "acked", None),
        (6, "acked", None),
    ]


def test_a_join_that_kills_or_hangs_its_process_fails_all_tuples_of_its_call(tasks: TaskLab) -> None:
    """A call has all tuples of a key, and no other key is affected."""
    shared = {"key": "shared", "do": {}}
    hangs = {"key": "hangs", "do": {"meet": "hang"}}
    records = [[shared], [shared, {"key": "own", "do": {}}], [hangs], [{"key": "own", "do": {}}]]
    job = ran(tasks, [[{**shared, "do": {"meet": "kill"}}], *records], JOINED)
    lost, timeout = (0, "failed", "WorkerLost"), (3, "failed", "Timeout")
    assert tasks.outcomes(job) == [lost, (1, *lost[1:]), (2, *lost[1:]), timeout, (4, "acked", None)]
    assert tasks.rows(job)[0]["error_message"] == (
        "step meet: the handler's process was killed by SIGKILL in a call for 3 tuples; 0 siblings acked"
    )


def test_decoded_values_reach_the_process_and_secrets_of_the_task_do_not(tasks: TaskLab) -> None:
    translation = Translation((Stream("items", SPLIT, value="json"),))
    shown = {"items": items({"source": "show secrets"}, {"second": "show secrets"})}
    tp = tasks.put(json.dumps(shown).encode(), b"no json")
    settings = {"store_options": {"aws_secret_access_key": "x"}, "key_hash_secret": b"secret", "topology": GROUPED}
    job = tasks.ran(SPLIT, {tp: (0, 2)}, isolated=True, translation=translation, **settings)
    assert tasks.outcomes(job) == [(0, "acked", None), (1, "failed", "Undecodable")]


def test_the_process_makes_the_tokens_of_its_records(tasks: TaskLab) -> None:
    tp = TopicPartition(tasks.new_topic(), 0)
    tokens = TokenSigner(b"k" * 16, "ledger", TurnId("orders", LIVE, 0, 1), {tp: "id"})
    tasks.put_records(tp, [(None, tokens.token(*tp, 0, 1).encode()), (None, b"another token")])
    job = tasks.ran(f"{HANDLERS}:emits_token", {tp: (0, 2)}, isolated=True, topology=GROUPED, tokens=tokens)
    assert tasks.outcomes(job) == [(0, "acked", None), (1, "failed", "ValueError")]


def test_figures_count_each_call_and_measure_one_that_did_not_return(tasks: TaskLab) -> None:
    tp = put(tasks, [items({}, {}), items({"first": "kill"}), items({"source": "fail"}), [], items({"second": "hang"})])
    job = tasks.job(SPLIT, {tp: (0, 5)}, topology=GROUPED, isolated=True, record_timeout=4.0)
    figures = tasks.run(job).steps
    assert figures is not None
    assert {name: (*done.numbers().values(), done.execute.count) for name, done in figures.steps.items()} == {
        "source": (5, 4, 2, 3, 5),
        "first": (4, 3, 3, 1, 4),
        "second": (3, 0, 2, 1, 3),
    }
    assert figures.steps["second"].execute.longest >= 4_000_000_000
    assert figures.latency.count == 2
