"""The machine of tables with `rows: newest`: lanes publish the same records beside each other, die, and are set back.

A step is one write of one process, or one thing that happens to a lane or a table. Tables and ledgers are in memory, so
a step costs a fraction of a millisecond; what is replaced and what stops a lane is decided by the package
(`newest_ledger`), and judged by `newest_oracle`.

A world is drawn from its seed alone, so the same seed repeats it.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from random import Random
from typing import Any

from ackline.errors import AcklineError, TransientError
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.published import OutputsOfTurn
from ackline.ledger.turns import LIVE, TurnId, TurnKind, turn_in
from ackline.outputs import publish
from tests.chaos.account import Violation
from tests.chaos.newest_ledger import (
    PARTITIONS,
    RETRY,
    TABLES,
    Ledger,
    Open,
    Record,
    Result,
    Row,
    Settled,
    Try,
    Waits,
    adapters_of,
    in_memory,
    related_to,
    settle,
)
from tests.chaos.newest_oracle import NewestOracle, Truth
from tests.chaos.newest_table import MemoryTable, Version
from tests.support.actor import Killed

STEPS_A_WORLD, SLOTS, BACKFILLS = 120, 3, 3
WEIGHTS = {"start": 24, "backfill": 6, "kill": 3, "operate": 2, "compact": 2, "back_up": 2, "restore": 1.2, "vacuum": 1,
           "away": 1.5}  # fmt: skip
ENDS = {"rows": Outcome.ACKED, "none": Outcome.ACKED, "skip": Outcome.SKIPPED, "tombstone": Outcome.SKIPPED,
        "fail": Outcome.FAILED, "dead": Outcome.FAILED, "hands on": Outcome.IN_FLIGHT}  # fmt: skip
DRAWS = ["rows"] * 8 + ["none", "none", "skip", "tombstone", "fail", "fail", "dead", "hands on", "hands on"]
FIRST = "L0"
"""The id of the first ledger. After an adoption the ledger has another one."""
ANSWERS = {"ack": Outcome.ACKED, "fail": Outcome.FAILED, "renew": Outcome.IN_FLIGHT}
PARTLY = "goes only with all its records"
"""A part of the error for a row of several records, of which a turn handles some."""


class NewestMachine(NewestOracle):
    """A world. `drawn` counts what happened in all worlds."""

    def __init__(self, seed: str, drawn: Counter[str]) -> None:
        self.random, self.drawn, self.history = Random(seed), drawn, list[str]()
        self.numbers, self.ids, self.ends = count(1), count(1), dict.fromkeys(PARTITIONS, 0)
        first = Version(0, {}, {}, Truth())
        self.tables = {name: MemoryTable(name, self.meanwhile, self.entered, first) for name in TABLES}
        self.settled, self.lost = {}, {}
        self.processes, self.running = list[tuple[Ledger, Iterator[None]]](), list[Iterator[None]]()
        self.lanes, self.copies = {}, list[Any]()
        self.begin(LIVE, FIRST, complete=dict.fromkeys(PARTITIONS, 0))

    def begin(self, lane: str, id_: str, **more: Any) -> None:
        self.lanes[lane] = Ledger(id_, TurnId("shop", lane, 0, 0), **more)

    @property
    def live(self) -> Ledger:
        return self.lanes[LIVE]

    def note(self, what: str, turn: TurnId) -> None:
        self.history.append(f"{turn}: {what}")

    # ---- what happens -----------------------------------------------------------------------------------------------

    def step(self) -> None:
        goes_on = len(self.processes) >= SLOTS or (self.processes and self.random.random() < 0.7)
        act = "go_on" if goes_on else self.random.choices(*zip(*WEIGHTS.items(), strict=True))[0]
        self.drawn[act] += 1
        getattr(self, act)()

    def idle(self) -> list[tuple[Ledger, Iterator[None]]]:
        return [process for process in self.processes if process[1] not in self.running]

    def go_on(self) -> None:
        """Lets a process go on until it is about to store something else."""
        if not self.idle():
            return
        ledger, going = process = self.random.choice(self.idle())
        self.note("goes on", ledger.turn)
        self.running.append(going)
        over = True
        try:
            next(going)
            over = False
        except (StopIteration, Killed):
            pass
        except TransientError:
            self.drawn["stopped: rivals won each try"] += 1
        except AcklineError as error:
            self.stopped(ledger, str(error))
        self.running.remove(going)
        if over and process in self.processes:
            self.processes.remove(process)

    def start(self) -> None:
        """Starts a run, perhaps beside another one of its lane, perhaps after new records."""
        for partition in PARTITIONS:
            self.ends[partition] += self.random.choice((0, 0, 1, 2))
        ledger = self.random.choice(self.going())
        self.processes.append((ledger, self.run(ledger)))

    def going(self) -> list[Ledger]:
        """Returns the lanes with something to do. A backfill has nothing to do once nothing of it is pending."""
        of_backfill = [each for each in self.lanes.values() if each is not self.live and not each.over]
        return [self.live, *(each for each in of_backfill if each.pending or each.open or not each.published)]

    def kill(self) -> None:
        if self.idle():
            self.processes.remove(self.random.choice(self.idle()))

    def backfill(self) -> None:
        """Begins a backfill of some records, and every other time of those that share rows with them, too."""
        partition = self.random.choice(PARTITIONS)
        end, whole = self.live.complete[partition], self.random.random() < 0.5
        lane = f"backfill-{next(self.ids) if self.random.random() < 0.9 else 0}"
        if not end or lane in self.lanes or len(self.going()) > BACKFILLS:
            return
        first = self.random.choice([self.random.randrange(end), *(o for p, o in self.live.pending if p == partition)])
        chosen = {(partition, first), *((partition, o) for o in range(first, end) if self.random.random() < 0.6)}
        while whole and (more := related_to(chosen, self.live, self.tables) - chosen):
            self.drawn["backfills with related"] += 1
            chosen |= more
        pending = {record: Waits(RETRY, 0, 0) for record in sorted(chosen)}
        self.begin(lane, self.live.id, pending=pending, whole=whole)

    def operate(self) -> None:
        self.acts(self.random.choice(self.going()), self.random.choice(["skip", "skip", "void", "reset"]))

    def acts(self, ledger: Ledger, what: str) -> None:
        """Lets an operator skip records, reset the lane, close its open turn, or cancel a backfill."""
        what = "cancel" if what == "reset" and ledger is not self.live else what
        self.drawn[f"operator: {what}"] += 1
        self.note(what, ledger.turn)
        if what == "cancel":
            ledger.over = True
            self.processes = [each for each in self.processes if each[0] is not ledger]
        elif what != "void":
            kind = TurnKind.SKIP if what == "skip" else TurnKind.RESET
            self.processes.append((ledger, self.run(ledger, kind)))
        elif ledger.open is not None and ledger.open.kind.may_be_void:
            ledger.outputs, ledger.given_up = OutputsOfTurn(ledger.expected), frozenset()
            ledger.turn, ledger.open = ledger.open.turn, None

    def compact(self) -> None:
        self.tables[self.random.choice(TABLES)].compact(self.random.shuffle)

    def vacuum(self) -> None:
        """Removes the files that no version names, also those of a turn that is settled and not published."""
        self.tables[self.random.choice(TABLES)].loose.clear()

    def back_up(self) -> None:
        tables = {name: table.newest for name, table in self.tables.items()}
        self.copies = [*self.copies[-2:], (tables, {name: ledger.copy() for name, ledger in self.lanes.items()})]

    def restore(self) -> None:
        """Sets tables or the ledger back to a copy, or lets another ledger take over. Processes are dead by then."""
        if not self.copies:
            return
        self.processes.clear()
        tables, lanes = self.random.choice(self.copies)
        what = self.random.choice(["table", "table", "tables", "ledger", "all", "adopted copy", "adopted anew"])
        self.drawn[f"restored: {what}"] += 1
        self.note(f"restored: {what}", self.live.turn)
        for name in {"table": [self.random.choice(TABLES)], "tables": TABLES, "all": TABLES}.get(what, ()):
            self.tables[name].newest = tables[name]
        # What the group has committed: an adoption passes over what is below.
        floors = {p: min([o for q, o in self.live.pending if q == p] + [self.live.complete[p]]) for p in PARTITIONS}
        if what in ("ledger", "all", "adopted copy"):
            self.lanes = {name: ledger.copy() for name, ledger in lanes.items()}
        if what == "adopted anew":
            self.lost |= {number: how for ledger in self.lanes.values() for number, how in ledger.ended.items()}
            self.lanes.clear()
            began = {p: self.random.randint(0, floor) for p, floor in floors.items()}
            self.begin(LIVE, f"L{next(self.ids)}", complete=began)
        elif what == "adopted copy":
            id_, live = f"L{next(self.ids)}", self.live
            for ledger in self.lanes.values():
                ledger.id, ledger.known = id_, {}
            live.open, live.complete = None, {p: max(floors[p], live.complete[p]) for p in PARTITIONS}
            live.pending = {(p, o): of for (p, o), of in live.pending.items() if o >= floors[p]}

    def stopped(self, ledger: Ledger, error: str) -> None:
        """Does what the error of a process advises, most of the time."""
        partly = PARTLY in error
        self.drawn["stopped: partly handled" if partly else "stopped: older copy"] += 1
        self.note(f"stopped: {error[:90]}", ledger.turn)
        held = {name: table.transactions().get(ledger.application) for name, table in self.tables.items()}
        as_known = all(number in ledger.known.get(name, {None}) for name, number in held.items())
        if not partly and as_known and ledger.id == FIRST:  # another ledger expects what the one before has published
            raise Violation(f"{ledger.turn} stops, and each table holds what it has published: {error}")
        if self.random.random() < 0.2:
            return
        if not ledger.published:
            self.give_up(ledger)
        elif ledger.open is not None:
            self.acts(ledger, "void")
            if ledger is not self.live:
                self.acts(ledger, "cancel")
        else:
            self.acts(ledger, "reset")

    def away(self) -> None:
        """Lets an operator give up the rows of a settled turn for a table that can't be reached."""
        if waiting := [ledger for ledger in self.lanes.values() if not ledger.published]:
            ledger = self.random.choice(waiting)
            with contextlib.suppress(Killed):
                self.give_up(ledger, self.random.choice(sorted(ledger.outputs.tables)))

    def give_up(self, ledger: Ledger, away: str = "") -> None:
        turn, outputs, lost = ledger.turn, ledger.outputs, set[str]()
        for place in sorted(outputs.tables.keys() - ledger.given_up):
            try:
                if place == away:
                    raise AcklineError("away")
                publish.publish_table(adapters_of(ledger, self.tables), turn, outputs, place)
            except AcklineError:
                lost.add(place)
        if ledger.turn == turn:
            self.drawn["tables given up"] += len(lost)
            ledger.given_up = ledger.given_up | lost
            self.mark_published(ledger)

    def meanwhile(self) -> None:
        """Comes between the version that an entry is made upon and the entry: others act, or the process dies."""
        drawn = self.random.random()
        if drawn < 0.03:
            raise Killed
        if drawn < 0.25 and len(self.running) < SLOTS:
            self.drawn["others act before an entry"] += 1
            act = self.random.choice([self.go_on, self.go_on, self.compact])
            for _ in range(self.random.choice((1, 4, 8))):
                act()

    # ---- a process --------------------------------------------------------------------------------------------------

    def run(self, ledger: Ledger, kind: TurnKind = TurnKind.RUN) -> Iterator[None]:
        """Takes one turn of a lane, with a stop before each write. It adopts an open turn, and what is stored of it."""
        yield from self.publish(ledger)
        if not ledger.published:
            return  # another process has settled the next turn meanwhile
        if ledger.open is None:
            before, planned = ledger.turn, self.plan(ledger, kind)
            yield
            if ledger.turn == before and ledger.open is None:
                ledger.open = planned
        if (opened := ledger.open) is None:
            return
        if (result := opened.result) is None:
            result = self.replay(ledger, opened)
            yield
            result = opened.store(result)
        if ledger.open is not opened:
            return
        done = self.settle(ledger, opened, result)
        yield
        if ledger.open is opened:
            self.store(ledger, opened, result, done)
            yield from self.publish(ledger)

    def publish(self, ledger: Ledger) -> Iterator[None]:
        turn, outputs, adapters = ledger.turn, ledger.outputs, adapters_of(ledger, self.tables)
        if ledger.published:
            return
        for place in sorted(outputs.tables.keys() - ledger.given_up):
            lowest = outputs.tables[place].lowest or {}
            self.forward(turn, lowest, place, publish.publish_table, adapters, turn, outputs, place, of=ledger)
            yield
        if ledger.turn == turn:
            self.mark_published(ledger)
            yield

    def mark_published(self, ledger: Ledger) -> None:
        ledger.published = True
        for place in ledger.outputs.tables:
            before = ledger.known.get(place, set()) if place in ledger.given_up else set()
            ledger.known[place] = {*before, ledger.outputs.number}

    def plan(self, ledger: Ledger, kind: TurnKind) -> Open:
        random, complete = self.random, dict(ledger.complete)
        if kind is TurnKind.RESET:
            complete, records = {p: random.randint(0, self.ends[p]) for p in complete}, list[Record]()
        elif kind is TurnKind.SKIP:
            records = [record for record in ledger.pending if random.random() < 0.5]
        else:
            due = [record for record, of in ledger.pending.items() if of.kind == RETRY]
            all_due = ledger.whole or random.random() < 0.3
            records = [record for record in due if all_due or random.random() < 0.6]
            for p, at in ledger.complete.items():
                complete[p] = min(self.ends[p], at + random.randint(0, 3))
                records += [(p, o) for o in range(at, complete[p])]
            self.check_expected(ledger, records)
        return Open(ledger.turn._replace(n=ledger.turn.n + 1), kind, sorted(records), complete)

    def replay(self, ledger: Ledger, opened: Open) -> Result:
        """Draws what becomes of the records of a turn, and which answers have come."""
        random, result, tries = self.random, Result(next(self.numbers)), list[Try]()
        if opened.kind is not TurnKind.RUN:
            for record in opened.records:
                result.ended |= {of.number: Outcome.SKIPPED for of in ledger.in_flight() if of.record == record}
                result.decides(record, Outcome.SKIPPED)
            return result
        self.check_expected(ledger, opened.records)  # again: the plan may be an older one
        for record in opened.records:
            tries.append(
                of := Try(record, ledger.pending.get(record, Waits(RETRY, 0, 0)).attempts + 1, next(self.numbers))
            )
            self.drawn[f"record: {(drawn := random.choice(DRAWS))}"] += 1
            error = {"skip": ErrorClass.SKIP, "tombstone": ErrorClass.TOMBSTONE}.get(drawn)
            result.ends(of, ENDS[drawn], error=error)
            if drawn == "dead":
                result.decides(record, Outcome.DEAD)
            if drawn in ("rows", "none", "skip"):
                result.handled[record] = of.number
            for _ in range(random.choice((1, 1, 2)) if drawn not in ("none", "skip", "tombstone") else 0):
                result.rows.append(Row(next(self.numbers), random.choice(TABLES), (of,)))
        for of in ledger.in_flight(result.pending) if opened.records or ledger.in_flight() else ():
            if answer := random.choice(["", "", "renew", "ack", "ack", "fail"]):
                result.ends(of, ANSWERS[answer], answer)
                result.handled |= {of.record: of.number} if answer == "ack" else {}
        for _ in range(random.choice((0, 0, 1, 1, 2)) if len(tries) > 1 else 0):
            joined = tuple(random.sample(tries, random.randint(2, min(3, len(tries)))))
            result.rows.append(Row(next(self.numbers), random.choice(TABLES), joined))
        if tries and random.random() < 0.05:
            result.rows.append(Row(next(self.numbers), random.choice(TABLES), ()))  # of no record: it stays for good
        return result

    def settle(self, ledger: Ledger, opened: Open, result: Result) -> Settled:
        def around(turn: TurnId, lowest: Mapping[str, int], place: str, look: Callable[..., Any], *of: Any) -> Any:
            try:
                found = self.forward(turn, lowest, place, look, *of, of=ledger)
            except AcklineError as error:
                if PARTLY in str(error) and not self.may_stop(ledger, turn, place, result.handled):
                    raise Violation(f"{turn} stops, and handles no part of a row's records: {error}") from error
                raise
            if lowest and place not in found and (left := self.replaced(turn, place, result.handled)):
                raise Violation(f"{turn} has no entry for {place}, and leaves the rows {sorted(left)} there")
            return found

        return settle(ledger, opened, result, self.tables, around)

    def store(self, ledger: Ledger, opened: Open, result: Result, done: Settled) -> None:
        """Stores settlement n. The process has seen that no other has stored it."""
        ledger.open, ledger.turn, ledger.outputs, ledger.kept = None, opened.turn, done.outputs, done.kept
        ledger.complete, ledger.ended = opened.complete, ledger.ended | result.ended
        ledger.stored[done.turn] = result.lines, done.rows
        after = ledger.pending | result.pending
        ledger.pending = {record: of for record, of in after.items() if of is not None}
        ledger.published, ledger.given_up = not done.outputs.tables, frozenset()
        self.settled[ledger.application, done.outputs.number] = done, ledger
        if opened.kind.opens_epoch:
            ledger.turn, ledger.pending = opened.turn._replace(epoch=opened.turn.epoch + 1, n=0), {}
            # Now the lane takes each table as it is. A turn of the new epoch is of a ledger that was lost.
            held = {name: self.tables[name].transactions().get(ledger.application) for name in ledger.outputs.expected}
            ledger.known = {name: {number} if turn_in(number) <= (ledger.turn.epoch, 0) else set()
                            for name, number in held.items() if number is not None}  # fmt: skip


def explore_newest(steps: int, seed: int) -> Counter[str]:
    """Takes `steps` steps, in worlds of STEPS_A_WORLD, and returns how often each thing was drawn. Raises Violation,
    with the seed of the world and what came last."""
    drawn, worlds = Counter[str](), list[NewestMachine]()
    with in_memory(lambda: worlds[-1].tables):
        for step in range(steps):
            if step % STEPS_A_WORLD == 0:
                worlds[:] = [NewestMachine(f"{seed}/{step // STEPS_A_WORLD}", drawn)]
            try:
                worlds[-1].step()
                worlds[-1].check()
            except Exception as error:
                last = "\n  ".join(worlds[-1].history[-20:])
                raise Violation(f"world {seed}/{step // STEPS_A_WORLD}, step {step}: {error}\n  {last}") from error
    return drawn
