"""Claims, waivers, start markers and lost ranges: what the ledger store keeps of turns under at_most_once.

Claim and waiver n are rivals for one number, so each turn is handed out once or never. Each method that stores returns
whether this process won the number.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from ackline.ledger.fold import OutcomeRow
from ackline.ledger.metrics import TurnReport
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Marker, MarkerKind, OperatorLoss, Plan, TurnId
from ackline.tables.layout import LaneTables
from ackline.tables.lost_files import files_of, removals
from ackline.tables.rows import decision_rows, marker_from_rows, marker_rows, plan_date


class ClaimStore(LaneTables):
    """Which turns of a lane are claimed, waived, started and lost."""

    def has_claim(self, turn: TurnId) -> bool:
        """Returns whether claim n is stored and turn n was not waived: then the floor is the end of plan n.

        False if a later turn is claimed or waived: turn n is over then, and its end may not be committed any more.
        """
        return self._rights(turn) == (True, False)

    def has_waiver(self, turn: TurnId) -> bool:
        """Returns whether turn n was waived: no process may claim it, and it is to be closed as void."""
        return self._rights(turn) == (True, True)

    def _rights(self, turn: TurnId) -> tuple[bool, bool]:
        """Returns whether claim n is the newest number taken, and whether waiver n is.

        Both are read from one version of the table. Read one after the other, waiver n + 1 could hide waiver n.
        """
        claim, waiver = self.plans.versions_of(self._application(turn.epoch, kind) for kind in ("claim", "waiver"))
        return claim == turn.n, waiver == turn.n

    def is_claimable(self, turn: TurnId) -> bool:
        """Returns whether claim n can still be stored: neither turn n nor a later one is claimed or waived."""
        return (self.plans.version_of(self._application(turn.epoch, "claim")) or 0) < turn.n

    def store_claim(self, plan: Plan) -> bool:
        """Claim a plan, by a commit without rows: the plan holds everything. Returns False if number n is taken, by
        another claim or by a waiver."""
        return self.plans.append([], self._application(plan.turn.epoch, "claim"), plan.turn.n)

    def store_waiver(self, plan: Plan, waiver: Marker) -> bool:
        """Take the number of claim n, so that the plan is never handed out. Returns False if number n is taken.

        The waiver is a second transaction id in the same commit. So claim and waiver are rivals for one number, and
        each reader finds out which of the two has won.
        """
        return self._store_marker(plan, waiver, "claim", also="waiver")

    def waiver_of(self, turn: TurnId) -> Marker | None:
        """Returns who waived turn n, and why; None if it was not waived."""
        return self._marker(turn, MarkerKind.WAIVER) if self.has_waiver(turn) else None

    def has_start_marker(self, turn: TurnId) -> bool:
        """Returns whether a process has started a claimed plan."""
        return (self.plans.version_of(self._application(turn.epoch, "start")) or 0) >= turn.n

    def store_start_marker(self, plan: Plan, run_id: str, now: datetime) -> bool:
        """Mark a claimed plan as started. Returns False if another process has started it."""
        return self._store_marker(plan, Marker(MarkerKind.START, run_id, now), "start")

    def started_at(self, turn: TurnId) -> datetime | None:
        """Returns when a claimed plan was started; None if it was not."""
        marker = self._marker(turn, MarkerKind.START)
        return None if marker is None else marker.at

    def _store_marker(self, plan: Plan, marker: Marker, kind: str, also: str | None = None) -> bool:
        """Stores a marker as number n of `kind`; the same commit carries number n of `also`."""
        application, n = self._application(plan.turn.epoch, kind), plan.turn.n
        more = () if also is None else (self._application(plan.turn.epoch, also),)
        return self.plans.append(marker_rows(plan, marker), application, n, more=more)

    def _marker(self, turn: TurnId, kind: MarkerKind) -> Marker | None:
        return marker_from_rows(self._plan_rows({**self._where(turn), "kind": kind.value}, turn))

    def store_lost(
        self,
        plan: Plan,
        run_id: str,
        rows: Mapping[TopicPartition, Iterable[OutcomeRow]],
        operator: OperatorLoss | None = None,
    ) -> bool:
        """Store the lost ranges of a claimed plan as its outcomes. Returns False if outcomes n are stored.

        With `operator`, the same commit marks the turn as closed by an operator, for `operator_loss`.
        """
        table = decision_rows(plan.turn, plan_date(plan.planned_at), run_id, rows)
        note = TurnReport().encode()  # an empty report: these rows are complete, no task has counted others
        application, more = self._application(plan.turn.epoch, "outcomes"), self._marks(plan.turn, operator)
        return self.outcomes.append(table, application, plan.turn.n, note, more)

    def _marks(self, turn: TurnId, operator: OperatorLoss | None) -> list[str]:
        """Returns the transaction ids that mark a commit of lost ranges as an operator's.

        In the same commit, because settle must find the mark if and only if it finds the rows: a driver may report the
        turn between two commits, and then nothing of it is lost.
        """
        kinds = [] if operator is None else ["lost", "lost-pause"] if operator.pause else ["lost"]
        return [self._application(turn.epoch, kind) for kind in kinds]

    def operator_loss(self, turn: TurnId) -> OperatorLoss | None:
        """Returns what an operator has stored with the lost ranges of turn n; None if no operator has lost it.

        Call it while turn n is open: a later turn that is lost hides the mark, and the settlement has it by then.
        """
        lost, pause = self.outcomes.versions_of(self._application(turn.epoch, kind) for kind in ("lost", "lost-pause"))
        return OperatorLoss(self._reason_of_loss(turn), pause == turn.n) if lost == turn.n else None

    def _reason_of_loss(self, turn: TurnId) -> str:
        rows = self.outcomes.read({**self._where(turn), "outcome": Outcome.LOST.value}, ["error_message"])
        return str(next(iter(rows["error_message"].to_pylist()), None) or "")

    def replace_by_lost(
        self, plan: Plan, run_id: str, rows: Mapping[TopicPartition, Iterable[OutcomeRow]], operator: OperatorLoss
    ) -> bool:
        """Store the lost ranges of a claimed plan in place of its stored outcomes, as its decisions, with the mark for
        `operator_loss`. Returns False, and changes nothing, if decisions n are stored.

        One commit stops naming the files and adds the lost ranges. A removal alone would let settle take the removed
        rows for gaps, and count records that were handled as none; ranges alone would give an offset two terminal
        outcomes (I4). The commit takes the number of decisions n, so settle folds either the outcomes as they were
        or the lost ranges, never both.
        """
        table = decision_rows(plan.turn, plan_date(plan.planned_at), run_id, rows)
        # Nothing else rewrites these files meanwhile: a compaction leaves the files of an open turn alone.
        return self.outcomes.append(
            table,
            self._application(plan.turn.epoch, "decisions"),
            plan.turn.n,
            more=self._marks(plan.turn, operator),
            remove=lambda version: removals(files_of(version, {(plan.turn.epoch, plan.turn.n)})),
        )
