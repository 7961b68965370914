"""The status of every pipeline, a line each: how it is, and why it is not up to date."""

from collections.abc import Sequence

from ackline.actions.objects import JsonObject, OpenTransactionObject, Time
from ackline.answers.status import PartitionStatus, Unreachable, all_open
from ackline.errors import counted
from ackline.lane.ways_out import StandsStill
from ackline.ledger.states import State, worst_state


class PipelineStatus(JsonObject):
    """One pipeline. `readable` is False if its file, its tables or its broker can't be read.

    `lag` is the sum, `lag_seconds` the highest of its partitions, `open_transaction` what open transactions hold back
    beside the lag; `problem` names why it is not up to date. What is not
    known is None: without a broker the lag, without tables everything.
    """

    pipeline: str
    state: State
    tags: tuple[str, ...] = ()
    readable: bool = True
    partitions: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    pending: int | None = None
    dead: int | None = None
    next_due: Time | None = None
    problem: str | None = None
    stands_still: StandsStill | None = None
    open_transaction: OpenTransactionObject | None = None


class OverviewObject(JsonObject):
    """The status of every pipeline, the worst first."""

    pipelines: tuple[PipelineStatus, ...]


def summary_of(
    pipeline: str,
    partitions: Sequence[PartitionStatus],
    missing: Sequence[str],
    standing: StandsStill | None = None,
    unreachable: Unreachable | None = None,
) -> PipelineStatus:
    """Returns the state of a pipeline, from that of its partitions; `missing` are topics that do not exist, `standing`
    is what the lane stands still for, `unreachable` is why its broker was not read."""
    state = worst_state(status.state for status in partitions)
    problem = next(filter(None, (_problem(status) for status in partitions if status.state is state)), None)
    if not partitions:
        problem = "has not run yet"
    if missing:
        state, problem = State.STUCK, f"{missing[0]} does not exist"
    if standing is not None:
        # An operator has paused what fails, too: both are said.
        problem = f"{problem}; {standing.sentence}" if problem and standing.is_pause else standing.sentence
        state = worst_state((state, State.STUCK)) if standing.stops_runs else state
    if unreachable is not None:
        stood = [standing.sentence] if standing is not None else []
        state, problem = worst_state((state, State.UNKNOWN)), "; ".join([*stood, str(unreachable.error)])
    lags = [status.lag for status in partitions if status.lag is not None]
    return PipelineStatus(
        pipeline=pipeline,
        state=state,
        readable=unreachable is None,
        partitions=len(partitions),
        lag=sum(lags) if lags else None,
        lag_seconds=max((age for status in partitions if (age := status.lag_seconds) is not None), default=None),
        pending=sum(sum(status.pending.values()) for status in partitions),
        dead=sum(status.totals["dead"] for status in partitions),
        next_due=min((status.next_due for status in partitions if status.next_due), default=None),
        problem=problem,
        stands_still=standing,
        open_transaction=all_open(status.open_transaction for status in partitions),
    )


def _problem(status: PartitionStatus) -> str | None:
    """Returns why a partition is in its state, as far as its figures say it."""
    tp, text = f"{status.topic}[{status.partition}]", status.why
    if text is None and status.state is State.LOSING:
        text = "retention is about to take records that are not settled"
        first = status.first_at_risk
        if status.log_start is not None and status.log_start > first:
            text = f"retention has taken records that were not settled, from offset {first} on"
        elif status.retention_eta is not None:
            text = f"retention may take offset {first} from {status.retention_eta:%Y-%m-%d %H:%M:%S} UTC on"
    elif text is None and status.state is State.STUCK:
        text = "dead letters are not acknowledged"  # without a floor that waits, if their records are released
        if status.floor_since is not None:
            text = f"the floor {status.floor} has not moved since {status.floor_since:%Y-%m-%d %H:%M:%S} UTC"
    elif text is None and status.state is State.FAILING:
        text = "records died in the last hour"
        if status.failing_share:
            text = f"{status.failing_share:.1%} of the last new records failed"
    if status.open_transaction is not None and status.log_end is not None:
        end, held = status.log_end, status.open_transaction
        held_back = f"a transaction is open at offset {end}: it holds back {counted(held.records, 'offset')}"
        text = f"{text}; {held_back}" if text else held_back
    return None if text is None else f"{tp}: {text}"
