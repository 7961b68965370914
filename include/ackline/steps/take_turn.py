"""The one loop that takes a turn of a lane: every plan of a run, an operator action and a cancellation goes through it.

Each round reads the ledger anew, and moves it by one turn at most. It meets an open turn, or stores plan n + 1, which
is refused if another process has taken the number. Nothing was stored then, and the next round finds what the other
process has stored. So two processes never plan the same offsets side by side (S53), and an operator action never runs
beside a replay.

What differs between the callers is what they make of an open turn, and which plan follows the newest settlement. They
give both as functions. The checks that may refuse a plan are part of making it, because they differ: a reset and a
cancellation are the way out of changed settings, so they do not check these, and only some actions ask the group.

`ackline.lane.commit` has a loop of its own over the same rounds: the commit of the group takes no number.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ackline.errors import NewerCommit
from ackline.lane.adapters import Adapters
from ackline.lane.claim import close_if_waived
from ackline.lane.commit import Rounds
from ackline.lane.plans import check_clock
from ackline.ledger.turns import Plan, Settlement, TurnKind
from ackline.outputs.turn import store_plan


@dataclass(frozen=True, slots=True)
class TakenTurn:
    """The turn that a step has taken, and the settlement before it; `plan` is None if nothing was to be planned.

    `adopted` is whether the turn was open: this process, or another one at any time before, has stored its plan.
    """

    plan: Plan | None
    before: Settlement
    adopted: bool = False


def take_turn(
    adapters: Adapters,
    doing: str,
    kinds: Collection[TurnKind],
    *,
    begin: Callable[[], object],
    end: Callable[[Plan, Settlement], bool],
    make: Callable[[Settlement], Plan | None],
) -> TakenTurn:
    """Returns the lane's open turn, or else a new one of one of `kinds`, whose plan this process has stored.

    A new plan of another kind is stored on the way, and the next round meets it as an open turn. `begin` begins a lane
    that has no settlement, or raises. `end` gets an open plan and the settlement before it, and returns whether it has
    ended that turn, or raises; the turn is adopted if it has not. `make` returns the plan after a settlement, None if
    there is nothing to plan, or raises what refuses the turn; it stores nothing of the turn.

    Raises LedgerError after MAX_LOST_RACES rounds, whose message begins with `doing`; NewerCommit if the group holds a
    commit of another ledger; ConfigError for a fixed clock behind the last turn; and what `begin`, `end`, `make` and
    `store_plan` raise.
    """
    rounds = Rounds(adapters, doing)
    for newest in rounds:
        open_plan = adapters.store.open_plan(newest) if newest else None
        if newest and open_plan:
            # Before a waived turn is closed: a void settlement at an earlier time would move the lane's clock back.
            check_clock(adapters, newest.settled_at)
            # The process that has waived a turn may have died before it could close it. Any process closes it.
            if close_if_waived(adapters, open_plan, newest) or end(open_plan, newest):
                continue
            # A lane has at most one open plan. It is adopted, whichever process has stored it and however long ago. A
            # second plan would handle the same offsets twice.
            check_clock(adapters, open_plan.planned_at)
            return TakenTurn(open_plan, newest, adopted=True)
        try:
            if newest is None:
                begin()
                continue
            check_clock(adapters, newest.settled_at)
            plan = make(newest)
            # The write that starts a turn. It publishes the rows of the settled turn first, so that no number is taken
            # before every output table holds the turn before it. From here on every process adopts this plan; before
            # it, nothing has happened.
            stored = plan is not None and store_plan(adapters, newest, plan)
        except NewerCommit as error:
            rounds.lose_to(error)
            continue
        if plan is not None and stored and plan.kind is TurnKind.RUN:
            adapters.notify("planned", plan)
        if plan is None or (stored and plan.kind in kinds):
            return TakenTurn(plan, newest)
    raise rounds.all_lost()
