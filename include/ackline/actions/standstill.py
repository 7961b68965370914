"""What a lane stands still for: the error with which each run would stop, and the command that ends it.

Status, explain, doctor and the page show it first. It is found by the checks that a run does, without a write, so that
none of them can say that all is well beside a lane whose runs are refused. What keeps single partitions or dead letters
back, while the rest of the lane goes on, is a partial stand-still.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress

from ackline.actions.actions import run_command
from ackline.actions.objects import JsonObject
from ackline.errors import (
    AcklineError,
    GroupMoved,
    LedgerError,
    NewerCommit,
    TooManyFailures,
    TopicChanged,
    TransientError,
    command_of,
    counted,
)
from ackline.lane.adapters import Adapters
from ackline.lane.claim import void_advice
from ackline.lane.commit import allowed_commits
from ackline.lane.log_checks import listed
from ackline.lane.plans import check_clock, check_open_plan_settings, check_settings_unchanged
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import Plan, Settlement, TurnKind
from ackline.outputs.checks import check_outputs_of
from ackline.outputs.keep import check_open_skip, check_staged_rows
from ackline.outputs.turn import check_publishable
from ackline.steps.plan import preview
from ackline.steps.settle import BREAKER

PAUSED_LANE, UNPUBLISHED, DEAD_LETTERS, NO_LEADER = "Paused", "Unpublished", "DeadLetters", "NoLeader"
"""The reasons that are states of the lane, and no errors of a run."""


class StandsStill(JsonObject):
    """What a lane stands still for. `reason` is the class of the error with which a run stops, or a state of the lane;
    `sentence` says what happened and what to do; `command` is the command that ends it. A `partial` one keeps a part of
    the lane back, and the rest goes on."""

    reason: str
    sentence: str
    command: str | None
    partial: bool = False

    @property
    def line(self) -> str:
        """The line that a person reads first."""
        what = "A part of the lane" if self.partial else "The lane"
        return f"{what} stands still ({self.reason}): {self.sentence.rstrip('.')}."


def what_stands_still(
    adapters: Adapters, check_next: Callable[[Adapters], object] = preview, reads_broker: bool = True
) -> StandsStill | None:
    """Returns what each run of the lane stops with, or else what keeps a part of it back; None if the next run goes on.

    Stores nothing. `check_next` makes the checks of the next plan: that of a run, or that of the lane of a backfill.
    Without `reads_broker` it checks the tables alone.

    Raises nothing of a lane's state: what can't be read, is what the lane stands still for. What passes by itself, as
    an answer that does not come in time, is nothing that a lane stands still for.
    """
    found = None
    for _ in range(_LOOKS):
        try:
            newest, open_plan = adapters.newest_and_open_plan()
            found = _found(adapters, newest, open_plan, check_next, reads_broker)
            # A run that goes on meanwhile removes files of a turn that it has settled, as if they were lost.
            if found is None or _place(*adapters.newest_and_open_plan()) == _place(newest, open_plan):
                return found
        except TransientError:
            return None
        except AcklineError as error:
            return _of_error(adapters, error)
    return found


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
) -> StandsStill | None:
    planning = _error_of(lambda: _check_plan(adapters, newest, open_plan, check_next if reads_broker else None))
    if planning is not None and open_plan is not None:
        return _of_error(adapters, planning)  # no other turn is taken before the open one has ended
    # An error about another ledger or another log comes first: beside it, an output table seems to be behind too.
    if newest is not None and not isinstance(planning, NewerCommit | GroupMoved | TopicChanged):
        lacking = list[str]()
        unpublished = _error_of(lambda: lacking.extend(check_publishable(adapters, newest)))
        if unpublished is not None:
            return _of_error(adapters, unpublished)
        if lacking and planning is None:
            return StandsStill(
                reason=UNPUBLISHED,
                sentence=f"{newest.turn} is settled, and its rows are not yet in {', '.join(lacking)}; the group is "
                f"not committed before. Publish them with `{run_command(adapters)}`",
                command=run_command(adapters),
            )
    if planning is not None:
        return _of_error(adapters, planning)
    if newest is not None and (closed := _closed_by_breaker(adapters, newest)):
        return closed
    # Kafka takes no commit of a group with live members. A lane that is paused as a whole commits all the same.
    busy = _error_of(adapters.group.check_no_members) if reads_broker and adapters.commits else None
    if busy is not None:
        return _of_error(adapters, busy)
    return None if newest is None else _keeps_back(adapters, newest, open_plan, reads_broker)


def _error_of(check: Callable[[], object]) -> AcklineError | None:
    try:
        check()
    except TransientError:
        return None
    except AcklineError as error:
        return error
    return None


def _of_error(adapters: Adapters, error: AcklineError) -> StandsStill:
    command = command_of(error, adapters.pipeline.name)
    return StandsStill(reason=error.kind, sentence=str(error), command=command)


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
    if open_plan.kind is TurnKind.RUN:
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


def _closed_by_breaker(adapters: Adapters, newest: Settlement) -> StandsStill | None:
    """Returns that the breaker has closed the newest turn: the next run reads the same records again."""
    if newest.kind is not TurnKind.VOID or not newest.reason.startswith(BREAKER):
        return None
    command = f"{run_command(adapters)} --no-breaker"
    sentence = (
        f"{newest.reason}. {newest.turn} is void: nothing of it was settled or committed. Mend the handler and run "
        f"again, or let it through with `{command}`"
    )
    return StandsStill(reason=TooManyFailures.__name__, sentence=sentence, command=command)


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
            reason=DEAD_LETTERS,
            sentence=f"the topic {topic} has not acknowledged {counted(number, 'dead letter')} ({waiting}), so the "
            f"records hold their floors. Each run sends them again, and its log has the broker's reason. Mend the "
            f"topic; `{command}` checks it",
            command=command,
            partial=True,
        )
    leaderless = _without_leader(adapters, lane) if reads_broker else []
    if leaderless:
        return StandsStill(
            reason=NO_LEADER,
            sentence=f"{listed(map(str, leaderless))} {'has' if len(leaderless) == 1 else 'have'} no leader, so runs "
            f"leave {'it' if len(leaderless) == 1 else 'them'} out. Mend the broker, or wait for it",
            command=None,
            partial=len(leaderless) < len(lane),
        )
    paused = [tp for tp, row in sorted(lane.items()) if row.paused]
    if not paused or (open_plan is not None and len(paused) == len(lane)):
        return None
    command = f"ackline resume {adapters.pipeline.name}"
    verb, them = ("is", "it") if len(paused) == 1 else ("are", "them")
    what = f"{listed(map(str, paused))} {verb} paused, so a run reads nothing of {them}"
    whole = "all its partitions are paused, so a run reads nothing"
    return StandsStill(
        reason=PAUSED_LANE,
        sentence=f"{whole if len(paused) == len(lane) else what}. Go on with `{command}`",
        command=command,
        partial=len(paused) < len(lane),
    )


def _without_leader(adapters: Adapters, lane: Iterable[TopicPartition]) -> list[TopicPartition]:
    lane = sorted(lane)
    try:
        topics = adapters.cluster.topics(sorted({tp.topic for tp in lane}))
    except TransientError:
        return []
    return [tp for tp in lane if tp.topic in topics and topics[tp.topic].partitions.get(tp.partition) is False]
