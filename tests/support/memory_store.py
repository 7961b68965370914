"""The ledger store of a `World`: it has the rules of the real store, and its tables are values in memory."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, cast

from ackline.errors import FatalError, LedgerError
from ackline.ledger.account import Result, ResultRuns
from ackline.ledger.commit_rule import stamp_of
from ackline.ledger.copies import NO_COPIES, Copies
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import Ranges, TopicPartition, union
from ackline.ledger.outcomes import ErrorClass, Outcome, OutcomeColumns, is_of_class
from ackline.ledger.pending import UNKNOWN_KEY
from ackline.ledger.turns import (
    LIVE,
    AnswerReport,
    Marker,
    MarkerKind,
    OperatorLoss,
    PauseAct,
    Plan,
    Settlement,
    TurnId,
    TurnKind,
)
from ackline.tables.chosen import DeadRow, OutcomeFilter, RangesByPartition, TurnDone
from ackline.tables.schemas import plan_date
from ackline.tables.store import LedgerStore
from ackline.tables.turn_outcomes import Attempts, FailedClass, Failures, LastFailure, Singles, TurnOutcomes
from tests.support.memory import BEFORE, READ, Hook, World, no_hook
from tests.support.memory_table import MemoryTable, OutcomesFile, ReplacingFiles


def _is_wanted(row: OutcomeRow, run_id: str, wanted: OutcomeFilter | None) -> bool:
    return wanted is None or (
        wanted.outcome in (None, row.outcome)
        and is_of_class(row.error_class, wanted.error_class)
        and wanted.run_id in (None, run_id)
    )


def _ranges(rows: Sequence[OutcomeRow]) -> Ranges:
    columns = OutcomeColumns.of(rows)
    return union((columns.offsets, columns.ends))


class MemoryStore(LedgerStore):
    """The ledger store of one lane in a world, as the process `run_id` uses it."""

    def __init__(self, world: World, pipeline: str, lane: str, run_id: str = "", hook: Hook = no_hook) -> None:
        super().__init__("memory://", pipeline, lane)
        self.world, self._hook, self._run_id = world, hook, run_id
        self.tables = {name: MemoryTable(world, name, run_id, hook) for name in ("plans", "outcomes", "settlements")}
        self.plans, self.outcomes, self.settlements = self.tables.values()

    def storage_options(self) -> dict[str, str]:
        """Returns none: no task reads this store."""
        return {}

    def check_layout(self) -> None:
        """Does nothing: a world has no folders."""

    def settlement(self, turn: TurnId) -> Settlement:
        stored = self.world.tables.settlements.get(turn)
        if turn.n == 0 and not (stored and stored.partitions):
            self._hook("settlement", READ)
            return Settlement(turn, TurnKind.GENESIS, "", datetime.min.replace(tzinfo=UTC), {})
        return cast(Settlement, self._stored(self.world.tables.settlements, turn, "settlement"))

    def last_pause(self) -> PauseAct | None:
        stored = self.world.tables.settlements.items()
        of_lane = (each for turn, each in stored if turn[:2] == (self.pipeline, self.lane))
        last = max((each for each in of_lane if each.kind is TurnKind.PAUSE), key=lambda each: each.turn, default=None)
        return last and PauseAct(last.settled_at, last.actor, last.reason)

    def pauses(self) -> dict[TopicPartition, PauseAct]:
        found = dict[TopicPartition, PauseAct]()
        for turn, each in sorted(self.world.tables.settlements.items()):
            for tp, row in each.partitions.items() if turn[:2] == (self.pipeline, self.lane) else ():
                if not row.paused:
                    found.pop(tp, None)
                else:
                    found.setdefault(tp, PauseAct(each.settled_at, each.actor, each.reason))
        return found

    def stamps(self, turn: TurnId) -> set[str]:
        self._hook("stamps", READ)
        tables = self.world.tables
        if turn.n == 0 and turn.epoch:
            turn = turn._replace(epoch=turn.epoch - 1, n=self.last_settled(turn.epoch - 1) or 0)
        settlement, plan = tables.settlements.get(turn), tables.plans.get(turn)
        found = {stamp_of("settlement", settlement.run_id, settlement.settled_at)} if settlement is not None else set()
        return found | ({stamp_of("plan", plan.run_id, plan.planned_at)} if plan is not None else set())

    def tallies(self, last: TurnId) -> tuple[Counter[str], int]:
        self._hook("tallies", READ)
        counts: Counter[str] = Counter()
        gaps = 0
        for turn, settlement in self.world.tables.settlements.items():
            if turn[:3] == last[:3] and turn.n <= last.n:
                for settled in settlement.partitions.values():
                    counts.update(settled.counts)
                    gaps += settled.gaps or 0
        return counts, gaps

    def copies_of(self, topic_ids: Mapping[str, str]) -> dict[TopicPartition, Copies]:
        found: dict[TopicPartition, Copies] = {}
        of_lane = {turn: each for turn, each in self.world.tables.settlements.items() if turn.lane == self.lane}
        for _, settlement in sorted(of_lane.items(), reverse=True):
            for tp, row in settlement.partitions.items():
                if topic_ids.get(tp.topic) == row.topic_id and len(row.state.copies):
                    newer = found.get(tp, NO_COPIES)
                    found[tp] = newer.plus(row.state.copies.minus(newer.ranges))
        return found

    def terminal_offsets(
        self, epoch: int, topic_ids: Mapping[str, str], wanted: OutcomeFilter | None
    ) -> tuple[RangesByPartition, RangesByPartition]:
        found: tuple[dict[TopicPartition, list[OutcomeRow]], ...] = ({}, {})
        turns = None if wanted is None or wanted.code is None else self.turns_of_code(wanted.code).get(epoch, [])
        for plan, tp, row in self._terminal_rows(epoch, topic_ids):
            if _is_wanted(row, plan.run_id, wanted) and (turns is None or plan.turn.n in turns):
                older = plan.partitions[tp].topic_id != topic_ids[tp.topic]
                found[older].setdefault(tp, []).append(row)
        current, older_topics = ({tp: _ranges(rows) for tp, rows in by_tp.items()} for by_tp in found)
        return current, older_topics

    def turns_of_code(self, code: str) -> dict[int, list[int]]:
        turns: dict[int, list[int]] = {}
        for turn, settlement in self.world.tables.settlements.items():
            if turn[:2] == (self.pipeline, self.lane) and settlement.code == code:
                turns.setdefault(turn.epoch, []).append(turn.n)
        return turns

    def turns_of_epoch(self, epoch: int) -> list[TurnDone]:
        tables = self.world.tables
        of_epoch = [
            settlement
            for turn, settlement in sorted(tables.settlements.items())
            if turn[:3] == (self.pipeline, self.lane, epoch) and turn.n and settlement.kind is not TurnKind.VOID
        ]
        return [TurnDone(each.kind, each.code, tables.plans[each.turn].settings) for each in of_epoch]

    def terminal_results(self, epoch: int, topic_ids: Mapping[str, str]) -> dict[TopicPartition, ResultRuns]:
        found: dict[TopicPartition, list[tuple[int, int, Result]]] = {}
        for plan, tp, row in self._terminal_rows(epoch, topic_ids):
            if plan.partitions[tp].topic_id == topic_ids[tp.topic]:
                found.setdefault(tp, []).append((row.offset, row.end, Result(row.outcome.value, row.error_class)))
        return {tp: ResultRuns.of(runs) for tp, runs in found.items()}

    def dead_rows(self, epoch: int, topic_ids: Mapping[str, str]) -> Iterator[DeadRow]:
        for plan, tp, row in self._terminal_rows(epoch, topic_ids):
            if row.outcome is Outcome.DEAD and plan.partitions[tp].topic_id == topic_ids[tp.topic]:
                yield DeadRow(tp, row.offset, row.error_class, row.handled_at)

    def _terminal_rows(
        self, epoch: int, topic_ids: Mapping[str, str]
    ) -> Iterator[tuple[Plan, TopicPartition, OutcomeRow]]:
        self._hook("rows", READ)
        tables = self.world.tables
        for turn, settlement in tables.settlements.items():
            lane = (turn.pipeline, turn.lane, turn.epoch) == (self.pipeline, self.lane, epoch)
            if not lane or settlement.kind is TurnKind.VOID or turn not in tables.plans:
                continue
            plan = tables.plans[turn]
            for file in tables.outcomes.get(turn, ()):
                for tp, rows in file.rows.items():
                    if tp.topic in topic_ids and tp in plan.partitions:
                        yield from ((plan, tp, row) for row in rows if row.outcome.terminal)

    def lanes(self) -> list[str]:
        lanes = {turn.lane for turn in self.world.tables.settlements if turn.pipeline == self.pipeline}
        return sorted(lanes, key=lambda lane: (lane != LIVE, lane))

    def other_lane(self, lane: str) -> "MemoryStore":
        return MemoryStore(self.world, self.pipeline, lane, self._run_id, self._hook)

    def plan(self, turn: TurnId) -> Plan:
        return cast(Plan, self._stored(self.world.tables.plans, turn, "plan"))

    def _stored(self, values: Mapping[TurnId, Any], turn: TurnId, name: str) -> Any:
        self._hook(name, READ)
        if turn not in values or not values[turn].partitions:
            raise LedgerError(
                f"{name} of {turn} is in the log of the table, but its rows are not there. "
                f"Restore the folder of the table from a backup"
            )
        return values[turn]

    def store_plan(self, plan: Plan) -> bool:
        return self._put("plans", plan.turn, "plan", replace(plan, partitions=dict(sorted(plan.partitions.items()))))

    def store_decisions(
        self,
        plan: Plan,
        run_id: str,
        decisions: Mapping[TopicPartition, Iterable[OutcomeRow]],
        answers: AnswerReport | None = None,
    ) -> bool:
        rows = {tp: tuple(decided) for tp, decided in sorted(decisions.items())}
        files = [OutcomesFile(plan.turn, rows)] if rows else []
        application, note = self._application(plan.turn.epoch, "decisions"), answers.encode() if answers else None
        more = self._position_numbers(plan.turn, answers.position) if answers else {}
        return self.tables["outcomes"].put(files, application, plan.turn.n, note, more)

    def void_turns(self, epoch: int) -> set[int]:
        self._hook("settlement", READ)
        lane = (self.pipeline, self.lane, epoch)
        settlements = self.world.tables.settlements.items()
        return {turn.n for turn, settled in settlements if turn[:3] == lane and settled.kind is TurnKind.VOID}

    def replace_by_lost(
        self, plan: Plan, run_id: str, rows: Mapping[TopicPartition, Iterable[OutcomeRow]], operator: OperatorLoss
    ) -> bool:
        lost = ReplacingFiles([OutcomesFile(plan.turn, {tp: tuple(ranges) for tp, ranges in rows.items()})])
        application, more = self._application(plan.turn.epoch, "decisions"), self._marks(plan.turn, operator)
        return self.tables["outcomes"].put(lost, application, plan.turn.n, more=more)

    def _reason_of_loss(self, turn: TurnId) -> str:
        rows = (row for file in self.world.tables.outcomes[turn] for rows in file.rows.values() for row in rows)
        return next(row.reason or "" for row in rows if row.outcome is Outcome.LOST)

    def has_lost_files(self, turn: TurnId) -> bool:
        self._hook("files", READ)
        return turn in self.world.tables.lost_files

    def drop_lost_files(self, void_turn: TurnId) -> None:
        self._hook("files", BEFORE)
        self.world.tables.lost_files.discard(void_turn)

    def store_settlement(
        self, settlement: Settlement, plan: Plan | None = None, subscription: Mapping[str, Any] | None = None
    ) -> bool:
        plan_date(plan.planned_at if plan else settlement.settled_at)
        in_order = replace(settlement, partitions=dict(sorted(settlement.partitions.items())))
        note = json.dumps(subscription) if subscription is not None else None
        return self._put("settlements", settlement.turn, "settlement", in_order, note)

    def _store_marker(self, plan: Plan, marker: Marker, kind: str, also: str | None = None) -> bool:
        more = {self._application(plan.turn.epoch, also): plan.turn.n} if also else {}
        return self.tables["plans"].put(marker, self._application(plan.turn.epoch, kind), plan.turn.n, more=more)

    def _marker(self, turn: TurnId, kind: MarkerKind) -> Marker | None:
        self._hook("marker", READ)
        application = "claim" if kind is MarkerKind.WAIVER else "start"
        return self.world.tables.markers.get((self._application(turn.epoch, application), turn.n))

    def _put(self, table: str, turn: TurnId, kind: str, value: Any, note: str | None = None) -> bool:
        return self.tables[table].put(value, self._application(turn.epoch, kind), turn.n, note)

    def last_failures(self, turn: TurnId, attempts: Attempts) -> Failures:
        """Returns when the given attempts failed last. A world keeps no messages of attempts, so each is None."""
        failures: Failures = {}
        for n, files in sorted(self.world.tables.outcomes.items(), key=lambda item: item[0].n):
            lane = (n.pipeline, n.lane, n.epoch) == (turn.pipeline, turn.lane, turn.epoch)
            for tp, by_offset in attempts.items() if lane else ():
                for row in (row for file in files for row in file.rows.get(tp, ())):
                    if row.outcome is Outcome.FAILED and by_offset.get(row.offset) == row.attempt:
                        failures[tp, row.offset] = LastFailure(row.reason, row.handled_at)
        return failures

    def failed_classes_of(self, turn: TurnId) -> Iterator[FailedClass]:
        for file in self.world.tables.outcomes.get(turn, ()):
            for row in (row for rows in file.rows.values() for row in rows):
                if row.attempt and row.outcome in (Outcome.FAILED, Outcome.DROPPED):
                    yield FailedClass(row.error_class, None, 1, row.reason)

    def first_attempts_of(self, turn: TurnId) -> Counter[str]:
        return Counter(row.outcome.value for row in self._first_attempts(turn))

    def unacked_of(self, turn: TurnId) -> int:
        return sum(row.error_class == ErrorClass.UNACKED for row in self._first_attempts(turn))

    def _first_attempts(self, turn: TurnId) -> Iterator[OutcomeRow]:
        self._hook("rows", READ)
        for file in self.world.tables.outcomes.get(turn, ()):
            for rows in file.rows.values():
                yield from (row for row in rows if row.attempt == 1 and not row.answer)

    def outcomes_of(self, turn: TurnId, singles: Singles = MappingProxyType({}), keys: bool = False) -> TurnOutcomes:
        self._hook("rows", READ)
        if turn in self.world.tables.lost_files:
            raise FatalError(f"the table outcomes at {self.outcomes.uri} can't be used: No such file or directory")
        rows: dict[TopicPartition, list[OutcomeRow]] = {}
        counts: dict[TopicPartition, Counter[str]] = {}
        fresh: Counter[TopicPartition] = Counter()
        for file in self.world.tables.outcomes.get(turn, ()):
            for tp, written in file.rows.items():
                for row in written:
                    counts.setdefault(tp, Counter())[row.outcome.value] += row.end - row.offset
                fresh[tp] += sum(row.attempt == 1 and not row.answer for row in written)
                kept = (row for row in written if not file.counted or row.offset < singles.get(tp, 0))
                rows.setdefault(tp, []).extend(kept if keys else (row._replace(key=UNKNOWN_KEY) for row in kept))
        return TurnOutcomes(rows, counts, fresh)
