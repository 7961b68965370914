"""The state of one chaos test: a world, a pipeline and its processes; and the end, once all faults have stopped."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, initialize

from ackline import InFlight, Record
from ackline.backfill import run
from ackline.errors import (
    AcklineError,
    ConfigError,
    FatalError,
    GroupMoved,
    LedgerError,
    NewerCommit,
    TooFarBehind,
    TooManyFailures,
    TopicChanged,
    TransientError,
)
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE
from ackline.pipeline.pipeline import Pipeline
from tests.chaos.account import Violation, broken
from tests.chaos.config import DEAD, GROUP, TOPICS, Config, configs
from tests.chaos.epoch import LENIENT, is_operator_void
from tests.chaos.oracle import Oracle
from tests.chaos.outside import Outside
from tests.chaos.programs import STEPS, Action, Backfill
from tests.ledger.strategies import NOON
from tests.support.actor import Actor, Endless
from tests.support.memory import Hook, MemoryLog, World
from tests.support.memory_adapters import memory_adapters
from tests.support.memory_store import MemoryStore

MOVE_IT, IS_OPEN, CHANGED = "Move the group", "is open: let it end", "guarantee was changed"
"""Parts of errors: the lane would begin beyond the end of a log, an action would run beside an open turn, and the file
has another guarantee than the turns under way."""
NO_ADOPTION = "is taken: the lane has moved since"
"""A part of the error of an adoption whose turn another process has taken."""
NO_VOID = ("is not open any more", "no file of them is lost or damaged")
"""Parts of errors of an operator's void: another process has closed the turn, or its handler has reported."""
RESET_TO = r"was truncated.* --to (earliest|\d+) "
"""The target of the reset that is the way on in a log which was cut."""
Stop = tuple[str, str]
"""(operation, when) at which a process stops; "" stands for any."""
RAISES = {"KeyError": KeyError, "TimeoutError": TimeoutError}


class Stage(RuleBasedStateMachine):
    """One world, one pipeline, and its processes."""

    @initialize(config=configs())
    def begin(self, config: Config) -> None:
        """Creates the topics with a few records, and what the group may have committed already."""
        self.config = config
        self.world = World(NOON)
        self.latest = NOON
        """The latest time that the world's clock has shown."""
        self.actors: list[Actor] = []
        self.count = self.records = 0
        self.outage = False
        """Whether the handler fails for every record."""
        self.recreated = ""
        """The topic that was deleted, and perhaps created again."""
        self.subscribed = list(TOPICS)
        self.world.create_topic(TOPICS[0], config.partitions)
        self.world.create_topic(TOPICS[1])
        self.world.create_topic(DEAD)
        for log in self.logs():
            self.append(log, [{}] * config.first_records)
        if config.commit_before is not None:
            first = TopicPartition(TOPICS[0], 0)
            self.world.committed[GROUP, first] = Committed(config.first_records // 2, config.commit_before)
        self.settings = config.settings()
        self.copies: list[Any] = []
        """Copies of the world, for rules that set parts of it back."""
        self.outside = Outside(self.world, config.partitions)
        self.oracle = Oracle(self.world, config.rules(), self.outside)
        handle = self.world.handle

        def handle_or_fail(record: Record) -> InFlight | None:
            if self.outage:
                raise ConnectionError("the handler's database is away")
            try:
                handle(record)
            except ValueError:
                raise RAISES.get(json.loads(record.value or b"").get("as"), ValueError)("as ordered") from None
            return self.outside.hand_on(record) if self.config.has_answers else None

        self.world.handle = handle_or_fail

    def pipeline(self) -> Pipeline:
        if self.config.pattern:
            topics: dict[str, Any] = {"pattern": "|".join(self.subscribed) or "none"}
        else:
            topics = {"topics": self.subscribed}
        return Pipeline.model_validate({**self.settings, "kafka": {**self.settings["kafka"], **topics}})

    def guarantee_under_way(self) -> str:
        plans = [turn.plan for turn in self.oracle.epochs[-1].turns.values() if turn.plan is not None]
        return str(plans[-1].settings["guarantee"] if plans else self.settings["guarantee"])

    def tps(self) -> list[TopicPartition]:
        """Returns the existing partitions of all topics that the pipeline may read, in order."""
        return [tp for tp in self.world.partitions() if tp.topic in TOPICS]

    def tp(self, number: int) -> TopicPartition:
        tps = self.tps()
        return tps[number % len(tps)]

    def logs(self) -> list[MemoryLog]:
        return [self.world.topics[tp.topic].logs[tp.partition] for tp in self.tps()]

    def log(self, number: int) -> MemoryLog:
        tp = self.tp(number)
        return self.world.topics[tp.topic].logs[tp.partition]

    def spawn(self, program: str | Action | Backfill, fixed: bool = False, lenient: bool = False) -> Actor:
        """Returns a process that will run a program with the file as it is now.

        `fixed` sets its clock, as `--now` does. `lenient` lets it pass the breaker, as `--no-breaker` does.
        """
        self.count += 1
        kind, work = (
            (program.kind, program.program(self.world)) if not isinstance(program, str) else (program, STEPS[program])
        )
        run_id, pipeline = f"{kind}-{self.count}{LENIENT if lenient else ''}", self.pipeline()
        now = self.world.now if fixed else None

        def process(hook: Hook) -> None:
            work(lambda: replace(memory_adapters(self.world, pipeline, run_id, hook, now), no_breaker=lenient))

        return Actor(run_id, process)

    def advance(self, actor: Actor, stop: Stop | None) -> None:
        """Lets a process go on to a stop, or to its end if `stop` is None, and judges the error that it ended with."""
        if stop is None:
            actor.advance(None)
        else:
            actor.advance(lambda operation, when: stop[0] in ("", operation) and stop[1] in ("", when))
        if actor.over and actor in self.actors:
            self.actors.remove(actor)
        if actor.over:
            self.check_error(actor)

    def check_error(self, actor: Actor) -> None:
        """Raises Violation if the state of the world explains no such error."""
        error = actor.error
        if error is None:
            return
        message = str(error)
        refused = type(error) is FatalError and not (
            self.recreated
            or "can't be used" in message
            or MOVE_IT in message
            or IS_OPEN in message
            or NO_ADOPTION in message
        )
        refused = refused and not (is_operator_void(actor.name) and any(part in message for part in NO_VOID))
        against_settings = (
            (isinstance(error, GroupMoved) and self.config.on_external_reset == "restore")
            or (isinstance(error, TooManyFailures) and (self.config.breaker is None or actor.name.endswith(LENIENT)))
            or (isinstance(error, TooFarBehind) and (self.config.behind or (0, ""))[1] != "fail")
        )
        wrong = isinstance(error, Endless | LedgerError) or not isinstance(error, AcklineError)
        if wrong or refused or against_settings:
            raise Violation(f"{actor.name} ended with {type(error).__name__}: {error}") from error

    def append(self, log: MemoryLog, orders: list[Any], open_: bool = False) -> None:
        """Produces records whose values are orders to the handler; None is a tombstone."""
        for order in orders:
            self.records += 1
            value = None if order is None else json.dumps({**order, "n": self.records}).encode()
            headers = (("trace", b"%d" % self.records),)
            # Two keys, so that most records follow another one; and with an order some records have none.
            key = b"%d" % (self.records % 5 if self.config.order == "none" else self.records % 2)
            has_none = self.config.order != "none" and self.records % 7 == 0
            log.append(value, self.world.now, key=None if has_none else key, headers=headers, open_=open_)

    # ---- the end --------------------------------------------------------------------------------------------------

    def stop_faults(self) -> None:
        self.world.faults.clear()
        self.world.members, self.outage = [], False
        for log in self.logs():
            log.has_leader = True
            log.end_transaction(commit=False)
        self.outside.mend()
        self.world.now = self.latest
        self.settings |= {"max_uncommitted": 5, "max_records_per_run": 5}
        if self.config.returns:
            self.subscribed = list(TOPICS)

    def reach_the_end(self) -> None:
        """I12: within a bounded number of runs, each floor reaches the log end and the group each floor."""
        tries = self.oracle.rules.most_attempts + 1
        bound = 20 + 2 * sum(len(log.written) * tries for log in self.logs())
        lenient = False
        for _ in range(bound):
            self.world.now += timedelta(minutes=6)
            actor = self.ended("run", lenient)
            lenient = isinstance(actor.error, TooManyFailures)
            if actor.error is not None:
                self.follow_advice(actor)
            elif any(account.paused for account in self.oracle.partitions.values()):
                self.spawn(Action("resume")).advance(None)
                self.oracle.check()
            elif self.at_the_end():
                return
        broken("I12", f"{bound} runs after the faults stopped, the floors are {self.floors()}")

    def end_backfills(self) -> None:
        """Within a bounded number of runs each backfill lane is settled, or it can be cancelled, and then it is.

        The checker judges each lane: what was chosen is read, and each chosen offset is counted once (S70, S72).
        """
        for lane in sorted({turn.lane for turn in self.world.tables.settlements} - {LIVE}):
            lenient, found = False, None
            for number in range(40):
                self.world.now += timedelta(minutes=6)
                actor = self.ended(Backfill(lane, cancels=number > 30), lenient)
                lenient = isinstance(actor.error, TooManyFailures)
                found = run.find_backfill(MemoryStore(self.world, self.pipeline().name, lane))
                if found is not None and found.account.settled and actor.error is None:
                    break
            else:
                broken("S71", f"{lane} is not settled: {found}")
            self.oracle.check_tables(lane)

    def follow_advice(self, actor: Actor) -> None:
        """Does what the error tells the operator to do; nothing if another run will succeed."""
        error, policy = actor.error, self.config.on_external_reset
        delete_commit = isinstance(error, NewerCommit) or MOVE_IT in str(error)
        delete_commit |= isinstance(error, GroupMoved) and policy == "fail"
        if isinstance(error, NewerCommit) and self.adopts():
            return
        if delete_commit and isinstance(error, AcklineError) and error.topic and error.partition is not None:
            del self.world.committed[GROUP, TopicPartition(error.topic, error.partition)]
            self.oracle.commits_are_gone()
        elif isinstance(error, TopicChanged) and (target := re.search(RESET_TO, str(error))):
            self.reset(TopicPartition(error.topic or "", error.partition or 0), target[1])
        elif isinstance(error, TopicChanged) and self.recreated:
            left = [topic for topic in self.subscribed if topic != error.topic]
            self.subscribed = left or [topic for topic in TOPICS if topic != error.topic]
        elif isinstance(error, ConfigError) and CHANGED in str(error):
            self.settings["guarantee"] = self.guarantee_under_way()
        elif isinstance(error, TooFarBehind):
            self.settings["max_offset_behind"] = None
        elif not (
            isinstance(error, TooManyFailures)
            or (isinstance(error, TransientError) and self.settings["guarantee"] == "at_most_once")
            or (isinstance(error, GroupMoved) and policy == "follow")
        ):
            broken("I12", f"after the faults stopped, {actor.name} ended with {type(error).__name__}: {error}")

    def reset(self, tp: TopicPartition, to: str) -> None:
        """Begins a new epoch of one partition, as a run advises. It may be refused while a turn is open."""
        log = self.world.log(tp)
        assert log is not None
        target: int | str = to if to == "earliest" else max(int(to) - log.start, 0)
        self.ended(Action("reset", self.tps().index(tp), target, whole=False))

    def adopts(self) -> bool:
        """Adopts the ledger, as the error of a run advises; returns False if that is refused while a turn is open."""
        return self.ended("adopt").error is None

    def ended(self, program: str | Action | Backfill, lenient: bool = False) -> Actor:
        """Returns a process that has gone to its end. What it has stored is judged, and then its error."""
        actor = self.spawn(program, lenient=lenient)
        actor.advance(None)
        self.oracle.check()
        self.check_error(actor)
        return actor

    def floors(self) -> dict[TopicPartition, Any]:
        """Returns the floor of each partition; None if it has not joined the lane."""
        accounts = self.oracle.partitions
        return {tp: accounts[tp].floor if tp in accounts else None for tp in self.tps()}

    def at_the_end(self) -> bool:
        """Returns whether nothing is left to do. A parked partition need not be read, but its floor is committed."""
        for tp, floor in self.floors().items():
            committed, log = self.world.committed.get((GROUP, tp)), self.world.log(tp)
            account = self.oracle.partitions.get(tp)
            assert log is not None
            parked = tp.topic not in self.subscribed
            same = account is not None and account.topic_id == self.world.topics[tp.topic].topic_id
            if not parked and floor != log.readable_end(self.config.isolation):
                return False
            is_foreign = parked and committed is not None and not self.oracle.is_ours(committed.metadata)
            if same and not is_foreign and (committed is None or committed.offset != floor):
                return False
        return True
