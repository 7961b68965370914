"""DAGs from pipeline files: `operate__NAME`, one form for all acts of an operator.

A run of it does what the command of the same name does, by the same functions, so that Airflow's permissions and log
apply to it. The form's schema refuses wrong values when a run is triggered; the task refuses what only the options
together or the lane can show. A run is a dry run unless `confirm` is set: its log and its result show what would
change.

A task is never retried: an act that is stored is done, and a second one would be another act.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import DAG, BaseOperator, Context, Param

from ackline.airflow.operators import ACTOR, airflow_errors, opened
from ackline.errors import ConfigError
from ackline.ledger.turns import LIVE, TurnKind
from ackline.pipeline.arguments import PartitionChoice, parse_destination, parse_distance, parse_offsets
from ackline.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from ackline.actions.targets import ActionRequest
    from ackline.lane.adapters import Adapters

T = TypeVar("T")

OPERATE_PREFIX = "operate__"
LISTED = 10
"""Partitions that XCom holds. The log names twenty, `ackline … --dry-run --json` all."""
ACTS = ("retry", "skip", "reset", "pause", "resume", "void", "adopt-ledger")
NEED_REASON = ("skip", "reset", "void", "adopt-ledger")
CHOOSES_PARTITIONS = ("retry", "skip", "reset", "pause", "resume")
TAKES: Mapping[str, tuple[str, ...]] = {
    "topics": CHOOSES_PARTITIONS,
    "partitions": CHOOSES_PARTITIONS,
    "to": ("skip", "reset"),
    "by": ("reset",),
    "all_partitions": ("skip", "reset"),
    "offsets": ("retry", "skip"),
    "error_class": ("retry", "skip"),
    "pause": ("void",),
}
"""The acts for which each field has a meaning. Any other act refuses a value there."""


def _text(title: str, description: str, pattern: str | None = None) -> Param:
    more: dict[str, Any] = {"pattern": pattern} if pattern is not None else {}
    return Param(None, type=["null", "string"], title=title, description=description, maxLength=500, **more)


def operate_params() -> dict[str, Param]:
    """Returns the fields of the form, each with a description and the schema that refuses wrong values."""
    return {
        "act": Param(
            "retry", type="string", enum=list(ACTS), title="Act",
            description="retry: pending retries are due now. skip: settle without handling. reset: begin a new epoch. "
            "pause, resume: stop and resume reading. void: close an open turn that no run can carry out. adopt-ledger: "
            "go on although another ledger has committed the group.",
        ),
        "reason": _text("Reason", "Why, for readers of the audit table. Required by skip, reset, void, adopt-ledger."),
        "topics": Param(
            [], type="array", items={"type": "string", "pattern": "^[a-zA-Z0-9._-]{1,249}$"}, title="Topics",
            description="Only partitions of these topics. Empty: all.",
        ),
        "partitions": Param(
            [], type="array", items={"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, title="Partitions",
            description="Only partitions with these numbers. Empty: all.",
        ),
        "to": _text(
            "To", "skip, reset: an offset, `earliest`, `latest`, `committed`, `floor`, or a time such as "
            "2026-01-31T12:00:00Z or `2h ago`.",
        ),
        "by": _text("By", "reset: so many offsets from the floor, such as -100 or +5.", "^[+-][0-9]{1,18}$"),
        "all_partitions": Param(
            False, type="boolean", title="All partitions",
            description="skip, reset: move several partitions to the same offset.",
        ),
        "offsets": _text(
            "Offsets", "retry, skip: only pending records of the offsets A:B, B exclusive, or of the offset A.",
            "^[0-9]{0,19}:?[0-9]{0,19}$",
        ),
        "error_class": _text("Error class", "retry, skip: only pending records whose last attempt failed with it."),
        "pause": Param(
            False, type="boolean", title="Pause", description="void: also pause the partitions that the turn reads.",
        ),
        "confirm": Param(
            False, type="boolean", title="Confirm",
            description="Do it. Without it the run changes nothing, and its log shows what would change.",
        ),
    }  # fmt: skip


class OperateOperator(BaseOperator):
    """Carries out one act, or shows it. Returns what changes: offsets and counts, no payload."""

    ui_color = "#f7e3d7"

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the act that the form names."""
        params = dict(context["params"])
        user = getattr(context["dag_run"], "triggering_user_name", None)
        with airflow_errors():
            check_params(params)
            with opened(self.pipeline, context, actor=user or ACTOR, lane=LIVE) as adapters:
                text, result = _carry_out(adapters, params)
        self.log.info("%s%s", text, "" if params["confirm"] else "\nNothing was changed: `confirm` is not set.")
        listed = result["partitions"][:LISTED]
        return {**result, "partitions": listed, "more_partitions": len(result["partitions"]) - len(listed)}


def check_params(params: Mapping[str, Any]) -> None:
    """Raises ConfigError for fields that the act does not take, and for a reason that is missing."""
    act = params["act"]
    for name, acts in TAKES.items():
        if params[name] and act not in acts:
            raise ConfigError(f"{name}: {act} takes no such value; leave it empty", key=name)
    if act in NEED_REASON and not (params["reason"] or "").strip():
        raise ConfigError(f"reason: {act} needs one, for readers of the audit table", key="reason")


def _carry_out(adapters: "Adapters", params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the text for the log and the result of an act; it is carried out only if it is confirmed."""
    if params["act"] == "void":
        return _void(adapters, params)
    if params["act"] == "adopt-ledger":
        return _adopt(adapters, params)
    return _act(adapters, params)


def _act(adapters: "Adapters", params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from ackline.actions.actions import PreparedAction, perform_action, prepare_action
    from ackline.actions.report import action_json, action_text
    from ackline.actions.targets import check_request, choose_targets

    request, reason = _request(params, adapters.now()), params["reason"] or ""
    check_request(request)
    if not params["confirm"]:
        shown = prepare_action(adapters, request.kind, lambda lane: choose_targets(adapters, request, lane), reason)
        return action_text(shown, done=False), action_json(shown, dry_run=True)
    done = perform_action(adapters, request.kind, lambda lane: choose_targets(adapters, request, lane), reason)
    action = PreparedAction(done.plan, done.before)
    text = action_text(action, done=True) + (f"\nIt is stored; {done.not_committed}" if done.not_committed else "")
    return text, action_json(action, dry_run=False, not_committed=done.not_committed)


def _adopt(adapters: "Adapters", params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from ackline.actions.adopt_ledger import adopt_ledger, prepare_adoption
    from ackline.actions.report import adoption_json, adoption_text

    confirm, reason = params["confirm"], params["reason"]
    adoption = (adopt_ledger if confirm else prepare_adoption)(adapters, reason)
    return adoption_text(adoption, confirm), adoption_json(adapters, adoption, reason, dry_run=not confirm)


def _void(adapters: "Adapters", params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from ackline.actions.report import void_json, void_preview, void_text
    from ackline.actions.void import open_turn, void_open_turn

    reason, pause = params["reason"], params["pause"]
    to_close = open_turn(adapters)
    if not params["confirm"]:
        body = void_json(to_close.plan, to_close.consequence, reason, pause)
        return void_preview(to_close, pause), {**body, "dry_run": True}
    closed = void_open_turn(adapters, to_close.plan.turn, reason, pause)
    body = void_json(closed.plan, closed.consequence, reason, pause)
    came = {"not_paused": closed.not_paused, "not_committed": closed.not_committed, "dry_run": False}
    return void_text(closed, adapters.pipeline.name), {**body, **came}


def _request(params: Mapping[str, Any], now: datetime) -> "ActionRequest":
    from ackline.actions.targets import ActionRequest

    return ActionRequest(
        TurnKind(params["act"]),
        _parsed("topics", lambda: PartitionChoice(tuple(params["topics"]), tuple(params["partitions"]))),
        to=_parsed("to", lambda: parse_destination(params["to"], now)) if params["to"] else None,
        by=_parsed("by", lambda: parse_distance(params["by"])) if params["by"] else None,
        all_partitions=params["all_partitions"],
        offsets=_parsed("offsets", lambda: parse_offsets(params["offsets"])) if params["offsets"] else None,
        error_class=params["error_class"] or None,
    )


def _parsed(name: str, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except ValueError as error:
        raise ConfigError(f"{name}: {error}", key=name) from None


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
