"""The ledger store: what was planned, claimed, proved and settled, by turn.

Plan n, outcomes n, decisions n and settlement n of a lane and epoch are one fenced commit each. Each method that stores
returns whether this process won the number. A process that lost it goes on with the winner's version, which it reads
here. Claim and waiver n are rivals for one number, so under at_most_once each turn is handed out once or never.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import quote, unquote
from weakref import ReferenceType, ref

import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from ackline.delta.log import LogFile, LogStamp
from ackline.delta.reads import Where, as_expression, pruned_dataset
from ackline.delta.table import Upon
from ackline.errors import LedgerError
from ackline.ledger.fold import OutcomeRow, PartitionState
from ackline.ledger.metrics import TurnReport
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.states import metrics_of_start
from ackline.ledger.turns import (
    IDENTITY_BITS,
    LOST_BY_OPERATOR,
    AckPosition,
    AnswerReport,
    Marker,
    MarkerKind,
    OperatorLoss,
    PauseAct,
    Plan,
    Settlement,
    TurnId,
    TurnKind,
    number_of,
    turn_in,
)
from ackline.scrub import scrub_address
from ackline.stored import decode_or_none, encode
from ackline.tables.audit_table import files_of, lost_files, removals
from ackline.tables.chosen import ChosenOutcomes
from ackline.tables.layout import check_layout, lanes_of, void_turns
from ackline.tables.schemas import (
    decision_rows,
    marker_from_rows,
    marker_rows,
    plan_date,
    plan_from_rows,
    plan_rows,
    settlement_from_rows,
    settlement_rows,
)
from ackline.tables.turn_outcomes import OutcomesOfTurn

COUNTED_STARTS = 3
"""Starts of a plan that are counted. After the third without outcomes, the next one isolates the handler."""

LogStamps: TypeAlias = tuple[LogStamp, ...]
LogEntries: TypeAlias = frozenset[LogFile]
"""The state of the logs of a lane's tables."""


class LedgerStore(ChosenOutcomes, OutcomesOfTurn):
    """The ledger of one lane of a pipeline, in its tables below an audit root."""

    def __init__(self, root: str, pipeline: str, lane: str) -> None:
        super().__init__(root, pipeline, lane)
        self._last: ReferenceType[Settlement] | None = None
        """The settlement that was read or stored last, as long as any step holds it."""

    # ---- which turns are claimed, waived, started and lost ----------------------------------------------------------

    def has_claim(self, turn: TurnId) -> bool:
        """Returns whether claim n is stored and turn n was not waived: then the floor is the end of plan n. False if a
        later turn is claimed or waived: turn n is over then, and its end may not be committed any more."""
        return self._rights(turn) == (True, False)

    def has_waiver(self, turn: TurnId) -> bool:
        """Returns whether turn n was waived: no process may claim it, and it is to be closed as void."""
        return self._rights(turn) == (True, True)

    def _rights(self, turn: TurnId) -> tuple[bool, bool]:
        """Returns whether claim n is the newest number taken, and whether waiver n is. Both are read from one version
        of the table: read one after the other, waiver n + 1 could hide waiver n."""
        claim, waiver = self.plans.versions_of(self._application(turn.epoch, kind) for kind in ("claim", "waiver"))
        return claim == turn.n, waiver == turn.n

    def is_claimable(self, turn: TurnId) -> bool:
        """Returns whether claim n can still be stored: neither turn n nor a later one is claimed or waived."""
        return not self._is_stored(self.plans, turn, "claim")

    def store_claim(self, plan: Plan) -> bool:
        """Claim a plan, by a commit without rows: the plan holds everything. Returns False if number n is taken, by
        another claim or by a waiver."""
        return self.plans.append([], self._application(plan.turn.epoch, "claim"), plan.turn.n)

    def store_waiver(self, plan: Plan, waiver: Marker) -> bool:
        """Take the number of claim n, so that the plan is never handed out. Returns False if number n is taken. The
        waiver is a second transaction id in the same commit. So claim and waiver are rivals for one number, and each
        reader finds out which of the two has won."""
        return self._store_marker(plan, waiver, "claim", also="waiver")

    def waiver_of(self, turn: TurnId) -> Marker | None:
        """Returns who waived turn n, and why; None if it was not waived."""
        return self._marker(turn, MarkerKind.WAIVER) if self.has_waiver(turn) else None

    def has_start_marker(self, turn: TurnId) -> bool:
        """Returns whether a process has started a claimed plan."""
        return self._is_stored(self.plans, turn, "start")

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
        more = {} if also is None else {self._application(plan.turn.epoch, also): n}
        return self.plans.append(marker_rows(plan, marker), application, n, more=more)

    def _marker(self, turn: TurnId, kind: MarkerKind) -> Marker | None:
        rows = self._plan_rows({**self._where(turn), "kind": kind.value}, turn)
        with self.plans.errors():
            return marker_from_rows(rows)

    def store_lost(
        self,
        plan: Plan,
        run_id: str,
        rows: Mapping[TopicPartition, Iterable[OutcomeRow]],
        operator: OperatorLoss | None = None,
    ) -> bool:
        """Store the lost ranges of a claimed plan as its outcomes. Returns False if outcomes n are stored. With
        `operator`, the same commit marks the turn as closed by an operator, for `operator_loss`."""
        table = decision_rows(plan.turn, plan_date(plan.planned_at), run_id, rows)
        note = TurnReport().encode()  # an empty report: these rows are complete, no task has counted others
        application, more = self._application(plan.turn.epoch, "outcomes"), self._marks(plan.turn, operator)
        return self.outcomes.append(table, application, plan.turn.n, note, more)

    def _marks(self, turn: TurnId, operator: OperatorLoss | None) -> dict[str, int]:
        """Returns the transaction ids that mark a commit of lost ranges as an operator's. In the same commit, because
        settle must find the mark if and only if it finds the rows: a driver may report the turn between two commits,
        and then nothing of it is lost."""
        kinds = [] if operator is None else ["lost", "lost-pause"] if operator.pause else ["lost"]
        return {self._application(turn.epoch, kind): turn.n for kind in kinds}

    def operator_loss(self, turn: TurnId) -> OperatorLoss | None:
        """Returns what an operator has stored with the lost ranges of turn n; None if no operator has lost it. Call it
        while turn n is open: a later turn that is lost hides the mark, and the settlement has it by then."""
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
        return self.outcomes.append(
            table,
            self._application(plan.turn.epoch, "decisions"),
            plan.turn.n,
            more=self._marks(plan.turn, operator),
            upon=lambda _: Upon(self._removals_of(self.outcomes.opened(), plan.turn)),
        )

    def _removals_of(self, version: DeltaTable, turn: TurnId) -> list[RemoveAction]:
        """Returns the actions that remove the outcomes of an open turn, whose files Ackline's compactions leave alone.
        Raises LedgerError if another tool has merged them with others: these rows would stay."""
        files, where = files_of(version, {(turn.epoch, turn.n)}), self._where(turn)
        known = {file["path"] for file in files}
        fragments = pruned_dataset(self.outcomes, version, where).get_fragments()
        others = [fragment for fragment in fragments if fragment.path not in known]
        if any(fragment.count_rows(filter=as_expression(where)) for fragment in others):
            raise LedgerError(
                f"another tool has merged the outcomes of {turn} with those of other turns, so they can't be replaced. "
                f"Restore the folder of the table {scrub_address(self.outcomes.uri)} from a backup"
            )
        return removals(files)

    # ---- settlements ----------------------------------------------------------------------------------------------

    def newest(self) -> Settlement | None:
        """Returns the newest settlement of the newest epoch, or None if the lane has none yet. Raises ConfigError if it
        has none because the tables below the root have the first layout."""
        settled = self.newest_settled()
        if settled is None:
            self.check_layout()
            return None
        newest = self.settlement(TurnId(self.pipeline, self.lane, *settled))
        return self._first_of_new_epoch(newest) if newest.kind.opens_epoch else newest

    def stamps_of_logs(self) -> LogStamps:
        """Returns what changes with each commit to one of the tables."""
        return tuple(table.log.stamp() for table in (self.plans, self.outcomes, self.settlements))

    def newest_entries(self) -> LogEntries:
        """Returns the newest log entry of each table."""
        return frozenset(entry for table in (self.plans, self.outcomes, self.settlements)
                         for entry in table.log.files().entries[-1:])  # fmt: skip

    def has_entries(self, entries: LogEntries) -> bool:
        """Returns whether the logs still have these entries. No other log has them: a file system may give the folder
        of a removed log to the next one, but not the times of its entries."""
        tables = (self.plans, self.outcomes, self.settlements)
        return entries.issubset(entry for table in tables for entry in table.log.files().entries)

    def _first_of_new_epoch(self, reset: Settlement) -> Settlement:
        """Returns turn 0 of the epoch that a reset opens. It has no rows of its own: the reset's plan holds its starts.
        So no crash can leave an epoch that is closed while the next one is not open."""
        targets = self.plan(reset.turn).partitions
        partitions = {}
        for tp, settled in reset.partitions.items():
            start = targets[tp].fresh.start if tp in targets else settled.state.floor
            partitions[tp] = replace(
                settled, old_floor=start, state=PartitionState(start), counts={}, gaps=0,
                metrics=metrics_of_start(settled.metrics, start, reset.settled_at), totals=None,
            )  # fmt: skip
        turn = reset.turn._replace(epoch=reset.turn.epoch + 1, n=0)
        return replace(reset, turn=turn, kind=TurnKind.GENESIS, partitions=partitions)

    def last_pause(self) -> PauseAct | None:
        """Returns the last act that has paused partitions of the lane; None if there is none."""
        columns = ["epoch", "turn", "settled_at", "actor", "reason"]
        rows = self.settlements.read({"kind": TurnKind.PAUSE.value}, columns).to_pylist()
        last = max(rows, key=lambda row: (row["epoch"], row["turn"]), default=None)
        return last and PauseAct(last["settled_at"], last["actor"] or "", last["reason"] or "")

    def pauses(self) -> dict[TopicPartition, PauseAct]:
        """Returns the act that paused each paused partition: the first one after its last resume, whatever its kind. A
        later pause of what is paused already changes nothing."""
        columns = ["epoch", "turn", "settled_at", "actor", "reason", "topic", "partition"]

        def turns(
            where: Where, also: ds.Expression | None = None
        ) -> Iterator[tuple[TopicPartition, tuple[int, int], dict[str, Any]]]:
            rows = self.settlements.read(where, columns, also=also).to_pylist()
            for row in sorted(rows, key=lambda row: (row["epoch"], row["turn"])):
                yield TopicPartition(row["topic"], row["partition"]), (row["epoch"], row["turn"]), row

        resumed = {tp: turn for tp, turn, _ in turns({"kind": TurnKind.RESUME.value, "paused": False})}
        found = dict[TopicPartition, PauseAct]()
        # Not the rows of the other turns, which a lane with a paused partition has as many of as turns.
        pausing = ds.field("kind").isin([TurnKind.PAUSE.value, TurnKind.VOID.value])
        for tp, turn, row in turns({"paused": True}, pausing | (ds.field("evidence") == LOST_BY_OPERATOR)):
            if turn > resumed.get(tp, (-1, -1)):
                found.setdefault(tp, PauseAct(row["settled_at"], row["actor"] or "", row["reason"] or ""))
        return found

    def check_layout(self) -> None:
        """Raises ConfigError if the tables below the root have the first layout."""
        check_layout(self.root)

    def settlement(self, turn: TurnId) -> Settlement:
        """Returns a stored settlement. Raises LedgerError if it is not stored. One that a step of this process still
        holds is not read again: it never changes, and may have millions of pending ranges."""
        last = self._last() if self._last else None
        if last is not None and last.turn == turn:
            return last
        rows = self.settlements.read_turn(self._where(turn), self._application(turn.epoch, "settlement"), turn.n)
        if not rows.num_rows and turn.n == 0:  # the first run found no topic: the lane has begun without a partition
            return Settlement(turn, TurnKind.GENESIS, "", datetime.min.replace(tzinfo=UTC), {})
        return self._remember(self._made_of(settlement_from_rows, rows, self.settlements, turn))

    def _remember(self, settlement: Settlement) -> Settlement:
        self._last = ref(settlement)
        return settlement

    def store_settlement(
        self, settlement: Settlement, plan: Plan | None = None, subscription: Mapping[str, Any] | None = None
    ) -> bool:
        """Store a settlement. Returns False if its number is taken. A first genesis has no plan, and without a topic it
        has no row either. The `subscription` that it was made for (the `kafka` block of a plan's settings) is therefore
        stored as the note of its commit."""
        day = plan_date(plan.planned_at if plan else settlement.settled_at)
        application = self._application(settlement.turn.epoch, "settlement")
        note = encode(subscription) if subscription is not None else None
        stored = self.settlements.append(settlement_rows(settlement, day), application, settlement.turn.n, note)
        if stored and settlement.partitions:
            self._remember(settlement)
        return stored

    def is_settled(self, turn: TurnId) -> bool:
        """Returns whether settlement n is stored, void ones included."""
        return self._is_stored(self.settlements, turn, "settlement")

    def first_subscription(self, genesis: TurnId) -> dict[str, Any] | None:
        """Returns the subscription of the first genesis; None if the Delta log has expired it, or if it is damaged."""
        note = self.settlements.note_of(self._application(genesis.epoch, "settlement"), genesis.n)
        return decode_or_none(note, dict[str, Any])

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

    def lanes(self) -> list[str]:
        """Returns the lanes of the pipeline that have tables, the live one first."""
        return [lane.lane for lane in lanes_of(self.root, self.pipeline)]

    def other_lane(self, lane: str) -> "LedgerStore":
        """Returns the ledger of another lane of the same pipeline."""
        return LedgerStore(self.root, self.pipeline, lane)

    # ---- plans ----------------------------------------------------------------------------------------------------

    def open_plan(self, newest: Settlement) -> Plan | None:
        """Returns the plan that is stored and not settled, of which a lane has at most one; None, too, if another
        process has settled a turn since `newest` was read. Raises LedgerError if a settlement between the two is
        missing."""
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
        rows = self._plan_rows(self._where(turn), turn)
        rows = rows.filter(pc.is_valid(rows["topic"]))  # a row without a topic is a marker
        return self._made_of(plan_from_rows, rows, self.plans, turn)

    def reasons(self, turn: TurnId) -> dict[TopicPartition, str]:
        """Returns why a stored plan reads nothing of a partition, where it does so; nothing for the plan of an action.
        Reads few columns of the plan."""
        columns = ["topic", "partition", "kind", "why"]
        rows = self.plans.read_turn(self._where(turn), self._application(turn.epoch, "plan"), turn.n, columns)
        replaying = {kind.value for kind in TurnKind if kind.replays}
        return {
            TopicPartition(row["topic"], row["partition"]): row["why"]
            for row in rows.to_pylist()
            if row["topic"] is not None and row["why"] and row["kind"] in replaying
        }

    def store_plan(self, plan: Plan) -> bool:
        """Store a plan. Returns False if its number is taken."""
        return self.plans.append(plan_rows(plan), self._application(plan.turn.epoch, "plan"), plan.turn.n)

    def count_start(self, plan: Plan) -> int:
        """Count a start of a plan. Returns how many there were with this one, at most COUNTED_STARTS + 1. Each start
        takes a number of its own, so two at the same time are counted as two."""
        for number in range(1, COUNTED_STARTS + 1):
            if self.plans.append([], self._application(plan.turn.epoch, f"try-{number}"), plan.turn.n):
                return number
        return COUNTED_STARTS + 1

    # ---- outcomes and decisions -----------------------------------------------------------------------------------

    def has_outcomes(self, turn: TurnId) -> bool:
        """Returns whether outcomes n are stored, which is the only proof that replay handled the turn."""
        return self._is_stored(self.outcomes, turn, "outcomes")

    def store_outcomes(
        self,
        turn: TurnId,
        files: Sequence[AddAction],
        report: TurnReport | None = None,
        execution: int | None = None,
    ) -> bool:
        """Make files of outcomes visible, all of them or none; zero files too. Returns False if the number is taken.

        The report of the tasks is the note of the same commit. So settle finds the report of exactly these outcomes.
        `execution` is the one that has staged rows of these outcomes; a transaction id holds it, which stays for good.
        """
        note = report.encode() if report else None
        more = {} if execution is None else {self._application(turn.epoch, "execution"): number_of(turn, execution)}
        return self.outcomes.append(files, self._application(turn.epoch, "outcomes"), turn.n, note, more)

    def execution_of(self, turn: TurnId) -> int | None:
        """Returns the execution of an open turn that outcomes n name; None if it has staged no rows."""
        number = self.outcomes.version_of(self._application(turn.epoch, "execution"))
        return number % (1 << IDENTITY_BITS) if number is not None and turn_in(number) == turn[2:] else None

    def report_of(self, turn: TurnId) -> TurnReport | None:
        """Returns the tasks' report of a turn; None if there is none, or if the Delta log has expired it."""
        note = self.outcomes.note_of(self._application(turn.epoch, "outcomes"), turn.n)
        return TurnReport.decode(note)

    def has_lost_files(self, turn: TurnId) -> bool:
        """Returns whether a file of the turn's outcomes does not exist any more, or is cut short or damaged. Reads all
        of them. Raises FatalError if the table can't be read."""
        version = self.outcomes.open()
        with self.outcomes.errors():
            return version is not None and bool(lost_files(self.outcomes, version, {(turn.epoch, turn.n)}, read=True))

    def drop_lost_files(self, void_turn: TurnId) -> None:
        """Stops naming those files of a void turn that do not exist any more, or are cut short or damaged, so that they
        fail no later read."""
        self.outcomes.drop_lost_files({(void_turn.epoch, void_turn.n)}, read=True)

    def has_decisions(self, turn: TurnId) -> bool:
        """Returns whether decisions n are stored."""
        return self._is_stored(self.outcomes, turn, "decisions")

    def store_decisions(
        self,
        plan: Plan,
        run_id: str,
        decisions: Mapping[TopicPartition, Iterable[OutcomeRow]],
        answers: AnswerReport | None = None,
    ) -> bool:
        """Store settle's decisions, zero of them too. Returns False if the number is taken. The same commit holds how
        far the answers were read, as transaction ids: the answers of exactly that range were decided. The counts of the
        answers are its note."""
        rows = decision_rows(plan.turn, plan_date(plan.planned_at), run_id, decisions)
        note = answers.encode() if answers else None
        more = self._position_numbers(plan.turn, answers.position) if answers else {}
        return self.outcomes.append(rows, self._application(plan.turn.epoch, "decisions"), plan.turn.n, note, more)

    def _position_numbers(self, turn: TurnId, at: AckPosition) -> dict[str, int]:
        """Returns how far a turn has read its ack topic as numbers of transaction ids, for `answers_of`."""
        numbers = {f"ack/{at.topic}/{at.topic_id}": turn.n}
        for partition, offset in at.next.items():
            numbers[f"ack-next/{at.topic_id}/{partition}"] = offset
            # Set for each partition: one that has no leader epoch now must not have that of an earlier turn.
            numbers[f"ack-leader/{at.topic_id}/{partition}"] = at.leader_epochs.get(partition, -1) + 1
        return {self._application(turn.epoch, kind): number for kind, number in numbers.items()}

    def answers_of(self, turn: TurnId) -> AnswerReport | None:
        """Returns the report of the answers that decisions n of an open turn hold, without counts and warnings if the
        Delta log has expired those, or if they are damaged; None if the turn has read no answers."""
        numbers, of_epoch = self.outcomes.transactions(), self._application(turn.epoch, "ack")
        topics = [id_ for id_, n in numbers.items() if id_.startswith(f"{of_epoch}/") and n == turn.n]
        if not topics:
            return None
        topic, _, topic_id = topics[0].removeprefix(f"{of_epoch}/").partition("/")  # no name of a topic has a slash
        next_, leaders = dict[int, int](), dict[int, int]()
        for id_, number in numbers.items():
            kind, _, partition = id_.removeprefix(of_epoch).rpartition("/")
            if kind == f"-next/{topic_id}":
                next_[int(partition)] = number
            elif kind == f"-leader/{topic_id}" and number:
                leaders[int(partition)] = number - 1
        note = self.outcomes.note_of(self._application(turn.epoch, "decisions"), turn.n)
        report = decode_or_none(note, AnswerReport) or AnswerReport()
        return replace(report, position=AckPosition(topic, topic_id, next_, leaders))

    # ---- output tables --------------------------------------------------------------------------------------------

    def store_give_up(self, turn: TurnId, table: str) -> bool:
        """Store that an operator gives up the rows of a settled turn for an output table. Returns False if that is
        stored already."""
        return self.settlements.append([], self._application(turn.epoch, f"given-up/{quote(table, safe='')}"), turn.n)

    def store_published(self, turn: TurnId) -> None:
        """Store that each output table has the rows of a settled turn, or was given up for it."""
        self.settlements.append([], self._application(turn.epoch, "published"), turn.n)

    def is_published(self, turn: TurnId) -> bool:
        """Returns whether it is stored that each output table has the rows of a settled turn, or was given up for it.
        Then no step looks at these tables again because of the turn: their user may drop them, or make them anew."""
        return (self.settlements.version_of(self._application(turn.epoch, "published")) or -1) >= turn.n

    def given_up(self, turn: TurnId) -> set[str]:
        """Returns the output tables for which an operator has given up the rows of the newest settled turn."""
        of_epoch = self._application(turn.epoch, "given-up/")
        numbers = self.settlements.transactions()
        return {unquote(id_[len(of_epoch) :]) for id_, n in numbers.items() if n == turn.n and id_.startswith(of_epoch)}

    def void_turns(self, epoch: int) -> set[int]:
        """Returns the numbers of the turns of an epoch that were closed as void. One read, however many turns there
        are."""
        return {n for _, n in void_turns(self.folder, epoch)}
