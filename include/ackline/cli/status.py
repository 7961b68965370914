"""`ackline status` and `ackline history`: where each pipeline is, what holds it, and who took its turns and why."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from ackline.actions.objects import HistoryObject
from ackline.answers.explain import HeldBack, held_back
from ackline.answers.overview import OverviewObject, PipelineStatus, summary_of
from ackline.answers.status import OpenTurn, Unreachable, open_turn_of, status_and_missing, status_object
from ackline.audit.history import settled_turns, step_figures
from ackline.backfill.run import standstill_of
from ackline.cli import formats, options, tables
from ackline.errors import AcklineError, ConfigError
from ackline.forms.arguments import PartitionChoice
from ackline.lane.adapters import Adapters
from ackline.ledger.explain import span
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.states import State
from ackline.ledger.turns import LIVE, TurnKind
from ackline.pipeline.folder import audit_root, check_folder, load_folder, pipelines_folder
from ackline.tables.lease import HolderState

WATCH_SECONDS = 5.0
_READERS = 8
"""Pipelines that are read at the same time. Each waits for its broker most of the time."""
_OVERVIEW = ("pipeline", "state", "partitions", "lag", "seconds", "pending", "dead", "next due")
_OVERVIEW_FIRST = ("pipeline", "state", "lag", "pending", "seconds", "dead", "partitions")


class Sort(StrEnum):
    """The order of the partitions in the table."""

    LAG = "lag"
    NAME = "name"


AnyName = Annotated[str | None, typer.Argument(help="The pipeline; without it, all of them.", show_default=False)]
SortBy = Annotated[Sort, typer.Option("--sort", help="Partitions with the largest lag first, or by name.")]
Watch = Annotated[bool, typer.Option("--watch", help=f"Show it again every {WATCH_SECONDS:.0f} seconds.")]


def status(
    name: AnyName = None,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    lane: options.Lane = LIVE,
    sort: SortBy = Sort.LAG,
    watch: Watch = False,
    now: options.Now = None,
    as_json: options.Json = False,
) -> None:
    """Show each partition live from the broker: log, committed offset, floor, pending records, lag, what holds it.

    Without a name it shows every pipeline on a line, the worst first, and ends with 1 if one of them can't be read.
    The states are, the worst first: losing, stuck, failing, unknown, paused, waiting, working, up to date.

    Examples: `ackline status`, `ackline status orders --topic orders --watch`, `ackline status orders --json`
    """
    if watch and as_json:
        raise ConfigError("--watch shows a table: leave out --json", key="--watch")
    choice = options.choice_of(topic, partition)
    while True:
        away: Unreachable | None = None
        unreadable = 0
        if name is None:
            unreadable = _show_all(now, as_json)
        else:
            away = _show_one(name, choice, lane, sort, now, as_json)
        if not watch:
            options.end_unreachable(away, as_json)
            if unreadable:
                raise typer.Exit(1)
            return
        time.sleep(WATCH_SECONDS)
        tables.console().clear()


# ---- one pipeline -------------------------------------------------------------------------------------------------


def _show_one(
    name: str, choice: PartitionChoice, lane: str, sort: Sort, now: str | None, as_json: bool
) -> Unreachable | None:
    """Shows a lane. Returns why its broker was not read; None if it was."""
    with options.opened_to_read(name, now, lane) as (adapters, away):
        standing = standstill_of(adapters, away is None)
        every, missing = status_and_missing(adapters, away is None)
        tps = {TopicPartition(found.topic, found.partition): found for found in every}
        chosen = [tps[tp] for tp in choice.chosen(tps, name)] if choice != PartitionChoice() else every
        figures, open_turn = _step_figures(adapters), open_turn_of(adapters)
        if as_json:
            formats.print_json(status_object(name, chosen, missing, figures, open_turn, standing, away))
            return away
        shown = tables.worst_first(chosen)[: tables.MOST_PARTITIONS]
        held, time_now = held_back(adapters, shown, standing), adapters.now()
    out = tables.console()
    tables.print_standstill(out, standing, away)
    tables.print_lines(out, [f"{tables.missing_text(absent)}." for absent in missing])
    tables.print_status(out, name, chosen, by_name=sort is Sort.NAME)
    if figures is not None:
        out.print(tables.steps_table(figures, out.width))
    tables.print_lines(out, [*_held_lines(held, time_now), *_last_action_lines(name, lane, time_now)])
    return away


def _step_figures(adapters: Adapters) -> StepFigures | None:
    """Returns what the steps did in the newest turns; None for a pipeline with neither steps nor outputs.

    Without steps, the pipeline's handler is the one step, `source`.
    """
    topology = adapters.pipeline.topology
    if topology is None:
        return None
    newest = adapters.store.newest()
    if newest is None:
        return StepFigures.of_steps(topology.names)
    return step_figures(adapters.store, newest.turn, topology.names)


def _held_lines(held: HeldBack, now: datetime) -> list[str]:
    lines = ["Held by:"] if held.explanations else []
    lines += [f"  {explanation.sentence}" for explanation in held.explanations]
    if held.more:
        lines.append(f"  … and {held.more} more of these partitions; `ackline explain` shows them.")
    return lines + (open_turn_lines(held.open_turn, now) if held.open_turn is not None else [])


def open_turn_lines(open_turn: OpenTurn, now: datetime) -> list[str]:
    """Returns who has planned the open turn of a lane, and which process replays it now."""
    plan, holder = open_turn.plan, open_turn.holder
    who = f"run {plan.run_id}" + (f" of {plan.actor}" if plan.actor else "")
    line = f"Open: {plan.turn}, planned {_ago(plan.planned_at, now)} by {who}."
    if holder is None:
        return [line, "  No process holds its lease."]
    state = {
        HolderState.ACTIVE: f"renewed {span(holder.unrenewed)} ago",
        HolderState.LAPSED: f"lapsed: not renewed for {span(holder.unrenewed)}, so the next run goes on with it",
        HolderState.ENDED: "its process has ended, so the next run goes on with it",
    }
    return [line, f"  Replayed by {holder.lease}; {state[holder.state]}."]


def _last_action_lines(name: str, lane: str, now: datetime) -> list[str]:
    for action in settled_turns(audit_root(), name, lane, 1, actions_only=True):
        reason = f": {action.reason}" if action.reason else ""
        # An action of the kind of a run is `ackline void`, which has recorded the turn of a run as lost.
        kind = TurnKind.VOID if action.kind == TurnKind.RUN else action.kind
        return [f"Last action: {kind} by {action.actor or 'unknown'}, {_ago(action.end, now)}{reason}"]
    return []


def _ago(at: datetime, now: datetime) -> str:
    return f"{span(max(now - at, now - now))} ago"


# ---- all pipelines ------------------------------------------------------------------------------------------------


def _show_all(now: str | None, as_json: bool) -> int:
    """Shows every pipeline: first what it stands still for, then the table. Returns how many can't be read."""
    folder = pipelines_folder()
    check_folder(folder)
    loaded = load_folder(folder)
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(lambda name: _summary(name, now), sorted(loaded.pipelines)))
    found = [each.model_copy(update={"tags": tuple(loaded.pipelines[each.pipeline].tags)}) for each in found]
    found += [_unreadable(path.stem, error) for path, error in loaded.broken.items()]
    worst = sorted(found, key=lambda summary: (summary.state.rank, -(summary.lag or 0), summary.pipeline))
    unreadable = sum(not each.readable for each in found)
    if as_json:
        formats.print_json(OverviewObject(pipelines=tuple(worst)))
        return unreadable
    rows = [
        [
            *(each.pipeline, each.state.value, each.partitions, each.lag),
            None if each.lag_seconds is None else round(each.lag_seconds),
            *(each.pending, each.dead, tables.short_time(each.next_due)),
        ]
        for each in worst
    ]
    out, stopped = tables.console(), dict[str, list[str]]()
    for each in worst:
        if _comes_first(each):
            standing = each.stands_still if each.readable else None
            line = standing.line if standing is not None else f"{str(each.problem).rstrip('.')}."
            stopped.setdefault(line, []).append(each.pipeline)
    tables.print_lines(out, [f"{', '.join(names)}: {line}" for line, names in stopped.items()], "red")
    notes = ["" if _comes_first(each) else each.problem or "" for each in worst]
    tables.print_folded(out, None, _OVERVIEW, rows, _OVERVIEW_FIRST, notes)
    if not worst:
        out.print(f"No pipeline files in {folder}.")
    return unreadable


def _comes_first(status: PipelineStatus) -> bool:
    """Returns whether the overview prints a line about a pipeline before its table: each run stops, a part of the lane
    stands still, or it is failing. The lines are in the order of the table, so a pause never stands above a failure."""
    return status.problem is not None and (
        status.stands_still is not None or status.state.rank <= State.FAILING.rank or not status.readable
    )


def _summary(name: str, now: str | None) -> PipelineStatus:
    try:
        with options.opened_to_read(name, now) as (adapters, away):
            standing = standstill_of(adapters, away is None)
            try:
                partitions, missing = status_and_missing(adapters, away is None)
            except AcklineError:  # the tables that can't be read are what the lane stands still for
                if standing is None:
                    raise
                return PipelineStatus(
                    pipeline=name, state=State.STUCK, problem=standing.sentence, stands_still=standing
                )
        return summary_of(name, partitions, missing, standing, away)
    except AcklineError as error:
        return _unreadable(name, error)


def _unreadable(name: str, error: Exception) -> PipelineStatus:
    return PipelineStatus(pipeline=name, state=State.UNKNOWN, readable=False, problem=str(error))


Limit = Annotated[int, typer.Option(help="At most this many turns.", min=1, max=2**31)]
Actions = Annotated[bool, typer.Option("--actions", help="Only the actions of operators.")]
_FIRST = ("end", "turn", "kind", "records", "outcomes", "new failed", "actor", "reason", "seconds", "code", "run")
"""The columns by importance, for a terminal that is too narrow for all."""


def history(
    name: options.Name,
    lane: options.AnyLane = None,
    limit: Limit = 20,
    actions: Actions = False,
    as_json: options.Json = False,
) -> None:
    """List the settled turns of a pipeline, newest first: runs and actions, with actors, reasons, durations and counts.

    Examples: `ackline history orders`, `ackline history orders --actions --limit 5`
    """
    options.pipeline_named(name)
    if lane is not None:
        options.check_lane(name, lane)
    turns = settled_turns(audit_root(), name, lane, limit, actions)
    if as_json:
        formats.print_json(HistoryObject.model_validate({"pipeline": name, "turns": turns}))
        return
    columns = ["end", "turn", "kind", "seconds", "records", "outcomes", "new failed", "actor", "run", "code", "reason"]
    out = tables.console()
    tables.print_table(out, None, columns, map(_history_row, turns), _FIRST)
    if not turns:
        out.print("No turn is settled yet.")


def _history_row(turn: Any) -> list[Any]:
    outcomes = ", ".join(f"{number:,} {word}" for word, number in turn.outcomes.items())
    number = f"{turn.epoch}.{turn.turn}" if turn.lane == "live" else f"{turn.lane} {turn.epoch}.{turn.turn}"
    seconds = None if turn.duration is None else round(turn.duration, 1)
    share = f"{turn.new_failed / turn.new_records:.1%} of {turn.new_records:,}" if turn.new_records else None
    return [
        *(turn.end, number, turn.kind, seconds, turn.records, outcomes or None, share, turn.actor, turn.run_id),
        *(turn.code, turn.reason),
    ]


COMMANDS = {"status": status, "history": history}
