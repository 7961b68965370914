"""Data intervals: which runs of `replay__NAME` replay one, in which backfill lane, and in which epoch of it.

`airflow backfill create`, or its page, makes runs of the type BACKFILL. Such a run leaves the live lane alone: it
replays its data interval in a backfill lane. A run of any other type takes a turn of the live lane, as ever.

Airflow creates one DAG run for an interval, and reprocesses it by clearing all tasks of that run. A task sees neither
the id of the backfill nor what was cleared. But the states of the other tasks are empty only if the whole run was
cleared, and the start of the run stays the same while Airflow retries the task, and changes when a finished run is
cleared. So a whole run over a settled lane begins an epoch, once, and a cleared task only resumes.

The task `plan` of such a run starts `backfill__NAME` and is deferred until that has ended, by the exception of the
provider's TriggerDagRunOperator. That operator itself does not fit: it can't decide on an epoch, it clears or refuses a
run that exists, and it takes the state of the started run for the result. Here each try of `plan` starts a run of its
own id, so that none is ever cleared while its driver works, and the tables alone decide whether the interval was
replayed. How a killed or cleared `plan` resumes:

- before the run of `backfill__NAME` exists: nothing was stored, and the next try decides again
- after that: the next try finds the epoch begun, or asks for the same one. The fence of the epoch's genesis lets one of
  the two begin it, and the other run goes on with it
- while it is deferred: Airflow's triggerer keeps the wait; a new triggerer takes it over
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    DagRunTriggerException,
    DownstreamTasksSkipped,
)

from ackline.airflow.backfill import BACKFILL_PREFIX, LISTED, REASON, shortened
from ackline.airflow.operators import PlanOperator, airflow_errors, opened, replays_interval
from ackline.errors import ConfigError
from ackline.forms.arguments import BackfillArguments, lane_of
from ackline.forms.form import RUN_FIELDS
from ackline.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from ackline.backfill.choose import Choice
    from ackline.backfill.run import Backfill
    from ackline.lane.adapters import Adapters

POLL_SECONDS = 5
"""Seconds between two looks of the triggerer at the state of the run of `backfill__NAME`."""
LIVE_PARAMS = ("max_records", "only_retries", "partitions", "table_gone")
"""The params of a run that are for a turn of the live lane."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A data interval; its end is exclusive."""

    start: datetime
    end: datetime

    @classmethod
    def of_run(cls, context: Context) -> "Interval":
        """Returns the data interval of a DAG run. Raises ConfigError if it has none, or an empty one."""
        run: Any = context["dag_run"]
        start, end = run.data_interval_start, run.data_interval_end
        if start is None or end is None or start >= end:
            raise ConfigError(f"the run {context['run_id']} has no data interval, so there is nothing to replay")
        return cls(start.astimezone(UTC), end.astimezone(UTC))

    @property
    def id(self) -> str:
        """The id of the interval's backfill. The same interval always has the same id, and no other one has it."""
        return "-".join(
            f"{time:%Y%m%dt%H%M%S}{f'{time:%f}' * bool(time.microsecond)}z" for time in (self.start, self.end)
        )

    @property
    def lane(self) -> str:
        """The lane of the interval's backfill."""
        return lane_of(self.id)

    @property
    def arguments(self) -> BackfillArguments:
        """What the backfill reads: the records that are stamped in the interval."""
        return BackfillArguments(since=self.start.isoformat(), until=self.end.isoformat())

    def __str__(self) -> str:
        return f"[{self.start.isoformat()}, {self.end.isoformat()})"


def run_prefix(interval: Interval, started: datetime) -> str:
    """Returns the beginning of the ids of the `backfill__NAME` runs that a DAG run of the interval starts.

    `started` is when the DAG run began. It differs between two DAG runs of an interval, of which a user has deleted the
    first, and between a run and the same run after it has ended and was cleared.
    """
    return f"interval__{interval.id}__{started.astimezone(UTC):%Y%m%dT%H%M%S.%f}__"


EPOCH = "epoch-"
"""The text before the epoch in the id of a run of `backfill__NAME`. `finish` reads from it the epoch that `start` has
chosen, because the epoch before it is settled, too."""


def epoch_to_run(newest: int | None, settled: bool, begun_by: Iterable[str], prefix: str, whole: bool) -> int | None:
    """Returns the epoch of a lane that a run of its interval begins or resumes; None if nothing is left to do.

    `newest` is the newest epoch, None if the lane has not begun, and `settled` whether it is settled. `begun_by` are
    the runs that have begun its epochs; `prefix` is that of this run (`run_prefix`).
    """
    if newest is None:
        return 0
    if not settled:
        return newest
    # An epoch that this run has begun is not followed by another: plan may be retried after the lane was settled.
    if not whole or any(run_id.startswith(prefix) for run_id in begun_by):
        return None
    return newest + 1


class IntervalPlanOperator(PlanOperator):
    """Plans a turn of the live lane. In a run of Airflow's own backfill it plans nothing: it starts a run of
    `backfill__NAME` for the interval's lane, and is deferred until that lane is settled."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Run plan, or start the replay of the interval."""
        if replays_interval(context):
            with airflow_errors():
                self.entered(context, RUN_FIELDS)
                IntervalPlan(self, self.pipeline, context).start()
        return super().execute(context)

    def execute_complete(self, context: Context, event: tuple[str, Mapping[str, Any]]) -> None:
        """End the task after its deferral: the run that replays the interval has ended."""
        with airflow_errors():
            IntervalPlan(self, self.pipeline, context).finish(event)


@dataclass(frozen=True, slots=True)
class IntervalPlan:
    """The task `plan` of one DAG run that replays its interval."""

    task: BaseOperator
    pipeline: Pipeline
    context: Context

    def start(self) -> NoReturn:
        """Starts the run of `backfill__NAME` and defers the task, unless nothing is left to replay.

        Raises DagRunTriggerException to start it, DownstreamTasksSkipped if nothing is left, and ConfigError for params
        that do not apply, for an interval that is too large to go unconfirmed, and if `backfill__NAME` is paused.
        """
        params = self.context.get("params") or {}
        if bound := next((name for name in LIVE_PARAMS if params.get(name)), None):
            raise ConfigError(
                f"{bound}: a data interval is replayed whole, so it does not apply to a run of Airflow's own backfill. "
                f"For a part of an interval trigger {BACKFILL_PREFIX}NAME, or use `ackline backfill`",
                key=bound,
            )
        with self._opened() as adapters:
            epoch = self._epoch(adapters)
            if epoch is None:
                self._end("nothing is left to replay: the lane is settled", adapters)
            stored = _find(adapters)
            begins = stored is None or stored.newest.turn.epoch < epoch
            offsets = self._offsets(adapters) if begins else None
            if offsets == 0:
                self._end(f"no log has a record of {self.interval}: nothing to replay", adapters)
        ti: Any = self.context["ti"]
        if ti.get_dag(self._dag_id).is_paused:
            raise ConfigError(
                f"the DAG {self._dag_id} is paused, so its run would wait for ever. Unpause it with `airflow dags "
                f"unpause {self._dag_id}`, and clear this task"
            )
        reads = self.interval.arguments
        values = {"id": self.interval.id, "from": reads.since, "to": reads.until, "epoch": epoch}
        # The number that was compared with `confirm_above` here: if the log has changed since, begin refuses another.
        confirmed = {"confirm": True, "confirm_offsets": offsets}
        reason = f"data interval of {self.task.dag_id}, run {self.context['run_id']}"
        raise DagRunTriggerException(
            trigger_dag_id=self._dag_id,
            dag_run_id=f"{self._prefix}{EPOCH}{epoch}__{ti.try_number}",
            conf={**values, **confirmed, "reason": reason},
            reset_dag_run=False,
            skip_when_already_exists=False,
            wait_for_completion=True,
            allowed_states=["success"],
            failed_states=["failed"],
            poke_interval=POLL_SECONDS,
            deferrable=True,
        )

    def finish(self, event: tuple[str, Mapping[str, Any]]) -> NoReturn:
        """Ends the task when the run of `backfill__NAME` has ended. `event` is that of the trigger. Raises
        DownstreamTasksSkipped if the lane is settled, and AirflowFailException with the reason if the run has failed.
        """
        (run_id,) = event[1]["run_ids"]
        if str(event[1].get(run_id)) != "success":
            ti: Any = self.context["ti"]
            reasons = ti.xcom_pull(task_ids=["begin", "replay"], dag_id=self._dag_id, run_id=run_id, key=REASON)
            reason = next((text for text in reversed(list(reasons or ())) if text), "its tasks' logs have the reason")
            raise AirflowFailException(
                f"{self.interval} was not replayed. The run {run_id} of {self._dag_id} has failed: {reason}. Nothing "
                f"that was stored is lost: clear this task to go on with the lane {self.interval.lane}"
            )
        with self._opened() as adapters:
            stored = _find(adapters)
            # The state of a DAG run proves nothing, because a user may set it. The tables do.
            epoch, lane = int(run_id.rpartition(EPOCH)[2].partition("__")[0]), self.interval.lane
            if (stored is None or stored.newest.turn.epoch < epoch) and self._offsets(adapters):
                raise AirflowException(
                    f"the run {run_id} of {self._dag_id} has ended, but {lane} has not begun epoch {epoch}"
                )
            if stored is not None and not stored.account.settled:
                raise AirflowException(f"the run {run_id} of {self._dag_id} has ended, but {lane} is not settled")
            self._end(f"{self.interval} was replayed", adapters)

    @property
    def interval(self) -> Interval:
        """The data interval of the DAG run."""
        return Interval.of_run(self.context)

    @property
    def _dag_id(self) -> str:
        return f"{BACKFILL_PREFIX}{self.pipeline.name}"

    @property
    def _prefix(self) -> str:
        run: Any = self.context["dag_run"]
        return run_prefix(self.interval, run.start_date)

    def _opened(self) -> AbstractContextManager["Adapters"]:
        from ackline.backfill.perform import backfill_pipeline

        pipeline = backfill_pipeline(self.pipeline, self.interval.lane, self.interval.arguments)
        return opened(pipeline, self.context, lane=self.interval.lane)

    def _epoch(self, adapters: "Adapters") -> int | None:
        from ackline.backfill.run import genesis_of

        stored = _find(adapters)
        if stored is None:
            return 0
        newest = stored.newest.turn.epoch
        settled = stored.account.settled and adapters.store.open_plan(stored.newest) is None
        begun_by = [genesis_of(adapters.store, epoch).run_id for epoch in range(newest + 1)]
        ti: Any = self.context["ti"]
        others, run_id = _later_tasks(self.task), self.context["run_id"]
        states = ti.get_task_states(dag_id=self.task.dag_id, task_ids=others, run_ids=[run_id])
        # If only `plan` was cleared, the other tasks have states.
        is_whole = not any(states.get(run_id, {}).values())
        return epoch_to_run(newest, settled, begun_by, self._prefix, is_whole)

    def _offsets(self, adapters: "Adapters") -> int:
        """Returns how many offsets the interval holds. Raises ConfigError for too many that are not confirmed."""
        from ackline.backfill.choose import choose_offsets

        choice = choose_offsets(adapters, self.interval.arguments)
        self._warn_of_retention(adapters, choice)
        for note in choice.notes:
            self.task.log.warning("%s", note)
        offsets, above = choice.offsets, adapters.pipeline.backfill.confirm_above
        confirmed = self.context["params"].get("confirm_offsets") or 0
        if offsets > max(above, confirmed):
            raise ConfigError(
                f"confirm_offsets: {self.interval} holds {offsets:,} offsets, more than `backfill.confirm_above` "
                f"({above:,}) of {self.pipeline.name}: give {offsets} or more there. Nothing was started",
                key="confirm_offsets",
            )
        return offsets

    def _warn_of_retention(self, adapters: "Adapters", choice: "Choice") -> None:
        """Logs which partitions may have lost records of the interval. A choice by time holds only offsets in the log,
        so no row records the lost ones."""
        cut = [tp for tp, log in choice.logs.items() if log.start > 0]
        firsts = adapters.cluster.offsets_at(cut, self.interval.start)
        gone = [str(tp) for tp in cut if firsts[tp] == choice.logs[tp].start]
        if gone:
            more = f" and {len(gone) - LISTED} more" * (len(gone) > LISTED)
            self.task.log.warning(
                "retention may have taken records of %s: the log of %s begins inside it or after it",
                self.interval, ", ".join(gone[:LISTED]) + more,
            )  # fmt: skip

    def _end(self, text: str, adapters: "Adapters") -> NoReturn:
        """Ends the task as successful, with the account of the lane as its result, and skips the tasks after it."""
        from ackline.backfill.perform import report_of

        stored = _find(adapters)
        if stored is not None:
            account, report = report_of(adapters, stored)
            self.task.log.info("%s", report)
            self.context["ti"].xcom_push(key="return_value", value=shortened(account))
        self.task.log.info("%s", text)
        raise DownstreamTasksSkipped(tasks=_later_tasks(self.task))  # type: ignore[no-untyped-call]


def _find(adapters: "Adapters") -> "Backfill | None":
    from ackline.backfill.run import find_backfill

    return find_backfill(adapters.store)


def _later_tasks(task: BaseOperator) -> list[str]:
    return sorted(task.get_flat_relative_ids(upstream=False))
