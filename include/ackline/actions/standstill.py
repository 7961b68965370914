"""What a lane stands still for: the error with which each run would stop, and the command that ends it.

Status, explain, doctor and the page show it first. It is found by the checks that a run does, without a write, so that
none of them can say that all is well beside a lane whose runs are refused.
"""

import re
from collections.abc import Callable
from contextlib import suppress

from ackline.actions.actions import run_command
from ackline.actions.objects import JsonObject
from ackline.errors import AcklineError, GroupMoved, LedgerError, NewerCommit, TooManyFailures, TopicChanged
from ackline.lane.adapters import Adapters
from ackline.lane.claim import void_advice
from ackline.lane.commit import allowed_commits
from ackline.lane.log_checks import check_not_truncated, check_topic_not_recreated, observe_kafka
from ackline.lane.plans import check_open_plan_settings, check_settings_unchanged
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnKind
from ackline.outputs.turn import check_publishable
from ackline.steps.plan import preview
from ackline.steps.settle import BREAKER

PAUSED_LANE = "Paused"
"""The reason of a lane that an operator has paused."""
_COMMAND = re.compile(r"`(ackline [^`]+)`")


class StandsStill(JsonObject):
    """What a lane stands still for. `reason` is the class of the error with which a run stops, or a state of the lane;
    `sentence` says what happened and what to do; `command` is the command that ends it."""

    reason: str
    sentence: str
    command: str | None

    @property
    def line(self) -> str:
        """The line that a person reads first."""
        return f"The lane stands still ({self.reason}): {self.sentence.rstrip('.')}."


def what_stands_still(adapters: Adapters) -> StandsStill | None:
    """Returns what each run of the lane stops with; None if the next run goes on. Stores nothing.

    Raises nothing of a lane's state: what can't be read, is what the lane stands still for.
    """
    try:
        newest, open_plan = adapters.newest_and_open_plan()
    except AcklineError as error:
        return _of_error(adapters, error)
    planning = _error_of(lambda: _check_plan(adapters, newest, open_plan))
    # An error about another ledger or another log comes first: beside it, an output table seems to be behind too.
    if newest is not None and not isinstance(planning, NewerCommit | GroupMoved | TopicChanged):
        lacking = list[str]()
        unpublished = _error_of(lambda: lacking.extend(check_publishable(adapters, newest)))
        if unpublished is not None:
            return _of_error(adapters, unpublished)
        if lacking and planning is None:
            return StandsStill(
                reason="Unpublished",
                sentence=f"{newest.turn} is settled, and its rows are not yet in {', '.join(lacking)}; the group is "
                f"not committed before. Publish them with `{run_command(adapters)}`",
                command=run_command(adapters),
            )
    if planning is not None:
        return _of_error(adapters, planning)
    if newest is not None and (closed := _closed_by_breaker(adapters, newest)):
        return closed
    if newest is not None and open_plan is None and (paused := _paused(adapters, newest)):
        return paused
    busy = _error_of(adapters.group.check_no_members) if adapters.commits else None
    return None if busy is None else _of_error(adapters, busy)


def _error_of(check: Callable[[], object]) -> AcklineError | None:
    try:
        check()
    except AcklineError as error:
        return error
    return None


def _of_error(adapters: Adapters, error: AcklineError) -> StandsStill:
    name = adapters.pipeline.name
    # The whole command line: a message may also name a command in passing.
    commands = [command for command in _COMMAND.findall(str(error)) if name in command.split()]
    command = commands[0] if commands else f"ackline doctor {name}"
    return StandsStill(reason=type(error).__name__, sentence=str(error), command=command)


def _check_plan(adapters: Adapters, newest: Settlement | None, open_plan: Plan | None) -> None:
    """Raises what stops a run before it has a plan to replay, or stops each settlement of the open plan."""
    if adapters.store.lane == LIVE:
        preview(adapters)
    elif newest is not None:
        # The plan of a backfill reads its own ranges; its log and its settings are checked as those of a run.
        view = observe_kafka(adapters, newest)
        for tp, settled in newest.partitions.items():
            topic_id = view.topic_ids.get(tp.topic)
            check_topic_not_recreated(adapters, tp, settled.topic_id, topic_id, tp in view.bounds)
        check_not_truncated(adapters, newest.partitions, view.bounds)
        if open_plan is None:
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
    if adapters.commits:
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


def _paused(adapters: Adapters, newest: Settlement) -> StandsStill | None:
    """Returns that each partition which the lane reads is paused."""
    lane = {tp: settled for tp, settled in newest.partitions.items() if not settled.let_go}
    read = [settled.paused for tp, settled in lane.items() if adapters.is_subscribed(tp)]
    if not read or not all(read):
        return None
    command = f"ackline resume {adapters.pipeline.name}"
    sentence = f"all its partitions are paused, so a run reads nothing. Go on with `{command}`"
    return StandsStill(reason=PAUSED_LANE, sentence=sentence, command=command)
