"""DAGs from pipeline files: `operate__NAME`, one form for all actions of an operator.

A run of it does what the command of the same name does, by the same functions, so that Airflow's permissions and log
apply to it. The form's schema refuses wrong values when a run is triggered; the task refuses what only the options
together or the lane can show. A run is a dry run unless `confirm` is set: its log and its result show what would
change.

A task is never retried: an action that is stored is done, and a second one would be another action.
"""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, BaseOperator, Context, Param

from ackline.actions.form import ACTIONS, CONFIRM, FIELDS
from ackline.airflow.forms import param_of, params_of
from ackline.airflow.operators import ACTOR, airflow_errors, opened
from ackline.ledger.turns import LIVE
from ackline.pipeline.form import Entered, Field
from ackline.pipeline.pipeline import Pipeline

OPERATE_PREFIX = "operate__"
LISTED = 10
"""Partitions that XCom holds. The log names twenty, `ackline … --dry-run --json` all."""
ACT = Field(
    name="act", option="", title="Act", choices=tuple(ACTIONS), default="retry",
    help=". ".join(f"{action.name}: {action.summary}" for action in ACTIONS.values()) + ".",
)  # fmt: skip


def operate_params() -> dict[str, Param]:
    """Returns the fields of the form. Each that only some actions take names these in its explanation."""
    return {ACT.name: param_of(ACT), **params_of(map(_explained, FIELDS))}


def _explained(field: Field) -> Field:
    if field is CONFIRM:
        return field
    taken = [action for action in ACTIONS.values() if field in action.fields]
    if len(taken) == len(ACTIONS):
        needed = ", ".join(action.name for action in taken if action.needs_reason)
        return replace(field, help=f"{field.help} Required by {needed}.")
    text = field.help[0].lower() + field.help[1:]
    return replace(field, help=f"{', '.join(action.name for action in taken)}: {text}")


class OperateOperator(BaseOperator):
    """Carries out one action, or shows it. Returns what changes: offsets and counts, no payload."""

    ui_color = "#f7e3d7"

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the action that the form names."""
        entered = Entered(context["params"], by_option=False)
        user = getattr(context["dag_run"], "triggering_user_name", None)
        with airflow_errors():
            from ackline.actions.perform import entered_action

            action, confirmed = ACTIONS[entered.value(ACT)], entered.value(CONFIRM)
            now = datetime.now(UTC)
            requested = entered_action(action, self.pipeline.name, entered, now)
            with opened(self.pipeline, context, actor=user or ACTOR, lane=LIVE) as adapters:
                report = requested.perform(adapters) if confirmed else requested.preview(adapters)
        self.log.info("%s%s", report.text, "" if confirmed else "\nNothing was changed: `confirm` is not set.")
        result = report.body.dump()
        listed = result["partitions"][:LISTED]
        return {**result, "partitions": listed, "more_partitions": len(result["partitions"]) - len(listed)}


def operate_dag(pipeline: Pipeline, file: str) -> DAG:
    """Returns the DAG `operate__NAME` of one pipeline, for the DAG file `file`."""
    dag = DAG(
        dag_id=f"{OPERATE_PREFIX}{pipeline.name}",
        schedule=None,
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args={"retries": 0},
        params=operate_params(),
        description=f"Acts of an operator on the pipeline {pipeline.name}; a dry run unless it is confirmed",
        doc_md=(
            f"Does what the commands `ackline retry | skip | reset | pause | resume | void | adopt-ledger "
            f"{pipeline.name}` do. Each act is a turn of the pipeline, stored with the user who has triggered it and "
            f"the reason. Without **confirm** nothing changes, and the task's log shows what would."
        ),
        tags={"ackline", "operate"},
        auto_register=False,
    )
    dag.fileloc = file
    OperateOperator(task_id="operate", pipeline=pipeline, dag=dag)
    return dag
