"""Gathers the evidence of a pipeline, and judges it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from confluent_kafka import KafkaException

from ackline.verify.evidence import DeadLetter, Evidence, Log, OutputTable, TopicPartition, Unreadable
from ackline.verify.judge import judge
from ackline.verify.read_dead_letters import read_dead_letters
from ackline.verify.read_journal import read_calls
from ackline.verify.read_kafka import Config, read_committed_offsets, read_log_bounds, read_logs
from ackline.verify.read_outputs import SCHEMA, OutputTables, named_in_plans, named_in_settlements
from ackline.verify.read_tables import read_table
from ackline.verify.report import Report


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the evidence of one pipeline and lane is.

    `bootstrap` is the address of the brokers, or a whole client configuration. `audit` is the root of the tables.
    `dead_letter_topic` is None if the pipeline writes no dead letters. `journal` is a file of handler calls.
    """

    bootstrap: str | Config
    audit: str
    pipeline: str
    group: str
    topics: Sequence[str]
    dead_letter_topic: str | None = None
    isolation: str = "read_committed"
    journal: str | None = None
    lane: str = "live"

    @property
    def config(self) -> Config:
        """The configuration of Kafka clients; they log nothing, because each failure that matters raises."""
        config = {"bootstrap.servers": self.bootstrap} if isinstance(self.bootstrap, str) else self.bootstrap
        return {"log_level": 0, **config}


def gather(sources: Sources) -> Evidence:
    """Return all that is to be judged; raises Unreadable if a part of it cannot be read.

    The order of reading lets it run beside a working pipeline. The pipeline stores plans and outcomes, then the
    settlement, then the rows of output tables, and then commits. This reads in the opposite order, so whatever a
    commit, a row or a settlement needs is there when it is read. Which turns the output tables have is read last: a
    plan that is read before proves that all earlier turns are in the tables.
    """
    config = sources.config
    try:
        tps = [
            TopicPartition(topic, partition)
            for topic in sources.topics
            for partition in read_log_bounds(config, topic, sources.isolation)
        ]
        committed = read_committed_offsets(config, sources.group, tps)
        outputs = OutputTables(sources.audit, sources.pipeline, sources.lane)
        first_plans, _ = read_table(sources.audit, "plans", sources.pipeline, sources.lane)
        rows = outputs.read_rows(named_in_plans(first_plans))
        settlements, ledger = read_table(sources.audit, "settlements", sources.pipeline, sources.lane)
        outcomes, _ = read_table(sources.audit, "outcomes", sources.pipeline, sources.lane)
        plans, _ = read_table(sources.audit, "plans", sources.pipeline, sources.lane)
        tables = _output_tables(outputs, rows, settlements, plans, ledger)
        letters = None
        if sources.dead_letter_topic:
            letters = read_dead_letters(config, sources.dead_letter_topic, sources.pipeline)
        logs = _read_all_logs(sources, letters or (), committed)
    except KafkaException as error:
        raise Unreadable(str(error)) from error
    calls = read_calls(sources.journal) if sources.journal else None
    return Evidence(sources.pipeline, sources.lane, logs, plans, outcomes, settlements, ledger, letters, calls, tables)


def _output_tables(
    outputs: OutputTables,
    rows: Mapping[str, pa.Table],
    settlements: pa.Table,
    plans: pa.Table,
    ledger: str | None,
) -> list[OutputTable]:
    """Return the output tables that `plans` name. A table of which no rows were read is of a plan stored since."""
    names = named_in_plans(plans)
    published = outputs.read_published(names, named_in_settlements(settlements))
    return [
        OutputTable(name, rows.get(name, SCHEMA.empty_table()), published[name], outputs.foreign_writer(name, ledger))
        for name in names
    ]


def _read_all_logs(
    sources: Sources, letters: Sequence[DeadLetter], committed: Mapping[TopicPartition, tuple[int, str]]
) -> dict[TopicPartition, Log]:
    """Return the logs of all topics, with digests of the records that have dead letters, and committed offsets."""
    wanted: dict[TopicPartition, set[int]] = {}
    for letter in letters:
        wanted.setdefault(letter.tp, set()).add(letter.offset)
    logs: dict[TopicPartition, Log] = {}
    for topic in sources.topics:
        logs |= read_logs(sources.config, topic, sources.isolation, wanted)
    for tp, (offset, metadata) in committed.items():
        logs[tp] = replace(logs[tp], committed=offset, metadata=metadata)
    return logs


def check(sources: Sources, *, max_retries: int | None = None, settled: bool = False) -> Report:
    """Gather the evidence and judge it; raises Unreadable if there can be no verdict."""
    return judge(gather(sources), max_retries=max_retries, settled=settled)
