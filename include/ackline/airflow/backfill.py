"""DAGs from pipeline files: `backfill__NAME` with the tasks begin >> replay, one form for all options of the command.

A run does what `ackline backfill NAME --wait` does, by the same functions. It is a dry run unless `confirm` is set.

**begin** chooses the offsets and stores them as the genesis of the lane, or finds the lane begun. **replay** takes
turns in a Spark driver until nothing is due, gives its worker slot away until the next due time, and ends when the lane
is settled. How a killed or cleared task resumes:

- before the genesis: nothing was stored, and begin chooses anew
- after the genesis: begin finds the lane and compares the arguments. Without `id` in the form, the id of the lane is
  made of the DAG run's id, so a cleared run finds its own lane
- in a turn: the next driver adopts the open turn, whose outcomes and settlement are stored once
- between turns, or while the task waits: replay reads what is left from the lane's tables, and nothing from XCom
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Context, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException

from ackline.airflow.driver import Secrets
from ackline.airflow.driver_hook import SPARK_CONNECTION, DriverHook
from ackline.airflow.operate import params_of
from ackline.airflow.operators import (
    ACTOR,
    PipelineOperator,
    ReplayOperator,
    airflow_errors,
    new_dag,
    opened,
    use_folder_of,
)
from ackline.backfill.form import (
    ALL,
    CODE,
    CONFIRM,
    CONFIRM_OFFSETS,
    DEAD_LETTER,
    DEADLINE,
    EPOCH,
    FIELDS,
    FROM,
    HANDLER,
    ID,
    MAX_RATE,
    MAX_RECORDS,
    OF,
    OUTCOME,
    PROMOTE,
    RUN,
    SHADOW,
    TO,
    WHERE,
    WITH_RELATED,
    BackfillRequest,
    allowed_dead_letters,
    allowed_handlers,
    request_of,
)
from ackline.backfill.form import REASON as REASON_FIELD
from ackline.errors import ConfigError
from ackline.forms.form import ERROR_CLASS, Entered, Field
from ackline.ledger.account import UNREAD, Account
from ackline.ledger.fold import PendingKind
from ackline.pipeline.pipeline import Pipeline
from ackline.scrub import scrub

if TYPE_CHECKING:
    from ackline.backfill.perform import AccountObject
    from ackline.backfill.run import Backfill
    from ackline.forms.arguments import BackfillArguments
    from ackline.lane.adapters import Adapters

BACKFILL_PREFIX = "backfill__"
LISTED = 10
"""Ranges that XCom holds. The log names twenty, `ackline backfill … --json` all."""
POLL = timedelta(minutes=2)
"""How long replay waits for what has no due time: a leader, the dead-letter topic, or an answer from outside."""
REASON = "reason"
"""The XCom key under which a task stores why it failed, for the run whose interval it replays."""
SHORTEST_WAIT = timedelta(seconds=10)
"""How long replay waits at least, for retries without a delay whose number has no limit."""


def backfill_params(pipeline: Pipeline) -> dict[str, Param]:
    """Returns the params of the form of `backfill__NAME`. Some differ from the command's options: the DAG waits, has a
    run id, and offers the pipeline's own handlers and limits."""
    as_in_file = ((None, "that of the pipeline file"),)
    changed: dict[Field, dict[str, Any]] = {
        ID: {"help": f"{ID.help} Empty: made of the DAG run's id."},
        HANDLER: {"choices": allowed_handlers(pipeline), "shown": as_in_file},
        DEAD_LETTER: {"choices": allowed_dead_letters(pipeline), "shown": as_in_file},
        OUTCOME: {"shown": ((None, "any"),)},
        MAX_RECORDS: {
            "help": "Read so many offsets and end, without waiting for retries. Empty: until every offset is settled."
        },
        CONFIRM_OFFSETS: {
            "help": f"Needed beside Confirm for more than {pipeline.backfill.confirm_above:,} offsets: their number, "
            f"as the dry run shows it."
        },
    }
    sections = {
        "Which records: all, by time, by outcome": (
            ALL,
            FROM,
            TO,
            OUTCOME,
            ERROR_CLASS,
            RUN,
            CODE,
            OF,
            WHERE,
            WITH_RELATED,
        ),
        "How: limits, handler, dead letters, an earlier backfill": (
            CONFIRM_OFFSETS,
            ID,
            EPOCH,
            HANDLER,
            MAX_RECORDS,
            MAX_RATE,
            DEAD_LETTER,
            SHADOW,
            PROMOTE,
            DEADLINE,
            REASON_FIELD,
        ),
    }
    return params_of(FIELDS, changed, sections)


def entered_by(context: Context) -> Entered:
    """Returns the values of the form of a DAG run."""
    return Entered(context["params"], by_option=False)


def form_of(context: Context) -> BackfillRequest:
    """Returns the request in the form of a DAG run. Raises ConfigError for a value that the form would have refused."""
    return request_of(entered_by(context), id_of_run(str(context["run_id"])))


def id_of_run(run_id: str) -> str:
    """Returns the id of a backfill whose form has none. The hash differs for run ids that differ in signs alone."""
    words = re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")[:80]
    return f"{words or 'run'}-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"


@contextmanager
def noted_reason(context: Context) -> Iterator[None]:
    """Stores the reason of a failure in XCom, where `plan` of `replay__NAME` reads it; scrubbed, and of one line."""
    try:
        yield
    except (AirflowRescheduleException, AirflowSkipException):
        raise
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        cause = next((line for line in reversed(lines) if line.strip().startswith("ackline: ")), lines[0])
        context["ti"].xcom_push(key=REASON, value=scrub(cause, ()))
        raise


class BeginBackfillOperator(PipelineOperator):
    """Begins the lane of a backfill, or a new epoch of it, or finds it begun. Returns its account.

    Changes nothing without `confirm`.
    """

    ui_color = "#d7e8f7"

    def execute(self, context: Context) -> dict[str, Any]:
        """Choose the offsets and store them. Imports the handler first, so that no lane begins that can't be run."""
        with noted_reason(context), airflow_errors():
            from ackline.backfill.perform import backfill_pipeline, lane_arguments
            from ackline.pipeline.functions import check_functions

            confirmed = self.entered(context, FIELDS).value(CONFIRM)
            form = form_of(context)
            user = getattr(context["dag_run"], "triggering_user_name", None)
            # Without the settings of the lane: they follow from its arguments, which are read here.
            with opened(self.pipeline, context, lane=form.lane) as adapters:
                arguments = lane_arguments(adapters.store, form)
            pipeline = backfill_pipeline(self.pipeline, form.lane, arguments, form.max_rate)
            use_folder_of(self.pipeline)
            check_functions(*pipeline.functions)
            DriverHook(Secrets(), conn_id=SPARK_CONNECTION)  # refuses a master on which replay can't run
            with opened(pipeline, context, actor=user or ACTOR, lane=form.lane) as adapters:
                text, result = _begin(adapters, form, arguments, confirmed)
        self.log_change(text, confirmed)
        return result


def _begin(
    adapters: "Adapters", form: BackfillRequest, arguments: "BackfillArguments", confirmed: bool
) -> tuple[str, dict[str, Any]]:
    """Returns the text for the log and the account of the lane; a new lane is stored only if it is confirmed."""
    from ackline.backfill.perform import begin_prepared, prepare

    prepared, above = prepare(adapters, form, arguments), adapters.pipeline.backfill.confirm_above
    choice, result = prepared.choice, shortened(prepared.body(not confirmed))
    if choice is None or not confirmed or not choice.partitions:
        return prepared.text, result
    if choice.offsets > above and form.confirm_offsets != choice.offsets:
        raise ConfigError(
            f"confirm_offsets: the backfill would read {choice.offsets:,} offsets, more than `backfill.confirm_above` "
            f"({above:,}) of {adapters.pipeline.name}: give {choice.offsets} there. Nothing was stored",
            key="confirm_offsets",
        )
    begin_prepared(adapters, prepared, arguments)
    epoch = f", epoch {form.epoch}" * bool(form.epoch)
    return f"{prepared.text}\nBackfill {form.id} has begun{epoch}.", result


class ReplayBackfillOperator(ReplayOperator):
    """Takes the turns of a backfill in a Spark driver until its lane is settled. Returns the lane's account.

    Between due times the task is rescheduled: it holds no worker slot and uses up no retry. Fails at the deadline if
    the lane is not settled by then. With `max_records` it ends after one driver and waits for nothing.
    """

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Runs a driver if anything is due. Returns the account of a settled lane; else reschedules the task."""
        with noted_reason(context), airflow_errors():
            form = form_of(context)
            if not entered_by(context).value(CONFIRM):
                raise AirflowSkipException("a dry run: `confirm` is not set")
            backfill, due = self._backfill(context)
            if due and not form.is_over(self._now(context)):
                self._reschedule_while_held(context)
                self._submit(context)
                backfill, due = self._backfill(context)
            return self._finish(context, form, backfill, due)

    def _backfill(self, context: Context) -> tuple["Backfill", bool]:
        """Returns the lane as its tables have it, and whether anything of it can be read now."""
        from ackline.backfill.perform import backfill_pipeline, check_promotion_goes_on
        from ackline.backfill.run import can_take_turn, find_backfill

        with self._opened(context) as adapters:
            backfill = find_backfill(adapters.store)
            if backfill is None:
                raise AirflowSkipException("nothing matches: no backfill has begun")
            has_open_turn = adapters.store.open_plan(backfill.newest) is not None
            if has_open_turn or not is_due(backfill.account, adapters.now()):
                return backfill, has_open_turn
        # Last, because it queries Kafka. What is due may be in a partition that is paused or has no leader, and then
        # each look would start a driver that reads nothing.
        lane = form_of(context).lane
        pipeline = backfill_pipeline(self.pipeline, lane, backfill.arguments)
        with opened(pipeline, context, lane=lane) as adapters:
            check_promotion_goes_on(adapters, backfill)
            return backfill, can_take_turn(adapters)

    def _now(self, context: Context) -> datetime:
        with self._opened(context) as adapters:
            return adapters.now()

    def _finish(self, context: Context, form: BackfillRequest, backfill: "Backfill", readable: bool) -> dict[str, Any]:
        """Returns the account of a lane that is settled, or logs it and waits for the next due time. `readable` is
        whether anything of the lane can be read now."""
        from ackline.backfill.perform import report_of

        with self._opened(context) as adapters:
            (body, text), now = report_of(adapters, backfill), adapters.now()
        account, result = backfill.account, shortened(body)
        self.log.info("%s\n%s", text, result)
        if account.settled or form.max_records is not None:
            return result
        if form.is_over(now):
            context["ti"].xcom_push(key="return_value", value=result)
            raise AirflowFailException(f"the deadline {form.deadline} has passed. {text}")
        until = wait_until(account, now, form.deadline, readable)
        self.log.info("this task goes on at %s", until.isoformat(timespec="seconds"))
        raise AirflowRescheduleException(until)  # type: ignore[no-untyped-call]

    def _lane(self, context: Context) -> str:
        return form_of(context).lane

    def _driver_arguments(self, context: Context) -> list[str]:
        form = form_of(context)
        options = {"--max-records": form.max_records, "--max-rate": form.max_rate, "--reason": form.reason or None}
        given = [f"{option}={value}" for option, value in options.items() if value is not None]
        return [*super()._driver_arguments(context), f"--backfill={form.lane}", *given]


def is_due(account: Account, now: datetime) -> bool:
    """Returns whether a turn that begins now would settle anything of a backfill lane.

    It would not if the lane is settled, or if all that is left are retries whose due time is after `now`.
    """
    if account.settled:
        return False
    later = account.next_due is not None and account.next_due > now
    return not later or _has_more_than_retries(account)


def _has_more_than_retries(account: Account) -> bool:
    """Returns whether a lane waits for what may come at any time: a leader, the dead-letter topic, or an answer from
    outside."""
    return any(account.pending[kind] for kind in (UNREAD, PendingKind.DEAD_LETTER, PendingKind.IN_FLIGHT))


def wait_until(account: Account, now: datetime, deadline: datetime | None, readable: bool = True) -> datetime:
    """Returns when replay looks at an unsettled lane again: at the next due time, but at the deadline at the latest.
    `readable` is whether what is due already can be read; if not, replay looks again after POLL."""
    due = account.next_due
    if due is None or (due <= now and not readable):
        due = now + POLL
    if _has_more_than_retries(account):
        due = min(due, now + POLL)
    due = max(due, now + SHORTEST_WAIT)
    return due if deadline is None else min(due, deadline)


def shortened(account: "AccountObject") -> dict[str, Any]:
    """Returns the account for XCom: totals, and of each list the longest ranges, with the number of those left out."""
    result = account.dump()
    asked = result["asked"]
    longest = sorted(asked["ranges"], key=lambda part: part["start"] - part["end"])[:LISTED]
    result["asked"] = {**asked, "ranges": longest, "more_ranges": len(asked["ranges"]) - len(longest)}
    for name in ("gone", "open_end"):
        if name in result:
            result |= {f"more_{name}": max(0, len(result[name]) - LISTED), name: result[name][:LISTED]}
    return result


def backfill_dag(pipeline: Pipeline, file: str) -> DAG:
    """Returns the DAG `backfill__NAME` of one pipeline, for the DAG file `file`."""
    dag = new_dag(
        f"{BACKFILL_PREFIX}{pipeline.name}",
        file,
        "backfill",
        pipeline.tags,
        pipeline.owner,
        schedule=None,
        is_paused_upon_creation=False,  # it has no schedule, and Airflow's own backfill of `replay__NAME` starts it
        params=backfill_params(pipeline),
        description=f"Handles chosen offsets of the pipeline {pipeline.name} again; a dry run unless it is confirmed",
        doc_md=(
            f"Does what the command `ackline backfill {pipeline.name} --wait` does: a lane of its own reads the chosen "
            f"offsets again, and never touches the consumer group. Without **confirm** nothing changes, and the log of "
            f"**begin** shows what would be read. **replay** goes on at each due time until every offset is settled. "
            f"Any task may be cleared at any time: the run resumes its lane."
        ),
    )
    begin = BeginBackfillOperator(task_id="begin", pipeline=pipeline, dag=dag)
    begin >> ReplayBackfillOperator(task_id="replay", pipeline=pipeline, dag=dag)
    return dag
