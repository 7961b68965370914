"""replay: read exactly what the open plan says, handle it, and make the outcomes visible in one fenced commit.

Its one write that counts is outcomes n. Killed before it, files that no log entry names are invisible and the range is
replayed; killed after it, a repeat finds the number taken. That commit, written for zero rows too, is the only proof
that the range was handled whole: neither an exit status nor the state of a task is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake.transaction import AddAction

from ackline.audit.rows import plan_date
from ackline.audit.store import TRIES_COUNTED
from ackline.errors import ConfigError, RangeGone, TopicChanged
from ackline.kafka.java import java_properties
from ackline.kafka.registry import check_registry
from ackline.metrics import Report
from ackline.offsets import LogBounds, OffsetRange, TopicPartition, count, subtract
from ackline.outcome import ErrorClass, Outcome
from ackline.steps.claim import claim, lose, refuse_retries, start
from ackline.steps.log_checks import cut
from ackline.steps.measure import keeps_rows
from ackline.steps.parts import Parts, Progress
from ackline.steps.setting_changes import check_open
from ackline.steps.settle import void_turn
from ackline.turns import Plan, PlannedPartition, Settlement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackline.spark.job import ReplayJob, ReplayResult


# What of a record's last attempt says that its next one would take the task down as well.
_ISOLATES = (ErrorClass.WORKER_LOST, ErrorClass.TIMEOUT)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What this process did: handler calls made, records fetched for each retry; `void` says why nothing counts."""

    plan: Plan | None
    calls: int = 0
    fetched_for_retries: int = 0
    void: str | None = None


def replay(parts: Parts, spark: "Callable[[], SparkSession]", on_progress: Progress | None = None) -> Replayed:
    """Carry out the lane's open plan, if its outcomes are not stored yet. Spark is started only where there is
    something to read.

    A plan that can't be carried out any more (its range is gone from the log) is closed by a void settlement, and
    planned again by the next turn. Raises TopicChanged, ConfigError, TransientError, FatalError.
    """
    newest = parts.store.newest()
    plan = parts.store.open_plan(newest) if newest else None
    if newest is None or plan is None or parts.store.has_outcomes(plan.turn):
        return Replayed(plan)
    if plan.empty:
        parts.store.store_outcomes(plan.turn, [])
        return Replayed(plan)
    check_open(parts, plan)
    check_registry(parts.translation)  # at most once, what is handed out and not decoded would be lost
    job = job_of(parts, plan)  # what it refuses, it refuses before anything is at stake
    gone = _gone(parts, plan)  # so is what can't be read, unless the plan was claimed before
    once = parts.pipeline.guarantee == "at_most_once"
    if once and gone is None and not parts.store.has_start(plan.turn):
        parts.check_job(spark, job)  # a handler or a Spark that can't be started must not cost a turn
    if once and (gone is None or parts.store.has_claim(plan.turn)) and not _hand_out(parts, plan, newest):
        return Replayed(plan)
    result = gone or _carry_out(parts, plan, newest, spark, on_progress)
    if isinstance(result, RangeGone | TopicChanged):
        return _give_up(parts, plan, newest, result)
    if parts.store.store_outcomes(plan.turn, add_actions(plan, result), report(parts, plan, result)):
        parts.notify("handled", plan.turn, result.counts)
    return Replayed(plan, result.calls, result.fetched_for_retries)


def _gone(parts: Parts, plan: Plan) -> RangeGone | TopicChanged | None:
    try:
        check_ranges(parts, plan)
    except (RangeGone, TopicChanged) as error:
        return error
    return None


def _carry_out(
    parts: Parts,
    plan: Plan,
    newest: Settlement,
    spark: "Callable[[], SparkSession]",
    on_progress: Progress | None,
) -> "ReplayResult | RangeGone | TopicChanged":
    """What the tasks did, or why it can't be done or does not count."""
    try:
        # Counted before Spark is started: a start that takes this process with it must have been one.
        because = _because(parts, plan, newest)
        result = _run(parts, plan, spark, on_progress, because)
        check_ranges(parts, plan, after=True)  # a log exchanged under the reader must not pass for the old one
    except (RangeGone, TopicChanged) as error:
        return error
    return result


def _give_up(parts: Parts, plan: Plan, newest: Settlement, error: RangeGone | TopicChanged) -> Replayed:
    """Close a turn that can't be carried out. Raises TopicChanged where the next one could not be either."""
    if parts.store.has_claim(plan.turn):  # a claimed turn is never void: the group has moved over it
        lose(parts, plan, str(error))
        return Replayed(plan)
    void = _void(parts, plan, newest, error)
    if isinstance(error, TopicChanged):
        raise error
    return Replayed(plan, void=void)


def _hand_out(parts: Parts, plan: Plan, newest: Settlement) -> bool:
    """At most once: claim, commit, start. Whether this process may call the handler."""
    refuse_retries(plan)
    claim(parts, plan, newest)
    return start(parts, plan)


def _void(parts: Parts, plan: Plan, newest: Settlement, error: Exception) -> str:
    # If another run has stored these outcomes meanwhile, the range was handled after all: settle it, don't void it.
    if not parts.store.has_outcomes(plan.turn):
        void_turn(parts, plan, newest, str(error))
    return str(error)


def check_ranges(parts: Parts, plan: Plan, after: bool = False) -> None:
    """That every planned range is in the log, of the topic that was planned, and in the log that was planned.

    Asked before reading because Spark waits two minutes for offsets that never come; the topic ids and the leaders'
    epochs again afterwards. An epoch that is the planned one before and after was so in between, for epochs only grow;
    where it is another, that leader must have the planned one's log up to the end of the plan, retries included. What
    was cut above the settled state is planned again; plan says where it was cut below. Raises RangeGone, TopicChanged.
    """
    wanted = {tp: one for tp, one in plan.partitions.items() if not one.empty}
    _check_topics(parts, plan, wanted)
    logs = parts.cluster.bounds(wanted)
    if not after:
        _check_bounds(wanted, logs)
    for tp, end in cut(parts, {tp: (one.fresh.end, one.log.leader_epoch) for tp, one in wanted.items()}, logs).items():
        left = "nothing is known to be left" if end is None else f"only what is below {end} is left"
        raise RangeGone(
            f"{tp} was truncated below the planned end {wanted[tp].fresh.end} while {plan.turn} was under way "
            f"({left}); the turn is void",
            topic=tp.topic,
            partition=tp.partition,
            offset=end,
        )


def _check_topics(parts: Parts, plan: Plan, wanted: Mapping[TopicPartition, PlannedPartition]) -> None:
    topics = parts.cluster.topics(sorted({tp.topic for tp in wanted}))
    for tp, one in wanted.items():
        found = topics.get(tp.topic)
        if found is None or found.topic_id != one.topic_id or tp.partition not in found.partitions:
            raise TopicChanged(
                f"{tp} was deleted or created again while {plan.turn} was under way; the turn is void, nothing "
                f"of it counts",
                topic=tp.topic,
                partition=tp.partition,
            )


def _check_bounds(wanted: Mapping[TopicPartition, PlannedPartition], logs: Mapping[TopicPartition, LogBounds]) -> None:
    for tp, log in logs.items():
        fresh = wanted[tp].fresh
        if fresh and log.end < fresh.end:
            raise TopicChanged(
                f"{tp} ends at {log.end}, below the planned end {fresh.end}: it was truncated or recreated; "
                f"the turn is void",
                topic=tp.topic,
                partition=tp.partition,
                offset=log.end,
            )
        if fresh and log.start > fresh.start:
            raise RangeGone(
                f"{tp}: the log starts at {log.start}, above the planned start {fresh.start}; the turn is void",
                topic=tp.topic,
                partition=tp.partition,
                offset=fresh.start,
            )


def _run(
    parts: Parts,
    plan: Plan,
    spark: "Callable[[], SparkSession]",
    on_progress: Progress | None,
    because: str = "",
) -> "ReplayResult":
    parts.store.outcomes.create()
    return parts.run_job(spark, job_of(parts, plan, because), on_progress)


def _because(parts: Parts, plan: Plan, newest: Settlement) -> str:
    """Why the handler is to be isolated although its pipeline does not ask for it; empty where it is not.

    A claimed plan is started once and never again, so there is nothing to count.
    """
    if parts.pipeline.guarantee == "at_most_once":
        return ""
    if parts.store.store_try(plan) > TRIES_COUNTED:
        return f"started {TRIES_COUNTED} times without outcomes"
    for tp, one in plan.partitions.items():
        pending = newest.partitions[tp].state.pending if tp in newest.partitions else ()
        killers = [OffsetRange(run.start, run.end) for run in pending if run.value.error_class in _ISOLATES]
        if count(subtract(one.retries, killers)) < count(one.retries):
            return "it tries a record again that has killed or hung its process"
    return ""


def job_of(parts: Parts, plan: Plan, because: str = "") -> "ReplayJob":
    """The plan as the Spark adapter takes it; `because` says why the handler is isolated unasked."""
    from ackline.spark.job import ReplayJob

    turn = plan.turn
    code = [name for name, value in parts.kafka.items() if callable(value)]
    if code:
        raise ConfigError(f"the Kafka connection has a callback ({', '.join(code)}); Spark's executors can't call it")
    java_properties(parts.kafka)  # refuses what Spark's own client could not be told
    return ReplayJob(
        pipeline=turn.pipeline,
        lane=turn.lane,
        epoch=turn.epoch,
        turn=turn.n,
        run_id=parts.run_id,
        plan_date=plan_date(plan.planned_at),
        fresh={tp: one.fresh for tp, one in plan.partitions.items() if one.fresh},
        retries={tp: one.retries for tp, one in plan.partitions.items() if one.retries},
        handler=parts.pipeline.handler,
        isolation=plan.isolation,
        kafka={name: str(value) for name, value in parts.kafka.items()},
        deliver_tombstones=parts.pipeline.tombstones == "deliver",
        on_failure=Outcome.FAILED if parts.pipeline.guarantee == "at_least_once" else Outcome.DROPPED,
        outcomes_root=parts.store.outcomes.uri,
        now=parts.fixed_now,
        once=parts.pipeline.guarantee == "at_most_once",
        max_rate=parts.pipeline.max_rate,
        record_outcomes=keeps_rows(parts, plan),
        isolated=parts.pipeline.isolated or bool(because),
        because="" if parts.pipeline.isolated else because,
        record_timeout=parts.pipeline.record_timeout.total_seconds() if parts.pipeline.record_timeout else None,
        translation=parts.translation,
    )


def report(parts: Parts, plan: Plan, result: "ReplayResult") -> Report:
    """What the tasks say of the turn, to be stored with its outcomes."""
    counts = {tp: {outcome.value: rows for outcome, rows in one.items()} for tp, one in result.counts.items()}
    return Report(counts, result.fetches, keeps_rows(parts, plan))


def add_actions(plan: Plan, result: "ReplayResult") -> list[AddAction]:
    """The files that the tasks have written, as entries of the Delta log."""
    values: Mapping[str, str | None] = {
        "pipeline": plan.turn.pipeline,
        "plan_date": plan_date(plan.planned_at).isoformat(),
    }
    return [AddAction(f.path, f.size, values, f.modification_time, True, f.stats) for f in result.files]
