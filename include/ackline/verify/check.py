"""Gathers the evidence of a pipeline, judges it by all rules, and reports what it found.

The report holds the violations, and what became of how many records in the newest epoch.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException

from ackline.verify import judge_endings, judge_floors, judge_outcomes, judge_turns
from ackline.verify.evidence import (
    DeadLetter,
    Evidence,
    Findings,
    Log,
    OutputTable,
    TopicPartition,
    Unreadable,
    shadow_suffix,
)
from ackline.verify.judge_endings import calls_by_partition, judge_calls, judge_dead_letters
from ackline.verify.judge_floors import judge_commits
from ackline.verify.judge_outputs import judge_outputs, why_not_judged
from ackline.verify.judge_turns import judge_settled
from ackline.verify.lane_history import LaneHistory, PartitionHistory
from ackline.verify.read_kafka import (
    Config,
    read_calls,
    read_committed_offsets,
    read_dead_letters,
    read_log_bounds,
    read_logs,
)
from ackline.verify.read_tables import SCHEMA, OutputTables, named_in_plans, named_in_settlements, read_table
from ackline.verify.rows import TERMINAL


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict: a sentence for each violation, and counts of the newest epoch, in total and by topic.

    `records` counts the records that a consumer receives, `attempts` and the outcome words the offsets with these
    outcomes, `pending` the pending offsets. `letters` and `calls` count dead letters and handler calls; `letters_again`
    and `calls_again` count the repetitions, which are allowed. There are no calls without a journal. `not_judged` has a
    sentence for each part of the evidence that the checker did not judge.
    """

    violations: list[str]
    totals: dict[str, int]
    topics: dict[str, dict[str, int]]
    not_judged: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no violation."""
        return not self.violations


def make_report(lane: LaneHistory, violations: list[str]) -> Report:
    """Return the report on a lane with these violations."""
    topics = {topic: count_topic(lane, topic) for topic in sorted({tp.topic for tp in lane.evidence.logs})}
    totals: Counter[str] = Counter()
    for counts in topics.values():
        totals.update(counts)
    not_judged = [
        f"the rows of output table {table.name}: {why}. The checker did judge whether each turn is published"
        for table in lane.evidence.outputs
        if (why := why_not_judged(lane, table)) is not None
    ]
    return Report(violations, dict(totals), topics, not_judged)


def count_topic(lane: LaneHistory, topic: str) -> dict[str, int]:
    """Return the counts of one topic in the newest epoch, by the words that `Report` describes."""
    counts = Counter(dict.fromkeys(("records", *TERMINAL, "pending", "attempts", "failed"), 0))
    for tp, log in lane.evidence.logs.items():
        if tp.topic == topic:
            counts["records"] += len(log.offsets)
            counts.update(_count_partition(lane.partition(lane.newest_epoch, tp)))
    letters = [
        (letter.partition, letter.offset)
        for letter in lane.evidence.lane_letters
        if letter.topic == topic and letter.epoch == lane.newest_epoch
    ]
    counts["letters"] = len(set(letters))
    counts["letters_again"] = len(letters) - counts["letters"]
    if lane.evidence.calls is not None:
        calls = [calls for tp, calls in calls_by_partition(lane.evidence.calls).items() if tp.topic == topic]
        counts["calls"] = sum(len(of_tp) for of_tp in calls)
        counts["calls_again"] = counts["calls"] - sum(len(np.unique(of_tp)) for of_tp in calls)
    return dict(counts)


def _count_partition(partition: PartitionHistory) -> dict[str, int]:
    """Return pending offsets, attempts and outcomes; those of turns that kept no rows are taken from settlements."""
    rows, settlements = partition.outcomes, partition.settlements
    counts = {
        "pending": settlements[-1].pending.size if settlements else 0,
        "attempts": int((rows.attempt >= 1).sum()),
    }
    for code, word in enumerate((*TERMINAL, "failed")):
        counts[word] = int((rows.end - rows.offset)[rows.outcome == code].sum())
    without_rows = set(partition.counted.turn.tolist())
    for settlement in settlements:
        if settlement.turn in without_rows:
            for word in ("acked", "skipped", "dropped"):
                counts[word] += (settlement.counts or {}).get(word, 0)
    return counts


LANE_RULES: tuple[Callable[[LaneHistory, Findings], None], ...] = (
    judge_turns.check_turns_are_stored_once,
    judge_turns.check_turns_follow_each_other,
    judge_turns.check_settlements_cover_every_partition,
    judge_turns.check_waived_turns_are_void,
    judge_turns.check_void_turns_have_a_reason,
    judge_outcomes.check_no_epoch_leaves_records_over,
)
PARTITION_RULES: tuple[Callable[[PartitionHistory, Findings], None], ...] = (
    judge_outcomes.check_rows_are_well_formed,
    judge_floors.check_floor_is_lowest_pending,
    judge_floors.check_each_turn_goes_on_from_the_one_before,
    judge_turns.check_nothing_is_passed_over,
    judge_turns.check_first_attempts_are_planned,
    judge_outcomes.check_no_outcome_is_stored_twice,
    judge_outcomes.check_nothing_is_attempted_after_its_end,
    judge_endings.check_answers_end_attempts_in_flight,
    judge_endings.check_an_attempt_is_ended_once,
    judge_endings.check_no_ack_acks_a_skipped_tree,
    judge_outcomes.check_attempts_are_consecutive,
    judge_outcomes.check_attempts_are_in_later_turns,
    judge_outcomes.check_retries_were_pending_and_due,
    judge_outcomes.check_epoch_has_start_and_state,
    judge_outcomes.check_outcomes_are_inside_the_epoch,
    judge_outcomes.check_each_record_is_settled_or_pending,
    judge_outcomes.check_complete_to_is_in_log,
    judge_outcomes.check_nothing_is_attempted_in_later_turns,
    judge_floors.check_floor_passes_only_settled_offsets,
    judge_floors.check_complete_to_passes_only_read_offsets,
    judge_floors.check_pending_offsets_after_each_turn,
    judge_outcomes.check_counts_match_rows,
    judge_outcomes.check_counts_match_records,
    judge_turns.check_plans_stay_in_window,
    judge_turns.check_calls_are_in_order,
    judge_outcomes.check_only_received_records_are_handled,
    judge_endings.check_no_rescued_record_is_gone,
    judge_endings.check_only_pending_records_have_copies,
    judge_endings.check_only_copied_records_are_released,
    judge_endings.check_outcomes_are_of_chosen_offsets,
    judge_endings.check_each_chosen_offset_is_counted_once,
    judge_endings.check_an_older_epoch_is_settled,
)


def judge(evidence: Evidence, *, max_retries: int | None = None, settled: bool = False) -> Report:
    """Return a report of what does not hold in `evidence`.

    With `max_retries`, the number of attempts is judged, too; None: the pipeline has no single limit. With `settled`,
    nothing may be open, pending or behind.
    """
    lane, found = LaneHistory(evidence), Findings()
    for check_lane in LANE_RULES:
        check_lane(lane, found)
    for partition in lane.partitions():
        for check_partition in PARTITION_RULES:
            check_partition(partition, found)
        if max_retries is not None:
            judge_outcomes.check_attempts_within_limit(partition, max_retries, found)
    judge_commits(lane, found)
    judge_outputs(lane, settled, found)
    if settled:
        judge_settled(lane, found)
    judge_dead_letters(lane, max_retries, found)
    judge_calls(lane, max_retries, settled, found)
    return make_report(lane, found.sentences)


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
        beside, suffix = dict[str, pa.Table](), shadow_suffix(sources.lane, settlements)
        if suffix is not None:
            beside = outputs.read_rows({name.removesuffix(suffix) for name in named_in_plans(plans)})
        letters = None
        if sources.dead_letter_topic:
            letters = read_dead_letters(config, sources.dead_letter_topic, sources.pipeline)
        logs = _read_all_logs(sources, letters or (), committed)
    except KafkaException as error:
        raise Unreadable(str(error)) from error
    calls = read_calls(sources.journal) if sources.journal else None
    return Evidence(
        sources.pipeline, sources.lane, logs, plans, outcomes, settlements, ledger, letters, calls, tables, beside
    )


def _output_tables(
    outputs: OutputTables,
    rows: Mapping[str, pa.Table],
    settlements: pa.Table,
    plans: pa.Table,
    ledger: str | None,
) -> list[OutputTable]:
    """Return the output tables that `plans` or `settlements` name. If `rows` lacks a table, its plan was stored later,
    or settlements have another name for it than plans."""
    tables, ids = named_in_settlements(settlements)
    names = sorted({*named_in_plans(plans), *tables})
    published, tables_of = outputs.read_published(names, ids), {name: outputs.transactions(name) for name in names}
    return [
        OutputTable(
            name,
            rows.get(name, SCHEMA.empty_table()),
            published[name],
            outputs.foreign_writer(transactions, ledger),
            transactions,
            *outputs.read_history(name),
        )
        for name, transactions in tables_of.items()
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
