"""Where a pipeline is: its newest settlement, compared with the present logs and commits of the broker.

The status of a partition, of a topic and of a whole pipeline are JSON objects: `ackline status` prints them, and
Airflow's metrics are made of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from ackline.actions.objects import JsonObject, OpenTransactionObject, Time, missing_keys
from ackline.errors import AcklineError
from ackline.lane.adapters import Adapters
from ackline.lane.commit import claimed_floors
from ackline.lane.log_checks import KafkaView, observe_kafka
from ackline.lane.plans import lane_ranges
from ackline.lane.turn_metrics import expiries_without_copies, first_times
from ackline.lane.ways_out import StandsStill
from ackline.ledger.explain import Apart, HeldBy, OpenTransaction, apart, held_by
from ackline.ledger.fold import PendingKind
from ackline.ledger.metrics import (
    FETCH_MAX,
    FETCH_MEAN,
    FETCHES,
    TOTALS,
    StepFigures,
    due_retries,
    lag_seconds,
    oldest_pending,
    steps_json,
)
from ackline.ledger.offsets import TopicPartition, count
from ackline.ledger.planning import NO_LEADER, PARKED, PAUSED
from ackline.ledger.states import PartitionFacts, Signals, State, is_behind, state_of
from ackline.ledger.turns import Plan, SettledPartition, Settlement, TurnId
from ackline.pipeline.warnings import overdue_at
from ackline.steps.plan import preview_lane
from ackline.tables.layout import holder_of
from ackline.tables.lease import Holder

MISSING, CREATED_AGAIN, TRUNCATED, LET_GO = "missing", "created again", "truncated", "let go"
"""Why a run stops at a partition: it is gone; its topic was created again; its log ends below what was read. Or why it
passes over one: an operator has let it go."""
_STOPPED = (MISSING, CREATED_AGAIN, TRUNCATED)


class _WithTotals(JsonObject):
    """An object whose `totals` have a key for each outcome."""

    @model_serializer(mode="wrap")
    def _keys(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        for key, value in values(self).items():
            keys |= value if key == "totals" else {key: value}
        return keys


class PartitionStatus(_WithTotals):
    """One partition.

    `floor` is that of the newest settlement or claim; every offset below `read` was read and handled. `lag` is
    `log_end - floor`, in offsets. What an open transaction holds back above the readable `log_end` is no part of it,
    but a lag of its own: `open_transaction`, None without one and in the lane of a backfill. `lag_seconds` is the age
    of the record at the floor, or of the first one above it that retention has left: 0 if nothing waits, None if the
    broker has no time for it. All are None if there is no log to compare with. `due` counts retries that are due now.
    `oldest_pending_at` is the time of the record at the lowest pending offset; None if retention took it. `totals` are
    the offsets of the epoch by outcome, and `retries`. The fetch values are those of the last turn that read from the
    partition. `why` is the reason for which runs leave the partition alone (paused, no longer subscribed, no leader) or
    stop at it (missing, created again, truncated); None if there is none. `state` is how the partition is
    (`ackline.ledger.states`); `failing_share` is the share of the last new records that failed, None if no turn has met
    any. `retention_eta` is when retention may take the first record that is not settled and has no copy in the rescue
    topic; `rescued` counts the pending records that have one, and `released` those that do not hold the floor.
    """

    lane: str
    epoch: int
    topic: str
    partition: int
    log_start: int | None
    log_end: int | None
    committed: int | None
    floor: int
    complete_to: int
    pending: Mapping[PendingKind, int]
    next_due: Time | None
    lag: int | None
    lag_seconds: float | None
    read: int
    due: int
    oldest_pending_offset: int | None
    oldest_pending_at: Time | None
    totals: Mapping[str, int]
    fetches: int | None
    fetch_seconds_mean: float | None
    fetch_seconds_max: float | None
    state: State
    failing_share: float | None
    retention_eta: Time | None
    high_watermark: int | None
    open_transaction: OpenTransactionObject | None
    rescued: int
    released: int
    why: str | None = None
    floor_since: datetime | None = Field(default=None, exclude=True)
    """Since when the floor has not moved, though records wait above it."""
    unsettled_since: datetime | None = Field(default=None, exclude=True)
    """The time of the record at the floor, or of the first one above it that retention has left."""
    first_at_risk: int = Field(exclude=True)
    """The lowest offset that is not settled and has no copy in the rescue topic."""
    held_by: HeldBy | None = Field(default=None, exclude=True)
    """The pending offset that holds the floor; None if none does, and under the claim of an open turn."""
    apart: Apart | None = Field(default=None, exclude=True)
    """The pending records that do not hold the floor."""


class TopicStatus(_WithTotals):
    """All partitions of a topic: sums, and the maximum or minimum of values that can't be added.

    A value is None if it is unknown for every partition.
    """

    topic: str
    partitions: int
    log_start: int | None
    log_end: int | None
    committed: int | None
    floor: int
    read: int
    pending: Mapping[PendingKind, int]
    due: int
    oldest_pending_at: Time | None
    lag: int | None
    lag_seconds: float | None
    totals: Mapping[str, int]
    fetches: int | None
    fetch_seconds_max: float | None
    high_watermark: int | None
    open_transaction: OpenTransactionObject | None
    rescued: int
    released: int


def status(adapters: Adapters) -> list[PartitionStatus]:
    """Returns the status of every partition of the lane, and of those that would join it now; stores nothing."""
    return status_and_missing(adapters)[0]


def status_and_missing(adapters: Adapters, reads_broker: bool = True) -> tuple[list[PartitionStatus], tuple[str, ...]]:
    """Returns the status of every partition, and what the file names and the broker does not have.

    Without `reads_broker` it is what the tables hold: nothing of the logs and of the group is known.
    """
    newest = adapters.store.newest()
    view = observe_kafka(adapters, newest, stable=False) if reads_broker else _unobserved(newest)
    lane = preview_lane(adapters, newest, view) if reads_broker else dict(newest.partitions if newest else {})
    # The group is committed to what a claim has set while its turn is under way.
    plan = adapters.store.open_plan(newest) if newest and adapters.pipeline.guarantee.claims else None
    floors = {tp: settled.state.floor for tp, settled in lane.items()} | (
        claimed_floors(adapters, plan) if plan else {}
    )
    chosen = lane_ranges(adapters, newest.turn.epoch) if newest else None
    # In a topic that was created again, the lane's offsets mean nothing: there is no lag.
    logs = {
        # A backfill is not behind the log's end: it reads what was chosen.
        tp: log.read_to(row.state.complete_to) if chosen is None else log._replace(open_transaction=0)
        for tp, row in lane.items()
        if (log := view.bounds.get(tp)) is not None and view.topic_ids.get(tp.topic) == row.topic_id
    }
    times = first_times(adapters, logs, floors)
    states = {tp: row.state for tp, row in lane.items()}
    expiries = expiries_without_copies(adapters, states, logs, times.unsettled)
    now, partitions = adapters.now(), []
    overdue = None if newest is None else overdue_at(adapters.pipeline.schedule, newest.settled_at)
    for tp, settled in sorted(lane.items()):
        log, same_log = view.bounds.get(tp), logs.get(tp)
        is_known = same_log is not None and floors[tp] <= same_log.end
        committed = view.committed.get(tp)
        oldest, metrics = oldest_pending(settled.state), settled.metrics or {}
        why, signals = _why(adapters, tp, settled, view, reads_broker), Signals.of(settled.metrics)
        lag, pending = same_log.end - floors[tp] if same_log else None, settled.state.pending_by_kind()
        first_at = times.unsettled.get(tp)
        held = None
        if same_log is not None and same_log.open_transaction:
            held = OpenTransaction(times.open_since.get(tp), same_log.open_transaction)
        facts = PartitionFacts(
            settled.state.first_without_copy if settled.state.pending else floors[tp],
            lag if chosen is None else settled.state.unsettled_in(chosen[tp]), log.start if log else None,
            sum(pending.values()),
            undelivered=pending[PendingKind.DEAD_LETTER],
            paused=why in (PAUSED, PARKED, LET_GO), stands_still=why in _STOPPED,
            expired=bool(settled.counts.get("expired")),
            signals=replace(signals, retention_at=expiries.get(tp)) if reads_broker else signals,
            is_overdue=overdue is not None and now > overdue,
            open_transaction=held.records if held is not None else 0,
        )  # fmt: skip
        partitions.append(
            PartitionStatus(
                lane=adapters.store.lane,
                epoch=newest.turn.epoch if newest else 0,
                topic=tp.topic,
                partition=tp.partition,
                log_start=log.start if log else None,
                log_end=(same_log or log).end if log else None,
                committed=committed.offset if committed else None,
                floor=floors[tp],
                complete_to=settled.state.complete_to,
                pending=pending,
                next_due=settled.state.next_due,
                lag=lag,
                lag_seconds=lag_seconds(tp in times.unsettled, first_at, now) if is_known else None,
                read=settled.state.complete_to,
                due=due_retries(settled.state, now),
                oldest_pending_offset=oldest,
                oldest_pending_at=first_at
                if log and oldest is not None and oldest == max(floors[tp], log.start)
                else None,
                totals={word: (settled.totals or {}).get(word, 0) for word in TOTALS},
                fetches=int(metrics[FETCHES]) if FETCHES in metrics else None,
                fetch_seconds_mean=metrics.get(FETCH_MEAN),
                fetch_seconds_max=metrics.get(FETCH_MAX),
                state=state_of(facts, now),
                failing_share=signals.failing_share,
                floor_since=signals.floor_since,
                retention_eta=facts.signals.retention_at
                if facts.pending or is_behind(lag, facts.open_transaction) is not False
                else None,
                high_watermark=log.high_watermark if log else None,
                open_transaction=held,
                rescued=settled.state.copies.offsets,
                released=count(settled.state.released),
                first_at_risk=facts.first_at_risk,
                why=why,
                unsettled_since=first_at,
                held_by=held_by(settled.state) if floors[tp] == settled.state.floor else None,
                apart=apart(settled.state),
            )
        )
    return partitions, view.missing


def _unobserved(newest: Settlement | None) -> KafkaView:
    """Returns a view of the lane's topics of which nothing is known but their ids."""
    lane = newest.partitions if newest else {}
    return KafkaView({tp.topic: row.known_topic_id for tp, row in lane.items()}, dict.fromkeys(lane), {}, ())


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Why the broker of a lane was not read, and the turn whose state is shown instead; None if no turn is stored."""

    error: AcklineError
    turn: TurnId | None
    settled_at: datetime | None

    @classmethod
    def of(cls, adapters: Adapters, error: AcklineError) -> "Unreachable":
        """Returns it with the newest turn of the lane. Raises what reading the tables raises."""
        newest = adapters.store.newest()
        return cls(error, newest.turn if newest else None, newest.settled_at if newest else None)

    @property
    def text(self) -> str:
        """What a person reads before the state: what is shown, and what is missing."""
        error = f"{str(self.error).rstrip('.')}."
        error = error[0].upper() + error[1:]
        if self.turn is None or self.settled_at is None:
            return error
        return (
            f"{error} What is shown is the state that turn {self.turn.n} of epoch {self.turn.epoch} has stored at "
            f"{self.settled_at:%Y-%m-%d %H:%M:%S} UTC. The logs, the group's commits and the lag are not known."
        )


class UnreachableObject(JsonObject):
    """Why the broker of a lane was not read, and since when the state is stored that is shown instead."""

    error: str
    stored_at: Time | None

    @classmethod
    def of(cls, found: Unreachable | None) -> "UnreachableObject | None":
        """Returns it as an object."""
        return None if found is None else cls(error=str(found.error), stored_at=found.settled_at)


def _why(
    adapters: Adapters, tp: TopicPartition, settled: SettledPartition, view: KafkaView, reads_broker: bool
) -> str | None:
    """Returns why every plan would leave the partition alone, or stop at it; None if there is no such reason."""
    if not adapters.is_subscribed(tp):
        return PARKED
    if settled.let_go:
        return LET_GO
    log = view.bounds.get(tp)
    if reads_broker:
        if tp not in view.bounds:
            return MISSING
        if view.topic_ids[tp.topic] != settled.topic_id:
            return CREATED_AGAIN
        if log is not None and log.high_watermark < settled.state.complete_to:
            return TRUNCATED
    if settled.paused:
        return PAUSED
    return None if log or not reads_broker else NO_LEADER


def status_by_topic(partitions: Iterable[PartitionStatus]) -> list[TopicStatus]:
    """Returns a status for each topic of the given partitions, sorted by name."""
    by_topic: dict[str, list[PartitionStatus]] = {}
    for status in partitions:
        by_topic.setdefault(status.topic, []).append(status)
    return [_topic_status(topic, of_topic) for topic, of_topic in sorted(by_topic.items())]


def _topic_status(topic: str, partitions: list[PartitionStatus]) -> TopicStatus:
    def of_known(combine: Callable[[list[Any]], Any], name: str) -> Any:
        values = [value for each in partitions if (value := getattr(each, name)) is not None]
        return combine(values) if values else None

    sums = ("log_start", "log_end", "high_watermark", "committed", "floor", "read", "due", "lag", "fetches", "rescued",
            "released")  # fmt: skip
    highest = ("lag_seconds", "fetch_seconds_max")
    return TopicStatus(
        topic=topic,
        partitions=len(partitions),
        pending={kind: sum(each.pending[kind] for each in partitions) for kind in PendingKind},
        oldest_pending_at=of_known(min, "oldest_pending_at"),
        totals={word: sum(each.totals[word] for each in partitions) for word in TOTALS},
        open_transaction=all_open(each.open_transaction for each in partitions),
        **{name: of_known(sum, name) for name in sums},
        **{name: of_known(max, name) for name in highest},
    )


def all_open(found: Iterable[OpenTransactionObject | None]) -> OpenTransactionObject | None:
    """Returns what open transactions hold back together, since the oldest one began; None without one."""
    held = [each for each in found if each is not None]
    since = min((each.since for each in held if each.since is not None), default=None)
    return OpenTransactionObject(since=since, records=sum(each.records for each in held)) if held else None


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """The open turn of a lane. `holder` is the process that works on it; None if no process holds its lease."""

    plan: Plan
    holder: Holder | None


def open_turn_of(adapters: Adapters) -> OpenTurn | None:
    """Returns the turn of the lane that is planned and not settled, with the process that works on it."""
    _, plan = adapters.newest_and_open_plan()
    if plan is None:
        return None
    return OpenTurn(plan, holder_of(adapters.lease.file, plan.turn, adapters.lease.clock()) if adapters.lease else None)


class HolderObject(JsonObject):
    """The process that replays the open turn of a lane, as the lease beside the tables names it. `state` is `active`,
    `lapsed` if the lease was not renewed in time, or `ended` if the process is gone; `unrenewed_seconds` is how long
    ago the lease was renewed."""

    run_id: str
    host: str
    process: int
    since: Time
    unrenewed_seconds: float
    state: str

    @classmethod
    def of(cls, holder: Holder) -> "HolderObject":
        """Returns a holder as an object."""
        lease, unrenewed = holder.lease, round(holder.unrenewed.total_seconds(), 1)
        return HolderObject(
            run_id=lease.run_id, host=lease.host, process=lease.pid, since=lease.since, unrenewed_seconds=unrenewed,
            state=holder.state.value,
        )  # fmt: skip


class OpenTurnObject(JsonObject):
    """The open turn of a lane, with the process that works on it."""

    epoch: int
    turn: int
    kind: str
    planned_at: Time
    run_id: str
    actor: str
    holder: HolderObject | None

    @classmethod
    def of(cls, open_turn: OpenTurn) -> "OpenTurnObject":
        """Returns an open turn as an object."""
        plan, holder = open_turn.plan, open_turn.holder
        return OpenTurnObject(
            epoch=plan.turn.epoch, turn=plan.turn.n, kind=plan.kind.value, planned_at=plan.planned_at,
            run_id=plan.run_id, actor=plan.actor, holder=None if holder is None else HolderObject.of(holder),
        )  # fmt: skip


class StatusObject(JsonObject):
    """The status of a lane. Only a pipeline with steps or outputs has steps."""

    left_out = frozenset({"steps", "complete_latency_ms", "unreachable"})
    pipeline: str
    stands_still: StandsStill | None = None
    unreachable: UnreachableObject | None = None
    partitions: tuple[PartitionStatus, ...]
    topics: tuple[TopicStatus, ...]
    missing_topics: tuple[str, ...]
    missing_partitions: tuple[str, ...]
    steps: tuple[dict[str, Any], ...] | None = None
    complete_latency_ms: dict[str, float | None] | None = None
    open_turn: OpenTurnObject | None


def status_object(
    pipeline: str,
    partitions: Sequence[PartitionStatus],
    missing: Iterable[str],
    steps: StepFigures | None,
    open_turn: OpenTurn | None,
    standing: StandsStill | None = None,
    unreachable: Unreachable | None = None,
) -> StatusObject:
    """Returns the status of a lane, or of the chosen partitions of it, as an object."""
    return StatusObject(
        pipeline=pipeline,
        stands_still=standing,
        unreachable=UnreachableObject.of(unreachable),
        partitions=tuple(partitions),
        topics=tuple(status_by_topic(partitions)),
        **missing_keys(missing),
        **(steps_json(steps) if steps else {}),
        open_turn=OpenTurnObject.of(open_turn) if open_turn else None,
    )
