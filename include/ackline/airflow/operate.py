"""The forms of the DAGs, and the DAGs `operate__NAME` and `ackline_maintenance`.

Airflow's form shows all params of a DAG: none may depend on the value of another. So the fields that few runs need are
in sections, which it shows closed, and what each run needs stays on one screen with Confirm. It marks a param as
required if its type has no null, so each param that may be empty has null in its type.

`operate__NAME` has one form for all actions of an operator, because a DAG for each action would be seven more DAGs a
pipeline. A run of it does what the command of the same name does, by the same functions. The form's schema refuses
wrong values when a run is triggered; the task refuses what only the options together or the lane can show. A run is a
dry run unless `confirm` is set. A task is never retried: an action that is stored is done, and a second one would be
another action.

`ackline_maintenance` does every six hours what `ackline maintain` does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, BaseOperator, Context, CronDataIntervalTimetable, Param

from ackline.actions.form import (
    ACTIONS,
    ALL_PARTITIONS,
    BY,
    CONFIRM,
    FIELDS,
    GONE,
    OFFSETS,
    PAUSE,
    TO,
)
from ackline.airflow.operators import ACTOR, PipelineOperator, airflow_errors, new_dag, opened
from ackline.forms.form import (
    ERROR_CLASS,
    INTERVAL_OFFSETS,
    MAX_RECORDS,
    NUMBER,
    PARTITIONS,
    RUN_FIELDS,
    TABLE_GONE,
    TOPICS,
    Field,
    FieldType,
)
from ackline.ledger.turns import LIVE
from ackline.pipeline.folder import audit_root
from ackline.pipeline.pipeline import Pipeline

OPERATE_PREFIX = "operate__"
LISTED = 10
"""Partitions that XCom holds. The log names twenty, `ackline … --dry-run --json` all."""
ACTION = Field(
    name="action", option="", title="Action", choices=tuple(ACTIONS), default="retry",
    shown=tuple((action.name, f"{action.name}: {action.summary}") for action in ACTIONS.values()),
    help="What to do. The sections below name the actions that take their fields.",
)  # fmt: skip
LISTED_TABLES = 10
"""Tables that XCom names. The log names all."""
SCHEDULE = "20 */6 * * *"
"""Every six hours: then a pipeline that runs every ten minutes does not get slower (`make bench`)."""


Sections = Mapping[str, Sequence[Field]]
"""The sections of a form, by their titles. Fields in none are shown first, and open."""


def params_of(
    fields: Iterable[Field], changed: Mapping[Field, Mapping[str, Any]] | None = None, sections: Sections | None = None
) -> dict[str, Param]:
    """Returns the params of the fields that the DAG's form has: those in no section first, in their order. `changed`
    has, for a field, the attributes that differ in this DAG."""
    section_of = {field: title for title, of_section in (sections or {}).items() for field in of_section}
    ordered = [field for field in fields if field.in_dag]
    ordered.sort(key=lambda field: list(sections or ()).index(section_of[field]) if field in section_of else -1)
    return {
        field.name: param_of(replace(field, **(changed or {}).get(field, {})), section_of.get(field))
        for field in ordered
    }


def param_of(field: Field, section: str | None = None) -> Param:
    """Returns the param of a field, in a section of the form. A field that is left empty has null."""
    schema: dict[str, Any] = {name: getattr(field, name) for name in ("pattern", "format") if getattr(field, name)}
    bounds = {"minimum": field.minimum, "maximum": field.maximum}
    match field.type:
        case FieldType.TEXT:
            schema |= {"type": ["null", "string"], "maxLength": 500}
        case FieldType.FLAG:
            schema = {"type": ["null", "boolean"]}
        case FieldType.NUMBER:
            schema = {"type": ["null", "integer"], **bounds}
        case FieldType.TEXTS:
            schema = {"type": ["null", "array"], "minItems": 1, "items": {"type": "string", **schema}}
        case FieldType.NUMBERS:
            # Without a type of the items, Airflow's form shows a line for each, and not an editor of JSON.
            numbers = [{"type": "integer", **bounds}, {"type": "string", "pattern": NUMBER}]
            schema = {"type": ["null", "array"], "minItems": 1, "items": {"anyOf": numbers}}
    if field.choices:
        if field.default is None:
            schema["enum"] = [None, *field.choices]
        else:
            schema |= {"type": "string", "enum": list(field.choices)}
        schema["values_display"] = {"null" if value is None else value: text for value, text in field.shown}
    if section is not None:
        schema["section"] = section
    several = field.type in (FieldType.TEXTS, FieldType.NUMBERS)
    description = f"{field.help}, one on each line." if several else field.help
    return Param(field.empty, title=field.title, description=description, **schema)


def run_params(pipeline: Pipeline) -> dict[str, Param]:
    """Returns the fields of the form that triggers a run of `replay__NAME`. A scheduled run has the defaults."""
    limit, above = pipeline.max_records_per_run, pipeline.backfill.confirm_above
    changed: dict[Field, dict[str, Any]] = {
        MAX_RECORDS: {"maximum": limit, "help": f"{MAX_RECORDS.help} Empty: {limit:,}, as in the file."},
        INTERVAL_OFFSETS: {"help": f"{INTERVAL_OFFSETS.help} Empty: {above:,}, the file's `backfill.confirm_above`."},
    }
    sections = {"Output tables": [TABLE_GONE], "Only for Airflow's own backfill": [INTERVAL_OFFSETS]}
    return params_of(RUN_FIELDS, changed, sections)


_SECTIONS: Sections = {
    "Which partitions and records": (TOPICS, PARTITIONS, OFFSETS, ERROR_CLASS),
    "Where to": (TO, BY, ALL_PARTITIONS, GONE),
    "The open turn": (PAUSE,),
}


def operate_params() -> dict[str, Param]:
    """Returns the params of the form. The help of a field that only some actions take names these actions, and so does
    the title of its section."""
    explained = {}
    for field in FIELDS:
        taken = [action for action in ACTIONS.values() if field in action.fields]
        help_ = f"{', '.join(action.name for action in taken)}: {field.help[0].lower()}{field.help[1:]}"
        if len(taken) == len(ACTIONS):
            help_ = f"{field.help} Required by {', '.join(action.name for action in taken if action.needs_reason)}."
        explained[field] = {"help": field.help if field is CONFIRM else help_}
    sections = {}
    for title, fields in _SECTIONS.items():
        names = [action.name for action in ACTIONS.values() if set(fields) & set(action.fields)]
        sections[f"{title}: {', '.join(names)}"] = fields
    return {ACTION.name: param_of(ACTION), **params_of(FIELDS, explained, sections)}


class OperateOperator(PipelineOperator):
    """Carries out one action, or shows it. Returns what changes: offsets and counts, no payload."""

    ui_color = "#f7e3d7"

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the action that the form names."""
        user = getattr(context["dag_run"], "triggering_user_name", None)
        with airflow_errors():
            from ackline.actions.perform import entered_action

            entered = self.entered(context, (ACTION, *FIELDS))
            action, confirmed = ACTIONS[entered.value(ACTION)], entered.value(CONFIRM)
            now = datetime.now(UTC)
            requested = entered_action(action, self.pipeline.name, entered, now, dry_run=not confirmed)
            with opened(self.pipeline, context, actor=user or ACTOR, lane=LIVE) as adapters:
                report = requested.perform(adapters) if confirmed else requested.preview(adapters)
        self.log_change(report.text, confirmed)
        result = report.body.dump()
        listed = result["partitions"][:LISTED]
        return {**result, "partitions": listed, "more_partitions": len(result["partitions"]) - len(listed)}


def operate_dag(pipeline: Pipeline, file: str) -> DAG:
    """Returns the DAG `operate__NAME` of one pipeline, for the DAG file `file`."""
    dag = new_dag(
        f"{OPERATE_PREFIX}{pipeline.name}",
        file,
        "operate",
        pipeline.tags,
        pipeline.owner,
        schedule=None,
        is_paused_upon_creation=False,  # it has no schedule
        max_active_runs=1,
        default_args={"retries": 0},
        params=operate_params(),
        description=f"Actions of an operator on the pipeline {pipeline.name}; a dry run unless it is confirmed",
        doc_md=(
            f"Does what the commands `ackline retry | skip | reset | pause | resume | void | adopt-ledger "
            f"{pipeline.name}` do. Each action is a turn of the pipeline, stored with the user who has triggered it "
            f"and the reason. Without **confirm** nothing changes, and the task's log shows what would."
        ),
    )
    OperateOperator(task_id="operate", pipeline=pipeline, dag=dag)
    return dag


class MaintainOperator(BaseOperator):
    """Compacts, checkpoints and vacuums the tables of all pipelines."""

    ui_color = "#e8e3f3"

    def execute(self, context: Context) -> dict[str, Any]:
        """Maintain the tables. Returns totals, and the ten tables with the most files.

        Safe beside runs, and safe to repeat.
        """
        with airflow_errors():
            from ackline.actions.maintain import maintain
            from ackline.airflow.connections import use_audit_connection

            use_audit_connection()
            tables = [asdict(maintained) for maintained in maintain(audit_root())]
        for table in tables:
            self.log.info("maintained: %s", table)
        most_files = sorted(tables, key=lambda table: table["files"], reverse=True)[:LISTED_TABLES]
        totals = {key: sum(table[key] for table in tables) for key in ("files", "compacted", "busy", "removed")}
        return {"tables": len(tables), **totals, "most_files": most_files}


def maintenance_dag(file: str) -> DAG:
    """Returns the maintenance DAG, for the DAG file `file`."""
    dag = new_dag(
        "ackline_maintenance",
        file,
        "maintenance",
        schedule=CronDataIntervalTimetable(SCHEDULE, timezone="UTC"),
        max_active_runs=1,
        description="Compacts, checkpoints and vacuums the tables of all pipelines, output tables too",
        doc_md=(
            "Without this DAG every run gets a little slower each day. No row changes, and runs may go on meanwhile. "
            "It removes unused files after a week, and never those of an open turn. By hand: `ackline maintain`."
        ),
    )
    MaintainOperator(task_id="maintain", dag=dag)
    return dag
