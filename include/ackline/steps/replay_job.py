"""A plan as a job of the Spark adapter: what it reads, which handler it calls, and whether it isolates the handler."""

from dataclasses import replace
from typing import TYPE_CHECKING

from ackline.audit.rows import plan_date
from ackline.audit.store import COUNTED_STARTS
from ackline.errors import ConfigError
from ackline.kafka.certificates import inlined_certificates
from ackline.kafka.java import java_properties
from ackline.offsets import TopicPartition, count, subtract
from ackline.outcome import ErrorClass, Outcome
from ackline.pending import PendingRuns, ranges_of
from ackline.steps.measure import keeps_outcome_rows
from ackline.steps.output_checks import output_targets
from ackline.steps.parts import Parts
from ackline.token import TokenSigner
from ackline.turns import Plan, Settlement

if TYPE_CHECKING:
    from ackline.spark.settings import ReplayJob, ReplaySettings

_ISOLATES = (ErrorClass.WORKER_LOST, ErrorClass.TIMEOUT)
"""Error classes of a last attempt after which the next attempt would take the whole task down again."""


def job_of(parts: Parts, plan: Plan) -> "ReplayJob":
    """Returns the plan as a job of the Spark adapter, with the isolation of the handler that the pipeline file sets.

    Raises ConfigError for Kafka properties that Spark's own client can't use.
    """
    from ackline.spark.output.outcome_files import OutcomeTarget
    from ackline.spark.settings import KafkaSettings, ReplayJob

    code = [name for name, value in parts.kafka.items() if callable(value)]
    if code:
        raise ConfigError(f"the Kafka connection has a callback ({', '.join(code)}); Spark's executors can't call it")
    java_properties(parts.kafka)  # raises ConfigError for a property that has no name in Java
    return ReplayJob(
        target=OutcomeTarget(parts.store.outcomes.uri, plan.turn, plan_date(plan.planned_at), parts.run_id),
        settings=_settings(parts, plan),
        # Tasks of another machine have none of the driver's files.
        kafka=KafkaSettings(
            inlined_certificates({name: str(value) for name, value in parts.kafka.items()}), plan.isolation
        ),
        fresh={tp: planned.fresh for tp, planned in plan.partitions.items() if planned.fresh},
        retries={tp: planned.retries for tp, planned in plan.partitions.items() if planned.retries},
        max_rate=parts.pipeline.max_rate,
    )


def _settings(parts: Parts, plan: Plan) -> "ReplaySettings":
    """Returns how the tasks handle the records of the plan."""
    from ackline.spark.settings import ReplaySettings

    pipeline, timeout = parts.pipeline, parts.pipeline.record_timeout
    return ReplaySettings(
        handler=pipeline.handler,
        deliver_tombstones=pipeline.tombstones == "deliver",
        on_failure=Outcome.FAILED if pipeline.guarantee == "at_least_once" else Outcome.DROPPED,
        now=parts.fixed_now,
        once=pipeline.guarantee == "at_most_once",
        record_outcomes=keeps_outcome_rows(parts, plan),
        isolated=pipeline.isolated,
        record_timeout=timeout.total_seconds() if timeout else None,
        translation=parts.translation,
        store_options=parts.store.storage_options() or None,
        topology=pipeline.topology,
        tracking=pipeline.tracking,
        outputs=output_targets(parts, plan),
        debug_sample=pipeline.debug.sample if pipeline.debug else None,
        key_hash_secret=parts.key_hash_secret,
        tokens=_token_signer(parts, plan),
        in_flight_timeout=pipeline.in_flight.timeout,
    )


def _token_signer(parts: Parts, plan: Plan) -> TokenSigner | None:
    """Returns what makes the tokens of the turn: the first key signs. None if the turn has no ack topic.

    The plan decides, not the file: settle reads the answers of a turn that was planned with an ack topic.
    """
    if plan.ack_position is None or parts.token_keys is None:
        return None
    topic_ids = {tp: planned.topic_id for tp, planned in plan.partitions.items()}
    return TokenSigner(parts.token_keys[0], parts.store.ledger_id(), plan.turn, topic_ids)


def unreadable_from(parts: Parts, job: "ReplayJob") -> dict[TopicPartition, int]:
    """Returns the first offset of each partition whose timestamp Spark's source can't read, where the log has one."""
    from ackline.spark.exact_fresh import FIRST_UNREADABLE

    first = parts.cluster.offsets_since(job.fresh, FIRST_UNREADABLE)
    return {tp: offset for tp, offset in first.items() if offset is not None}


def why_isolate(starts: int, plan: Plan, newest: Settlement) -> str:
    """Returns why the handler is isolated without `handler_isolation: process` in the file; empty if it is not."""
    if starts > COUNTED_STARTS:
        return f"started {COUNTED_STARTS} times without outcomes"
    for tp, planned in plan.partitions.items():
        pending = newest.partitions[tp].state.pending if tp in newest.partitions else ()
        killers = ranges_of(PendingRuns.of(pending).where(lambda state: state.error_class in _ISOLATES))
        if count(subtract(planned.retries, killers)) < count(planned.retries):
            return "it tries a record again that has killed or hung its process"
    return ""


def isolated_job(job: "ReplayJob", reason: str) -> "ReplayJob":
    """Returns the job with an isolated handler; unchanged without a reason, or if the file isolates the handler."""
    if not reason or job.settings.isolated:
        return job
    return replace(job, settings=replace(job.settings, isolated=True), isolation_reason=reason)
