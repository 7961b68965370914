"""The ledger store: what was planned, proved and settled, by turn.

Plan n, outcomes n, decisions n and settlement n of a lane and epoch are one fenced commit each. Each method that stores
returns whether this process won the number. A process that lost it goes on with the winner's version, which it reads
here.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from weakref import ReferenceType, ref

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from ackline.errors import LedgerError
from ackline.ledger.account import ResultRuns
from ackline.ledger.fold import OutcomeRow, PartitionState
from ackline.ledger.metrics import TurnReport
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import AnswerReport, Plan, Settlement, TurnId, TurnKind
from ackline.tables.chosen import (
    DeadRow,
    OutcomeFilter,
    RangesByPartition,
    read_dead_rows,
    read_terminal_offsets,
    read_terminal_results,
)
from ackline.tables.claims import ClaimStore
from ackline.tables.effective import void_turns
from ackline.tables.layout import check_layout, lanes_of
from ackline.tables.lost_files import drop_lost_files, lost_files
from ackline.tables.reads import TurnFiles, as_expression
from ackline.tables.rows import (
    decision_rows,
    plan_date,
    plan_from_rows,
    plan_rows,
    settlement_from_rows,
    settlement_rows,
    without_markers,
)
from ackline.tables.turn_outcomes import (
    Attempts,
    Failures,
    TurnOutcomes,
    count_first_attempts,
    count_unacked,
    read_last_failures,
    read_turn_outcomes,
)

COUNTED_STARTS = 3
"""Starts of a plan that are counted. After the third without outcomes, the next one isolates the handler."""


class LedgerStore(ClaimStore):
    """The ledger of one lane of a pipeline, in its tables below an audit root."""

    def __init__(self, root: str, pipeline: str, lane: str) -> None:
        super().__init__(root, pipeline, lane)
        self._last: ReferenceType[Settlement] | None = None
        """The settlement that was read or stored last, as long as any step holds it."""

    # ---- settlements ----------------------------------------------------------------------------------------------

    def newest(self) -> Settlement | None:
        """Returns the newest settlement of the newest epoch, or None if the lane has none yet.

        Raises ConfigError if it has none because the tables below the root have the first layout.
        """
        epoch, n = -1, None
        while (later := self.settlements.version_of(self._application(epoch + 1, "settlement"))) is not None:
            epoch, n = epoch + 1, later
        if n is None:
            self.check_layout()
            return None
        newest = self.settlement(TurnId(self.pipeline, self.lane, epoch, n))
        return self._first_of_new_epoch(newest) if newest.kind is TurnKind.RESET else newest

    def _first_of_new_epoch(self, reset: Settlement) -> Settlement:
        """Returns turn 0 of the epoch that a reset opens. It has no rows of its own: the reset's plan holds its starts.

        So no crash can leave an epoch that is closed while the next one is not open.
        """
        targets = self.plan(reset.turn).partitions
        partitions = {}
        for tp, settled in reset.partitions.items():
            start = targets[tp].fresh.start if tp in targets else settled.state.floor
            partitions[tp] = replace(
                settled, old_floor=start, state=PartitionState(start), counts={}, gaps=0, metrics=None, totals=None
            )
        turn = reset.turn._replace(epoch=reset.turn.epoch + 1, n=0)
        return replace(reset, turn=turn, kind=TurnKind.GENESIS, partitions=partitions)

    def check_layout(self) -> None:
        """Raises ConfigError if the tables below the root have the first layout."""
        check_layout(self.root)

    def settlement(self, turn: TurnId) -> Settlement:
        """Returns a stored settlement. Raises LedgerError if it is not stored.

        A stored settlement never changes. So one that a step of this process still holds is not read again: it may have
        millions of pending ranges.
        """
        last = self._last() if self._last else None
        if last is not None and last.turn == turn:
            return last
        rows = self.settlements.read_turn(self._where(turn), self._application(turn.epoch, "settlement"), turn.n)
        if not rows.num_rows and turn.n == 0:  # the first run found no topic: the lane has begun without a partition
            return Settlement(turn, TurnKind.GENESIS, "", datetime.min.replace(tzinfo=UTC), {})
        return self._remember(settlement_from_rows(self._check_has_rows(rows, self.settlements, turn, "settlement")))

    def _remember(self, settlement: Settlement) -> Settlement:
        self._last = ref(settlement)
        return settlement

    def store_settlement(
        self, settlement: Settlement, plan: Plan | None = None, subscription: Mapping[str, Any] | None = None
    ) -> bool:
        """Store a settlement. Returns False if its number is taken.

        A first genesis has no plan, and without a topic it has no row either. The `subscription` that it was made for
        (the `kafka` block of a plan's settings) is therefore stored as the note of its commit.
        """
        day = plan_date(plan.planned_at if plan else settlement.settled_at)
        application = self._application(settlement.turn.epoch, "settlement")
        note = json.dumps(subscription) if subscription is not None else None
        stored = self.settlements.append(settlement_rows(settlement, day), application, settlement.turn.n, note)
        if stored and settlement.partitions:
            self._remember(settlement)
        return stored

    def is_settled(self, turn: TurnId) -> bool:
        """Returns whether settlement n is stored, void ones included."""
        return (self.settlements.version_of(self._application(turn.epoch, "settlement")) or 0) >= turn.n

    def first_subscription(self, genesis: TurnId) -> dict[str, Any] | None:
        """Returns the subscription of the first genesis; None if the Delta log has expired it."""
        note = self.settlements.note_of(self._application(genesis.epoch, "settlement"), genesis.n)
        return dict(json.loads(note)) if note else None

    def reset_into(self, epoch: int) -> TurnId:
        """Returns the reset that opened an epoch: the last turn of the epoch before it."""
        n = self.settlements.version_of(self._application(epoch - 1, "settlement"))
        return TurnId(self.pipeline, self.lane, epoch - 1, n or 0)

    def tallies(self, last: TurnId) -> tuple[Counter[str], int]:
        """Returns the sums over the turns of an epoch up to `last`: offsets by outcome, and gaps."""
        rows = self.settlements.read({"epoch": last.epoch}, ["turn", "counts", "gaps"])
        rows = rows.filter(pc.less_equal(rows["turn"], last.n))
        counts: Counter[str] = Counter()
        for row in rows["counts"].to_pylist():
            counts.update(dict(row or ()))
        return counts, sum(number or 0 for number in rows["gaps"].to_pylist())

    def terminal_offsets(
        self, epoch: int, topic_ids: Mapping[str, str], wanted: OutcomeFilter | None
    ) -> tuple[RangesByPartition, RangesByPartition]:
        """Returns the offsets of an epoch whose terminal outcome is wanted, by partition: of turns whose plan has the
        given id of the topic, and of turns in an older topic of the same name.

        None wants every terminal outcome. Raises FatalError if the tables can't be read.
        """
        return read_terminal_offsets(self, epoch, topic_ids, wanted)

    def terminal_results(self, epoch: int, topic_ids: Mapping[str, str]) -> dict[TopicPartition, ResultRuns]:
        """Returns the terminal outcome and error class of each offset that an epoch has settled, in the topics of these
        ids. Raises FatalError if the tables can't be read."""
        return read_terminal_results(self, epoch, topic_ids)

    def dead_rows(self, epoch: int, topic_ids: Mapping[str, str]) -> Iterator[DeadRow]:
        """Yields the dead records of an epoch in the topics of these ids. Raises FatalError if the tables can't be
        read."""
        yield from read_dead_rows(self, epoch, topic_ids)

    def lanes(self) -> list[str]:
        """Returns the lanes of the pipeline that have tables, the live one first."""
        return [lane.lane for lane in lanes_of(self.root, self.pipeline)]

    def other_lane(self, lane: str) -> "LedgerStore":
        """Returns the ledger of another lane of the same pipeline."""
        return LedgerStore(self.root, self.pipeline, lane)

    # ---- plans ----------------------------------------------------------------------------------------------------

    def open_plan(self, newest: Settlement) -> Plan | None:
        """Returns the plan that is stored and not settled. A lane has at most one.

        Returns None, too, if another process has settled a turn since `newest` was read. Raises LedgerError if a
        settlement between the two is missing.
        """
        turn = newest.turn
        n = self.plans.version_of(self._application(turn.epoch, "plan"))
        if n is None or n <= turn.n:
            return None
        if n != turn.n + 1:
            now = self.newest()
            if now is not None and (now.turn.epoch, now.turn.n) > (turn.epoch, turn.n):
                return None  # every number that the caller could store after `newest` is taken, so None costs nothing
            raise LedgerError(
                f"plan {n} is stored, but only turn {turn.n} is settled: a commit of the tables is missing. Restore "
                f"the folder of the tables from a backup"
            )
        return self.plan(turn._replace(n=n))

    def plan(self, turn: TurnId) -> Plan:
        """Returns a stored plan. Raises LedgerError if it is not stored."""
        rows = without_markers(self._plan_rows(self._where(turn), turn))
        return plan_from_rows(self._check_has_rows(rows, self.plans, turn, "plan"))

    def store_plan(self, plan: Plan) -> bool:
        """Store a plan. Returns False if its number is taken."""
        return self.plans.append(plan_rows(plan), self._application(plan.turn.epoch, "plan"), plan.turn.n)

    def count_start(self, plan: Plan) -> int:
        """Count a start of a plan. Returns how many there were with this one, at most COUNTED_STARTS + 1.

        Each start takes a number of its own, so two at the same time are counted as two.
        """
        for number in range(1, COUNTED_STARTS + 1):
            if self.plans.append([], self._application(plan.turn.epoch, f"try-{number}"), plan.turn.n):
                return number
        return COUNTED_STARTS + 1

    # ---- outcomes and decisions -----------------------------------------------------------------------------------

    def has_outcomes(self, turn: TurnId) -> bool:
        """Returns whether outcomes n are stored, which is the only proof that replay handled the turn."""
        return (self.outcomes.version_of(self._application(turn.epoch, "outcomes")) or 0) >= turn.n

    def store_outcomes(self, turn: TurnId, files: Sequence[AddAction], report: TurnReport | None = None) -> bool:
        """Make files of outcomes visible, all of them or none; zero files too. Returns False if the number is taken.

        The report of the tasks is the note of the same commit. So settle finds the report of exactly these outcomes.
        """
        note = report.encode() if report else None
        return self.outcomes.append(files, self._application(turn.epoch, "outcomes"), turn.n, note)

    def report_of(self, turn: TurnId) -> TurnReport | None:
        """Returns the tasks' report of a turn; None if there is none, or if the Delta log has expired it."""
        note = self.outcomes.note_of(self._application(turn.epoch, "outcomes"), turn.n)
        return TurnReport.decode(note) if note else None

    def has_lost_files(self, turn: TurnId) -> bool:
        """Returns whether a file of the turn's outcomes does not exist any more, or is cut short or damaged. Reads all
        of them. Raises FatalError if the table can't be read."""
        version = self.outcomes.open()
        with self.outcomes.errors():
            return version is not None and bool(lost_files(self.outcomes, version, {(turn.epoch, turn.n)}, read=True))

    def drop_lost_files(self, void_turn: TurnId) -> None:
        """Stops naming those files of a void turn that do not exist any more, or are cut short or damaged, so that they
        fail no later read."""
        drop_lost_files(self.outcomes, {(void_turn.epoch, void_turn.n)}, read=True)

    def has_decisions(self, turn: TurnId) -> bool:
        """Returns whether decisions n are stored."""
        return (self.outcomes.version_of(self._application(turn.epoch, "decisions")) or 0) >= turn.n

    def store_decisions(
        self,
        plan: Plan,
        run_id: str,
        decisions: Mapping[TopicPartition, Iterable[OutcomeRow]],
        answers: AnswerReport | None = None,
    ) -> bool:
        """Store settle's decisions, zero of them too. Returns False if the number is taken.

        The report of the answers is the note of the same commit: the answers of exactly that range were decided.
        """
        rows = decision_rows(plan.turn, plan_date(plan.planned_at), run_id, decisions)
        note = answers.encode() if answers else None
        return self.outcomes.append(rows, self._application(plan.turn.epoch, "decisions"), plan.turn.n, note)

    def answers_of(self, turn: TurnId) -> AnswerReport | None:
        """Returns the report of the answers that decisions n hold; None if there is none, or if the Delta log has
        expired it."""
        return AnswerReport.decode(self.outcomes.note_of(self._application(turn.epoch, "decisions"), turn.n))

    def void_turns(self, epoch: int) -> set[int]:
        """Returns the numbers of the turns of an epoch that were closed as void. One read, however many turns there
        are."""
        return {n for _, n in void_turns(self.folder, epoch)}

    def outcomes_of(self, turn: TurnId, every_row: bool = False) -> TurnOutcomes:
        """Returns outcomes and decisions of a turn, at the cost of those that did not succeed at once; with
        `every_row`, all of its rows."""
        return read_turn_outcomes(self.outcomes, self._outcome_files(turn), self._where(turn), every_row)

    def outcome_rows_of(self, turn: TurnId) -> Iterator[pa.RecordBatch]:
        """Yields what is stored of a turn: its attempts, the answers from outside, which have the number of the attempt
        that they end, and decisions, which have attempt 0."""
        dataset = self._outcome_files(turn).dataset
        columns = ["topic", "partition", "offset", "end_offset", "attempt", "outcome", "answer"]
        with self.outcomes.errors():
            yield from dataset.to_batches(columns=columns, filter=as_expression(self._where(turn)))

    def last_failures(self, turn: TurnId, attempts: Attempts) -> Failures:
        """Returns why and when the given attempts failed, as far as their rows are there; `turn` has most of them."""
        return read_last_failures(self.outcomes, self._outcome_files(turn), turn, attempts)

    def first_attempts_of(self, turn: TurnId) -> Counter[str]:
        """Returns how many first attempts of a turn had which outcome, by statistics as far as possible."""
        return count_first_attempts(self.outcomes, self._outcome_files(turn), self._where(turn))

    def unacked_of(self, turn: TurnId) -> int:
        """Returns how many first attempts of a turn ended as `Unacked`. It opens the files of failures."""
        return count_unacked(self.outcomes, self._outcome_files(turn), self._where(turn))

    def _outcome_files(self, turn: TurnId) -> TurnFiles:
        # Decisions of a run are stored after its outcomes. An action has decisions only.
        applications = [self._application(turn.epoch, kind) for kind in ("outcomes", "decisions")]
        return self.outcomes.turn_files(self._where(turn), applications, turn.n)
