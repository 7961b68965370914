"""The stage of the chaos: one world, one pipeline, its processes; and how it all ends once the faults stop."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, initialize

from ackline.commit_rule import Committed
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
from ackline.offsets import TopicPartition
from ackline.pipeline import Pipeline
from ackline.testing.memory import Hook, MemoryLog, World
from ackline.testing.memory_parts import memory_parts
from tests.chaos.account import Violation, broken
from tests.chaos.actor import Actor, Endless
from tests.chaos.config import DEAD, GROUP, TOPICS, Config, configs
from tests.chaos.epoch import LENIENT
from tests.chaos.oracle import Oracle
from tests.chaos.programs import STEPS, Act
from tests.unit.strategies import NOON

MOVE_IT, IS_OPEN = "Move the group", "is open: let it end"
CHANGED = "guarantee was changed"
"""What errors say where a lane would begin beyond the end of a log, where an act would run beside a turn, and where the
file's guarantee is not that of what is under way."""
Stop = tuple[str, str]
"""(operation, when) to stop at; "" for any."""
RAISES = {"KeyError": KeyError, "TimeoutError": TimeoutError}


class Stage(RuleBasedStateMachine):
    """One world, one pipeline, and processes of it."""

    @initialize(config=configs())
    def begin(self, config: Config) -> None:
        """A pipeline, its topics with a few records, and what the group may hold already."""
        self.config = config
        self.world = World(NOON)
        self.latest = NOON
        self.actors: list[Actor] = []
        self.count = self.records = 0
        self.outage = False
        self.recreated = ""
        """The topic that was deleted, and perhaps created again."""
        self.subscribed = list(TOPICS)
        self.world.create_topic(TOPICS[0], config.partitions)
        self.world.create_topic(TOPICS[1])
        self.world.create_topic(DEAD)
        for log in self.logs():
            self.append(log, [{}] * config.begun)
        if config.held is not None:
            self.world.committed[GROUP, TopicPartition(TOPICS[0], 0)] = Committed(config.begun // 2, config.held)
        self.settings = config.settings()
        self.oracle = Oracle(self.world, config.rules())
        handle = self.world.handle

        def struck(record: Any) -> None:
            if self.outage:
                raise ConnectionError("the handler's database is away")
            try:
                handle(record)
            except ValueError:
                raise RAISES.get(json.loads(record.value).get("as"), ValueError)("as the record asked") from None

        self.world.handle = struck

    def pipeline(self) -> Pipeline:
        """The pipeline file as it is now."""
        if self.config.pattern:
            topics: dict[str, Any] = {"pattern": "|".join(self.subscribed) or "none"}
        else:
            topics = {"topics": self.subscribed}
        return Pipeline.model_validate({**self.settings, "kafka": {**self.settings["kafka"], **topics}})

    def guarantee_under_way(self) -> str:
        """The guarantee under which the newest turn was planned."""
        plans = [turn.plan for turn in self.oracle.epochs[-1].turns.values() if turn.plan is not None]
        return str(plans[-1].settings["guarantee"] if plans else self.settings["guarantee"])

    def logs(self) -> list[MemoryLog]:
        """The logs that are read, in order."""
        return [self.world.topics[tp.topic].logs[tp.partition] for tp in self.places()]

    def places(self) -> list[TopicPartition]:
        """Their partitions."""
        return [tp for tp in self.world.partitions() if tp.topic in TOPICS]

    def place(self, number: int) -> TopicPartition:
        """One of them."""
        places = self.places()
        return places[number % len(places)]

    def log(self, number: int) -> MemoryLog:
        """Its log."""
        tp = self.place(number)
        return self.world.topics[tp.topic].logs[tp.partition]

    def spawn(self, program: str | Act, fixed: bool = False, lenient: bool = False) -> Actor:
        """A process that will run a program by the file as it is now; `fixed` sets its clock, as `--now` does, and
        `lenient` lets it pass the breaker."""
        self.count += 1
        kind, work = (
            (program.kind, program.program(self.world)) if isinstance(program, Act) else (program, STEPS[program])
        )
        name, pipeline = f"{kind}-{self.count}{LENIENT if lenient else ''}", self.pipeline()
        now = self.world.now if fixed else None

        def process(hook: Hook) -> None:
            work(lambda: replace(memory_parts(self.world, pipeline, name, hook, now), no_breaker=lenient))

        return Actor(name, process)

    def advance(self, actor: Actor, stop: Stop | None) -> None:
        """Let a process go on to a stop, or to its end, and judge how it ended."""
        if stop is None:
            actor.advance(None)
        else:
            actor.advance(lambda operation, when: stop[0] in ("", operation) and stop[1] in ("", when))
        if actor.over and actor in self.actors:
            self.actors.remove(actor)
        if actor.over:
            self.check_error(actor)

    def check_error(self, actor: Actor) -> None:
        """An error must be one that says what the world did to the process."""
        error = actor.error
        if error is None:
            return
        said = str(error)
        refused = type(error) is FatalError and not (
            self.recreated or "can't be used" in said or MOVE_IT in said or IS_OPEN in said
        )
        policy = self.config.on_external_reset
        unasked = (
            (isinstance(error, GroupMoved) and policy == "restore")
            or (isinstance(error, TooManyFailures) and (self.config.breaker is None or actor.name.endswith(LENIENT)))
            or (isinstance(error, TooFarBehind) and (self.config.behind or (0, ""))[1] != "fail")
        )
        wrong = isinstance(error, Endless | LedgerError) or not isinstance(error, AcklineError)
        if wrong or refused or unasked:
            raise Violation(f"{actor.name} ended with {type(error).__name__}: {error}") from error

    def append(self, log: MemoryLog, scripts: list[Any], open_: bool = False) -> None:
        """Produce records that tell the handler what to do; None is a tombstone."""
        for script in scripts:
            self.records += 1
            value = None if script is None else json.dumps({**script, "n": self.records}).encode()
            headers = (("trace", b"%d" % self.records),)
            log.append(value, self.world.now, key=b"%d" % (self.records % 5), headers=headers, open_=open_)

    # ---- the end --------------------------------------------------------------------------------------------------

    def calm_down(self) -> None:
        """All faults stop."""
        self.world.faults.clear()
        self.world.members, self.outage = [], False
        for log in self.logs():
            log.has_leader = True
            log.decide(commit=False)
        self.world.now = self.latest
        self.settings |= {"max_uncommitted": 5, "max_records_per_run": 5}
        if self.config.returns:
            self.subscribed = list(TOPICS)

    def reach_the_end(self) -> None:
        """I12: runs, one after another, bring every floor to the end, and the group to the floors."""
        tries = self.oracle.rules.most_attempts + 1
        bound = 20 + 2 * sum(len(log.written) * tries for log in self.logs())
        lenient = False
        for _ in range(bound):
            self.world.now += timedelta(minutes=6)
            actor = self.spawn("run", lenient=lenient)
            actor.advance(None)
            self.oracle.check()
            lenient = isinstance(actor.error, TooManyFailures)
            if actor.error is not None:
                self.check_error(actor)
                self.help(actor)
            elif any(place.paused for place in self.oracle.places.values()):
                self.spawn(Act("resume")).advance(None)
                self.oracle.check()
            elif self.at_the_end():
                return
        broken("I12", f"{bound} runs after the faults stopped, the floors are {self.floors()}")

    def help(self, actor: Actor) -> None:
        """What the error tells the operator to do; nothing where another run is to mend it."""
        error, policy = actor.error, self.config.on_external_reset
        lets_go_on = isinstance(error, NewerCommit) or MOVE_IT in str(error)
        lets_go_on |= isinstance(error, GroupMoved) and policy == "fail"
        if lets_go_on and isinstance(error, AcklineError) and error.topic is not None and error.partition is not None:
            del self.world.committed[GROUP, TopicPartition(error.topic, error.partition)]
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

    def floors(self) -> dict[TopicPartition, Any]:
        """The floor of each partition, by the rows."""
        return {tp: self.oracle.places[tp].floor if tp in self.oracle.places else None for tp in self.places()}

    def at_the_end(self) -> bool:
        """Whether nothing is left to do; parked partitions stay where they are, and are committed there."""
        for tp, floor in self.floors().items():
            committed, log = self.world.committed.get((GROUP, tp)), self.world.log(tp)
            place = self.oracle.places.get(tp)
            assert log is not None
            wanted = tp.topic in self.subscribed
            same = place is not None and place.topic_id == self.world.topics[tp.topic].topic_id
            if wanted and floor != log.readable_end(self.config.isolation):
                return False
            theirs = not wanted and committed is not None and not self.oracle.is_ours(committed.metadata)
            if same and not theirs and (committed is None or committed.offset != floor):
                return False
        return True
