"""What a lane stands still for: the error with which each run would stop, and the command that ends it.

Status, explain, doctor and the page show it first. It is found by the checks that a run does, without a write, so that
none of them can say that all is well beside a lane whose runs are refused. What keeps single partitions or dead letters
back, while the rest of the lane goes on, is a partial stand-still.
"""

from collections.abc import Callable
from contextlib import suppress

from ackline.errors import (
    AcklineError,
    GroupMoved,
    LedgerError,
    NewerCommit,
    OffsetsPending,
    TooManyFailures,
    TopicChanged,
    TransientError,
    counted,
)
from ackline.lane.adapters import Adapters
from ackline.lane.commit import allowed_commits
from ackline.lane.log_checks import listed, without_leader
from ackline.lane.plans import check_clock, check_open_plan_settings, check_settings_unchanged
from ackline.lane.ways_out import StandsStill, paused_partitions, run, unpublished_rows, void_advice
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import Plan, Settlement, TurnKind
from ackline.outputs.checks import check_outputs_of
from ackline.outputs.publish import check_publishable
from ackline.outputs.settled import check_open_skip, check_staged_rows
from ackline.steps.plan import preview
from ackline.steps.settle import BREAKER


def what_stands_still(
    adapters: Adapters, check_next: Callable[[Adapters], object] = preview, reads_broker: bool = True
) -> StandsStill | None:
    """Returns what each run of the lane stops with, or else what keeps a part of it back; None if the next run goes on.

    Stores nothing. `check_next` makes the checks of the next plan: that of a run, or that of the lane of a backfill.
    Without `reads_broker` it checks the tables alone.

    Never raises for the state of a lane: a table that can't be read is itself the reason. What passes by itself, as an
    answer that does not come in time, is nothing that a lane stands still for; but a transaction that holds offsets of
    the group is, because it may hang.
    """
    found: StandsStill | AcklineError | None = None
    for _ in range(_LOOKS):
        try:
            newest, open_plan = adapters.newest_and_open_plan()
            found = _found(adapters, newest, open_plan, check_next, reads_broker)
            # A run that goes on meanwhile removes files of a turn that it has settled, as if they were lost.
            if found is None or _place(*adapters.newest_and_open_plan()) == _place(newest, open_plan):
                break
        except AcklineError as error:
            found = None if _passes(error) else error
            break
    return StandsStill.of(found, adapters.pipeline.name) if isinstance(found, AcklineError) else found


_LOOKS = 3
"""How often a lane is looked at that another process moves on meanwhile."""


def _place(newest: Settlement | None, open_plan: Plan | None) -> tuple[object, object]:
    return newest and newest.turn, open_plan and open_plan.turn


def _found(
    adapters: Adapters,
    newest: Settlement | None,
    open_plan: Plan | None,
    check_next: Callable[[Adapters], object],
    reads_broker: bool,
) -> StandsStill | AcklineError | None:
    planning = _error_of(lambda: _check_plan(adapters, newest, open_plan, check_next if reads_broker else None))
    if planning is not None and open_plan is not None:
        return planning  # no other turn is taken before the open one has ended
    # An error about another ledger or another log comes first: beside it, an output table seems to be behind too.
    if newest is not None and not isinstance(planning, NewerCommit | GroupMoved | TopicChanged):
        lacking = list[str]()
        unpublished = _error_of(lambda: lacking.extend(check_publishable(adapters, newest)))
        if unpublished is not None:
            return unpublished
        if lacking and planning is None:
            return unpublished_rows(newest.turn, lacking)
    if planning is not None:
        return planning
    if newest is not None and (closed := _closed_by_breaker(newest)):
        return closed
    # Kafka takes no commit of a group with live members. A lane that is paused as a whole commits all the same.
    busy = _error_of(adapters.group.check_no_members) if reads_broker and adapters.commits else None
    if busy is not None:
        return busy
    return None if newest is None else _keeps_back(adapters, newest, open_plan, reads_broker)


def _error_of(check: Callable[[], object]) -> AcklineError | None:
    try:
        check()
    except AcklineError as error:
        return None if _passes(error) else error
    return None


def _passes(error: AcklineError) -> bool:
    return isinstance(error, TransientError) and not isinstance(error, OffsetsPending)


def _check_plan(
    adapters: Adapters,
    newest: Settlement | None,
    open_plan: Plan | None,
    check_next: Callable[[Adapters], object] | None,
) -> None:
    """Raises what stops a run before it has a plan to replay, or stops each settlement of the open plan. Without
    `check_next` it makes the checks that need no broker."""
    if newest is not None:
        check_clock(adapters, newest.settled_at)
    if open_plan is not None:
        check_clock(adapters, open_plan.planned_at)
    if check_next is not None:
        check_next(adapters)
    elif newest is not None and open_plan is None:
        check_settings_unchanged(adapters, newest)
    if newest is None or open_plan is None:
        return
    if open_plan.kind.replays:
        if adapters.store.has_lost_files(open_plan.turn):
            raise LedgerError(
                f"{open_plan.turn} can't be settled: files of its outcomes are gone or damaged. Restore the folder of "
                f"the tables from a backup. {void_advice(open_plan.turn)}"
            )
        if open_plan.settings and not adapters.store.has_outcomes(open_plan.turn):
            check_open_plan_settings(adapters, open_plan)
        elif open_plan.settings:
            check_staged_rows(adapters, open_plan)
        check_outputs_of(adapters.of_turn(open_plan), open_plan, probe=False)
    elif open_plan.kind is TurnKind.SKIP:
        check_open_skip(adapters, open_plan, newest)
    if adapters.commits and check_next is not None:
        # Under `follow` the plan after this turn follows the group, so its commit stops no later run.
        with suppress(*((GroupMoved,) if adapters.pipeline.on_external_reset == "follow" else ())):
            allowed_commits(adapters, newest)


def _closed_by_breaker(newest: Settlement) -> StandsStill | None:
    """Returns that the breaker has closed the newest turn: the next run reads the same records again."""
    if newest.kind is not TurnKind.VOID or not newest.reason.startswith(BREAKER):
        return None
    command = f"{run(newest.turn)} --no-breaker"
    sentence = (
        f"{newest.reason}. {newest.turn} is void: nothing of it was settled or committed. Mend the handler and run "
        f"again, or let it through with `{command}`"
    )
    return StandsStill(TooManyFailures.__name__, sentence, command)


def _keeps_back(
    adapters: Adapters, newest: Settlement, open_plan: Plan | None, reads_broker: bool
) -> StandsStill | None:
    """Returns what keeps a part of the lane back: dead letters, partitions without a leader, or paused ones. The lane
    as a whole stands still if all its partitions are paused."""
    lane = {tp: row for tp, row in newest.partitions.items() if not row.let_go and adapters.is_subscribed(tp)}
    letters = {tp: row.state.pending_by_kind()[PendingKind.DEAD_LETTER] for tp, row in lane.items()}
    if any(letters.values()) and (topic := adapters.pipeline.dead_letter_topic) is not None:
        waiting = listed(f"{tp} {number:,}" for tp, number in sorted(letters.items()) if number)
        number, command = sum(letters.values()), f"ackline doctor {adapters.pipeline.name}"
        return StandsStill(
            "DeadLetters",
            f"the topic {topic} has not acknowledged {counted(number, 'dead letter')} ({waiting}), so the "
            f"records stay pending. Each run sends them again, and its log has the broker's reason. Mend the "
            f"topic; `{command}` checks it",
            command,
            partial=True,
        )
    leaderless = without_leader(adapters, lane) if reads_broker else []
    if leaderless:
        return StandsStill(
            "NoLeader",
            f"{listed(map(str, leaderless))} {'has' if len(leaderless) == 1 else 'have'} no leader, so runs "
            f"leave {'it' if len(leaderless) == 1 else 'them'} out. Mend the broker, or wait for it",
            None,
            partial=len(leaderless) < len(lane),
        )
    paused = [tp for tp, row in sorted(lane.items()) if row.paused]
    if not paused or (open_plan is not None and len(paused) == len(lane)):
        return None
    verb, them = ("is", "it") if len(paused) == 1 else ("are", "them")
    acts = sorted({act for tp, act in adapters.store.pauses().items() if tp in paused})
    since = f" {acts[0]}" if acts else ""
    since += f" (the first of {len(acts)} pauses)" if len(acts) > 1 else ""
    if len(paused) == len(lane):
        return paused_partitions(newest.turn, since)
    some = f"{listed(map(str, paused))} {verb} paused{since}, so a run reads nothing of {them}"
    return paused_partitions(newest.turn, since, some)
