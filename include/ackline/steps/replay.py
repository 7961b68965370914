"""replay: reads exactly the offsets of the open plan, handles them, and stores the outcomes in one fenced commit.

Only its write of outcomes n counts. It is made for zero rows too, and it is the only proof that the whole range was
handled: neither the exit status of a process nor the state of an Airflow task proves that (S8). A crash before it
costs the work and nothing else: no log entry names the files that the tasks have written, so they are invisible, and
the range is replayed. After it, a repeat finds the number taken and adds nothing (I9, I11).

Under at most once, the claim and the start marker come before the first handler call (lane/claim.py).
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from deltalake.transaction import AddAction

from ackline.errors import ConfigError, RangeGone, TopicChanged, TransientError
from ackline.kafka.config import inlined_certificates, java_properties
from ackline.kafka.registry import check_registry
from ackline.lane.adapters import Adapters, Progress
from ackline.lane.claim import (
    advises_void_if_file_changed,
    check_not_voided,
    claim,
    close_if_waived,
    record_lost,
    refuse_retries,
    retry_report,
    take_start_marker,
    void_turn,
    waive,
)
from ackline.lane.log_checks import check_planned_ranges, without_leader
from ackline.lane.plans import check_open_plan_settings
from ackline.lane.spans import Note, span
from ackline.lane.ways_out import advises_void, void_advice
from ackline.ledger.answers import TokenSigner
from ackline.ledger.copies import Rescued
from ackline.ledger.metrics import TurnReport
from ackline.ledger.offsets import TopicPartition, arrays_of
from ackline.ledger.order import Order, Waiting, waiting_behind
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.pending import NOTHING_PENDING
from ackline.ledger.turns import Marker, MarkerKind, Plan, Settlement
from ackline.outputs.checks import output_targets
from ackline.outputs.publish import publish_settled
from ackline.outputs.staged import store_manifest
from ackline.pipeline.pipeline import TurnSettings
from ackline.tables.schemas import plan_date
from ackline.tables.store import COUNTED_STARTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackline.spark.job import ReplayResult
    from ackline.worker.settings import OutputTargets, ReplayJob, ReplaySettings


def job_of(adapters: Adapters, plan: Plan) -> "ReplayJob":
    """Returns the plan as a job of the Spark adapter, with the isolation of the handler that the pipeline file sets.

    Raises ConfigError for Kafka properties that Spark's own client can't use.
    """
    from ackline.worker.files import OutcomeTarget
    from ackline.worker.settings import KafkaSettings, ReplayJob

    code = [name for name, value in adapters.kafka.items() if callable(value)]
    if code:
        raise ConfigError(f"the Kafka connection has a callback ({', '.join(code)}); Spark's executors can't call it")
    java_properties(adapters.kafka)  # raises ConfigError for a property that has no name in Java
    return ReplayJob(
        target=OutcomeTarget(adapters.store.outcomes.uri, plan.turn, plan_date(plan.planned_at), adapters.run_id),
        settings=replay_settings(
            adapters,
            TurnSettings(plan.settings).keeps_outcome_rows,
            output_targets(adapters, plan),
            _token_signer(adapters, plan),
        ),
        # Tasks of another machine have none of the driver's files.
        kafka=KafkaSettings(
            inlined_certificates({name: str(value) for name, value in adapters.kafka.items()}), plan.isolation
        ),
        fresh={tp: planned.fresh for tp, planned in plan.partitions.items() if planned.fresh},
        retries={tp: planned.retries for tp, planned in plan.partitions.items() if planned.retries},
        max_rate=adapters.pipeline.max_rate,
        max_clock_skew=adapters.pipeline.spark.max_clock_skew.total_seconds(),
    )


def _waiting(plan: Plan, newest: Settlement) -> dict[TopicPartition, Waiting]:
    """Returns what holds back the records of each partition that the turn reads: all that is pending there and that the
    turn leaves. Empty without an order."""
    order = TurnSettings(plan.settings).order
    if order is Order.NONE:
        return {}
    pending = {tp: newest.partitions[tp].state.pending for tp, planned in plan.partitions.items() if not planned.empty}
    left = {tp: runs.minus(arrays_of(plan.partitions[tp].retries)) for tp, runs in pending.items() if runs}
    return {tp: waiting_behind(runs, order) for tp, runs in left.items()}


def _rescued(plan: Plan, newest: Settlement) -> dict[TopicPartition, Rescued]:
    """Returns the copies of the records that the turn tries again, as the settlement before it has stored them."""
    lane = {tp: newest.partitions[tp].state.copies for tp in plan.partitions if tp in newest.partitions}
    copies = {tp: of.within(arrays_of(plan.partitions[tp].retries)) for tp, of in lane.items() if len(of)}
    return {tp: Rescued(plan.partitions[tp].topic_id, of) for tp, of in copies.items() if len(of)}


def replay_settings(
    adapters: Adapters, keeps_rows: bool, outputs: "OutputTargets | None", tokens: TokenSigner | None
) -> "ReplaySettings":
    """Returns how the tasks of the pipeline handle records; `keeps_rows` is whether each outcome becomes a row."""
    from ackline.worker.settings import ReplaySettings

    pipeline, timeout = adapters.pipeline, adapters.pipeline.record_timeout
    return ReplaySettings(
        handler=pipeline.handler,
        deliver_tombstones=pipeline.tombstones == "deliver",
        on_failure=Outcome.FAILED if pipeline.guarantee.retries else Outcome.DROPPED,
        now=adapters.fixed_now,
        not_before=adapters.now(),
        once=pipeline.guarantee.claims,
        record_outcomes=keeps_rows,
        isolated=pipeline.isolated,
        isolated_for_timeout=pipeline.isolated and pipeline.handler_isolation == "none",
        record_timeout=timeout.total_seconds() if timeout else None,
        order=pipeline.order,
        concurrency=pipeline.concurrency,
        translation=adapters.translation,
        store_options=adapters.store.storage_options() or None,
        topology=pipeline.topology,
        tracking=pipeline.tracking,
        outputs=outputs,
        debug_sample=pipeline.debug.sample if pipeline.debug else None,
        key_hash_secret=adapters.key_hash_secret,
        tokens=tokens,
        in_flight_timeout=pipeline.in_flight.timeout,
    )


def _token_signer(adapters: Adapters, plan: Plan) -> TokenSigner | None:
    """Returns what makes the tokens of the turn: the first key signs. None if the turn has no ack topic, or the
    connection no key.

    The plan decides whether there is an ack topic, and not the file: settle reads the answers of a turn by its plan.
    """
    if plan.ack_position is None or adapters.token_keys is None:
        return None
    topic_ids = {tp: planned.topic_id for tp, planned in plan.partitions.items()}
    return TokenSigner(adapters.token_keys[0], adapters.store.ledger_id(), plan.turn, topic_ids)


def why_isolate(starts: int, plan: Plan, newest: Settlement) -> str:
    """Returns why the handler is isolated without `handler_isolation: process` in the file; empty if it is not."""
    if starts > COUNTED_STARTS:
        return f"started {COUNTED_STARTS} times without outcomes"
    for tp, planned in plan.partitions.items():
        pending = newest.partitions[tp].state.pending if tp in newest.partitions else NOTHING_PENDING
        killers = pending.where(lambda state: state.error_class == ErrorClass.WORKER_LOST)
        if killers.within(arrays_of(planned.retries)):
            return "it tries a record again that has killed its process"
    return ""


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What this process did: handler calls made, and records fetched to find the retries.

    `void` is the reason why the turn was closed as void; None if it was not. `plan` is None if there was no open plan.
    """

    plan: Plan | None
    calls: int = 0
    fetched_for_retries: int = 0
    void: str | None = None


def replay(adapters: Adapters, spark: "Callable[[], SparkSession]", on_progress: Progress | None = None) -> Replayed:
    """Carries out the lane's open plan, if its outcomes are not stored yet. Starts Spark only if there is something to
    read.

    If another process holds the lease of the turn, this one first waits until that ends. A plan whose range is no
    longer in the log is closed by a void settlement, and the next turn plans again. Raises TopicChanged, ConfigError,
    TransientError and FatalError.
    """
    newest, plan = adapters.newest_and_open_plan()
    if newest is None or plan is None or adapters.store.has_outcomes(plan.turn):
        return Replayed(plan)
    if plan.empty:
        # Zero rows are proof too: without this commit, an empty turn would look like one that never ran.
        adapters.store.store_outcomes(plan.turn, [])
        return Replayed(plan)
    # The lease spares a second run the work that the first one does. It proves nothing: all that follows is safe beside
    # another process that replays the same turn.
    with adapters.lease.held(plan.turn) if adapters.lease is not None else nullcontext(False) as waited:
        if waited:  # the run that held the lease may have got as far as its outcomes, or the settlement
            _, still_open = adapters.newest_and_open_plan()
            if still_open is None or still_open.turn != plan.turn or adapters.store.has_outcomes(plan.turn):
                return Replayed(plan)
        with span(adapters, "replay", plan.turn) as note:
            note(**({"code": code} if (code := adapters.code()) else {}))
            return _replay_open_plan(adapters, plan, newest, spark, on_progress)


def _replay_open_plan(
    adapters: Adapters,
    plan: Plan,
    newest: Settlement,
    spark: "Callable[[], SparkSession]",
    on_progress: Progress | None,
) -> Replayed:
    once, of_file, spark = adapters.pipeline.guarantee.claims, adapters, cache(spark)
    with ExitStack() as opened:
        with span(adapters, "replay.prepare", plan.turn):
            adapters, job, error = _prepare(of_file, plan, newest, spark, opened)
        if once and not _claim_or_waive(adapters, plan, newest, error):
            return _close_waived_turn(adapters, plan, newest, error)
        # A claimed plan goes through the start marker although it can't be read, so that one process alone decides that
        # it is lost.
        if (once and not take_start_marker(adapters, plan)) or job is None:
            return Replayed(plan)
        # Under at most once, nothing stands between the marker and Spark: what fails here costs the range of the turn.
        result: ReplayResult | RangeGone | TopicChanged
        try:
            with advises_void(plan.turn), span(adapters, "replay.job", plan.turn) as note:
                result = error or adapters.run_job(spark, job, on_progress)
                if not isinstance(result, RangeGone | TopicChanged):
                    _note_job(note, result)
        except (RangeGone, TopicChanged) as gone:
            result = gone
    with span(adapters, "replay.store", plan.turn):
        return _report(adapters, plan, newest, job, result)


def _note_job(note: Note, result: "ReplayResult") -> None:
    """Adds to a span what the tasks of a job did: records, and the seconds that all tasks together waited for records
    and spent in steps."""
    note(
        handler_calls=result.calls,
        fetched_for_retries=result.fetched_for_retries,
        fetches=sum(waited.count for waited in result.fetches.values()),
        fetch_seconds=round(sum(waited.seconds for waited in result.fetches.values()), 6),
        files=len(result.files),
    )
    for outcome in Outcome:
        if number := sum(counts.get(outcome, 0) for counts in result.counts.values()):
            note(**{outcome.value: number})
    for name, done in result.steps.steps.items() if result.steps is not None else ():
        note(**{f"step.{name}.executed": done.executed, f"step.{name}.seconds": done.execute.total / 1e9})


def _prepare(
    of_file: Adapters, plan: Plan, newest: Settlement, spark: "Callable[[], SparkSession]", opened: ExitStack
) -> tuple[Adapters, "ReplayJob | None", RangeGone | TopicChanged | None]:
    """Returns the adapters of the turn, the job that is ready to be handed out, and why its range can't be read. What
    the job needs until it has ended is `opened`.

    All that may refuse the job or fail is done here, before the claim. Under at most once a claimed turn is handed out
    once or lost, so a registry that is away, a table that can't be written or a setting that Spark refuses would cost
    the whole range. The job is None for a turn at most once that was started already: nothing that refuses a job may
    keep another process from storing it as lost.
    """
    from ackline.worker.settings import FIRST_UNREADABLE

    check_open_plan_settings(of_file, plan)
    adapters, once = of_file, of_file.pipeline.guarantee.claims
    started = once and adapters.store.has_start_marker(plan.turn)
    job = None
    if not started:
        with advises_void_if_file_changed(of_file, plan):
            adapters = of_file.of_turn(plan)
            check_registry(adapters.translation)
            job = job_of(adapters, plan)
    error = _range_error(adapters, plan)
    if job is None or error is not None:
        return adapters, job, error
    # The first offset of each partition whose timestamp Spark's source can't read, where the log has one.
    first = adapters.cluster.offsets_since(job.fresh, FIRST_UNREADABLE)
    exact_from = {tp: offset for tp, offset in first.items() if offset is not None}
    # Of the turn before alone, which is at hand: a guess at how large the trees are.
    tuples = newest.steps.tuples_a_record if newest.steps is not None else None
    job = replace(
        job, exact_from=exact_from, tuples_a_record=tuples, waiting=_waiting(plan, newest),
        kafka=replace(job.kafka, rescued=_rescued(plan, newest)),
    )  # fmt: skip
    adapters.store.outcomes.create()
    with advises_void(plan.turn), advises_void_if_file_changed(of_file, plan):
        adapters.check_job(spark, job)
    # The start is counted before a record is handed out: one that takes this process down with it must be counted too.
    # A Spark that does not start is no handler's doing, and isolation would not help. At most once counts no start: a
    # claimed plan is started once and never again.
    starts = 0 if once else adapters.store.count_start(plan)
    if starts > COUNTED_STARTS:  # a handler that kills each driver leaves no error that could name the way out
        log.warning("%s has started %d times without outcomes. %s", plan.turn, starts - 1, void_advice(plan.turn))
    for_timeout = job.settings.isolated_for_timeout
    if (for_timeout or not job.settings.isolated) and (reason := why_isolate(starts, plan, newest)):
        job = replace(job, settings=replace(job.settings, isolated=True), isolation_reason=reason)
    if once:
        job = replace(job, folder=opened.enter_context(adapters.task_folder(plan.turn)))
    return adapters, job, None


def _report(
    adapters: Adapters,
    plan: Plan,
    newest: Settlement,
    job: "ReplayJob",
    result: "ReplayResult | RangeGone | TopicChanged",
) -> Replayed:
    """Stores outcomes n. Under at most once the records are handled by now, and what is not reported is lost: so each
    call of an adapter is repeated here for as long as `retry_report` does."""
    if not isinstance(result, RangeGone | TopicChanged):
        try:
            # Spark reads by topic name and offset. A topic that was created again under the reader, or a log that was
            # truncated, has given other records at the same offsets, and the job succeeds all the same.
            retry_report(adapters, partial(check_planned_ranges, adapters, plan, after=True))
        except (RangeGone, TopicChanged) as gone:
            result = gone
    if isinstance(result, RangeGone | TopicChanged):
        return _close_unreadable_turn(adapters, plan, newest, result)
    execution = retry_report(adapters, partial(store_manifest, adapters, plan, job, result))
    files, report = add_actions(plan, result), task_report(adapters, plan, result)
    if retry_report(adapters, partial(adapters.store.store_outcomes, plan.turn, files, report, execution)):
        adapters.notify("handled", plan.turn, result.counts)
    return Replayed(plan, result.calls, result.fetched_for_retries)


def _range_error(adapters: Adapters, plan: Plan) -> RangeGone | TopicChanged | None:
    try:
        check_planned_ranges(adapters, plan)
    except (RangeGone, TopicChanged) as error:
        return error
    except TransientError as error:
        # A partition that had a leader when it was planned may never get one again.
        if without_leader(adapters, (tp for tp, planned in plan.partitions.items() if not planned.empty)):
            error.add_advice(void_advice(plan.turn))
        raise
    return None


def _claim_or_waive(
    adapters: Adapters, plan: Plan, newest: Settlement, range_error: RangeGone | TopicChanged | None
) -> bool:
    """Claims a plan that can be read, and waives one that can't be. Returns whether the plan is claimed.

    Both take the same number. So if another process reads the range that this one finds gone, either it has claimed the
    turn, and its report counts, or it finds the turn waived, and calls no handler.
    """
    refuse_retries(plan)
    waiver = Marker(MarkerKind.WAIVER, adapters.run_id, adapters.now(), adapters.actor, str(range_error))
    if range_error is not None and waive(adapters, plan, waiver):
        return False
    return claim(adapters, plan, newest, publish_settled)


def _close_waived_turn(
    adapters: Adapters, plan: Plan, newest: Settlement, range_error: RangeGone | TopicChanged | None
) -> Replayed:
    """Closes a turn that may not be handed out. Raises TopicChanged if the next turn could not be carried out either,
    and TurnVoided if an operator has waived the turn."""
    waiver = adapters.store.waiver_of(plan.turn)
    if waiver is None:  # the turn is over: another process has closed it and begun the next one
        return Replayed(plan)
    close_if_waived(adapters, plan, newest)
    check_not_voided(adapters, plan.turn)
    if isinstance(range_error, TopicChanged):
        raise range_error
    return Replayed(plan, void=waiver.reason)


def _close_unreadable_turn(
    adapters: Adapters, plan: Plan, newest: Settlement, error: RangeGone | TopicChanged
) -> Replayed:
    """Closes a turn that can't be carried out. Raises TopicChanged if the next turn could not be carried out either."""
    if adapters.store.has_claim(plan.turn):  # a claimed turn is never void: the group has moved over it
        record_lost(adapters, plan, str(error))
        return Replayed(plan)
    # Another run may have read the range before it was gone, and stored its outcomes. A void settlement would make them
    # ineffective, and the next turn would record handled records as expired.
    if not adapters.store.has_outcomes(plan.turn):
        void_turn(adapters, plan, newest, str(error))
    check_not_voided(adapters, plan.turn)
    if isinstance(error, TopicChanged):
        raise error
    return Replayed(plan, void=str(error))


def task_report(adapters: Adapters, plan: Plan, result: "ReplayResult") -> TurnReport:
    """Returns the counts and times that the tasks report; replay stores them in the commit of the outcomes."""
    counts = {
        tp: {outcome.value: rows for outcome, rows in by_outcome.items()} for tp, by_outcome in result.counts.items()
    }
    recorded = TurnSettings(plan.settings).keeps_outcome_rows
    return TurnReport(
        counts, result.fetches, recorded, result.steps, 0 if recorded else result.unacked, adapters.code()
    )


def add_actions(plan: Plan, result: "ReplayResult") -> list[AddAction]:
    """Returns the files that the tasks have written, as entries of the Delta log."""
    values: Mapping[str, str | None] = {"plan_date": plan_date(plan.planned_at).isoformat()}
    return [AddAction(f.path, f.size, values, f.modification_time, True, f.stats) for f in result.files]
