"""Data intervals: which runs of `replay__NAME` replay one, in which backfill lane, and in which epoch of it.

`airflow backfill create`, or its page, makes runs of the type BACKFILL. Such a run leaves the live lane alone: it
replays its data interval in a backfill lane. A run of any other type takes a turn of the live lane, as ever.

Airflow creates one DAG run for an interval, and reprocesses it by clearing all tasks of that run. A task sees neither
the id of the backfill nor what was cleared. It sees the states of the other tasks of its run: they are empty if the
whole run was cleared, and those of the last time if only this task was. It also sees when the run was started, which
stays the same while Airflow retries the task, and changes when a finished run is cleared. So a whole run over a settled
lane begins an epoch, once, and a cleared task only resumes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from ackline.errors import ConfigError
from ackline.pipeline.arguments import BackfillArguments, lane_of

BACKFILL_RUN = "backfill"
"""The type of the runs that Airflow's own backfill makes."""


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
        return "-".join(f"{time:%Y%m%dt%H%M%S}{f'{time:%f}' * bool(time.microsecond)}z" for time in self.bounds)

    @property
    def lane(self) -> str:
        """The lane of the interval's backfill."""
        return lane_of(self.id)

    @property
    def bounds(self) -> tuple[datetime, datetime]:
        """Start and end."""
        return self.start, self.end

    @property
    def arguments(self) -> BackfillArguments:
        """What the backfill reads: from the first record at or after the start to the first one at or after the end."""
        return BackfillArguments(since=self.start.isoformat(), until=self.end.isoformat())

    def __str__(self) -> str:
        return f"[{self.start.isoformat()}, {self.end.isoformat()})"


def replays_interval(context: Context) -> bool:
    """Returns whether the DAG run replays its data interval, and takes no turn of the live lane."""
    run_type = getattr(context.get("dag_run"), "run_type", None)
    return getattr(run_type, "value", run_type) == BACKFILL_RUN


def skip_in_interval_run(context: Context) -> None:
    """Raises AirflowSkipException in a run that replays an interval.

    `plan` skips the other tasks of such a run. A user may clear one of them alone, and it must not work on a turn of
    the live lane that another run has open.
    """
    if replays_interval(context):
        raise AirflowSkipException("this run replays its data interval in a backfill lane; see its task plan")


def run_prefix(interval: Interval, started: datetime) -> str:
    """Returns how the ids of the `backfill__NAME` runs begin that a DAG run of the interval starts.

    `started` is when the DAG run began. It differs between two DAG runs of an interval, of which a user has deleted the
    first, and between a run and the same run after it has ended and was cleared.
    """
    return f"interval__{interval.id}__{started.astimezone(UTC):%Y%m%dT%H%M%S.%f}__"


def is_whole_run(states_of_other_tasks: Mapping[str, Any]) -> bool:
    """Returns whether all tasks of a DAG run are to run, and not only tasks of it that were cleared."""
    return not any(states_of_other_tasks.values())


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
