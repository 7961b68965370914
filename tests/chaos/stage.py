"""The stage of the chaos: one world, one pipeline, its processes; and how it all ends once the faults stop."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from ackline.errors import (
    AcklineError,
    ConfigError,
    FatalError,
    GroupMoved,
    LedgerError,
    NewerCommit,
    TopicChanged,
)
from ackline.ledger import Committed
from ackline.offsets import TopicPartition
from ackline.pipeline import Pipeline
from ackline.steps import plan, replay, run, settle
from ackline.testing.memory import Hook, MemoryLog, World
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from tests.chaos.account import Rules, Violation, broken
from tests.chaos.actor import Actor, Endless
from tests.chaos.oracle import Oracle
from tests.unit.strategies import NOON

GROUP, DEAD, TOPICS = "orders-replay", "orders.dead", ("orders", "payments")
MOVE_IT = "Move the group"
"""What the error says where a lane would begin beyond the end of a log."""
Stop = tuple[str, str]
"""(operation, when) to stop at; "" for any."""


def _whole(parts: Callable[[], MemoryParts]) -> None:
    run.run(parts(), no_session)


def _dag(parts: Callable[[], MemoryParts]) -> None:
    plan.plan(parts())
    run.replay_on(parts(), no_session)
    settle.settle(parts())


def _marked(parts: Callable[[], MemoryParts]) -> None:
    """The DAG with its replay marked as successful by hand."""
    plan.plan(parts())
    settle.settle(parts())


PROGRAMS: dict[str, Callable[[Callable[[], MemoryParts]], object]] = {
    "run": _whole,
    "dag": _dag,
    "marked": _marked,
    "plan": lambda parts: plan.plan(parts()),
    "replay": lambda parts: replay.replay(parts(), no_session),
    "settle": lambda parts: settle.settle(parts()),
}


class Stage(RuleBasedStateMachine):
    """One world, one pipeline, and processes of it."""

    @initialize(
        partitions=st.integers(1, 2),
        start=st.sampled_from(["earliest", "latest", "uncommitted_earliest", "uncommitted_latest"]),
        isolation=st.sampled_from(["read_committed", "read_committed", "read_uncommitted"]),
        retries=st.integers(0, 2),
        delays=st.sampled_from([("0s", "1s"), ("0s", "1m"), ("10s", "1m")]),
        buried=st.booleans(),
        tombstones=st.sampled_from(["skip", "deliver"]),
        window=st.integers(1, 12),
        most=st.integers(1, 12),
        begun=st.integers(0, 6),
        held=st.sampled_from([None, None, "", "garbage", '{"ledger": "lost", "pipeline": "lane", "epoch": 0, "n": 9}']),
    )
    def begin(
        self, partitions: int, start: str, isolation: str, retries: int, delays: tuple[str, str], buried: bool,
        tombstones: str, window: int, most: int, begun: int, held: str | None,
    ) -> None:  # fmt: skip
        """A pipeline, its topics with a few records, and what the group may hold already."""
        self.world = World(NOON)
        self.latest = NOON
        self.actors: list[Actor] = []
        self.count = self.records = 0
        self.outage = self.recreated = False
        self.subscribed = list(TOPICS)
        self.world.create_topic(TOPICS[0], partitions)
        self.world.create_topic(TOPICS[1])
        self.world.create_topic(DEAD)
        for log in self.logs():
            self.append(log, [{}] * begun)
        if held is not None:
            self.world.held[GROUP, TopicPartition(TOPICS[0], 0)] = Committed(begun // 2, held)
        initial, period = delays
        self.settings: dict[str, Any] = {
            "name": "lane",
            "handler": "handlers:scripted",
            "start": start,
            "max_uncommitted": window,
            "max_records_per_run": most,
            "retry": {"initial_delay": initial, "period": period, "max_delay": "5m", "max_retries": retries},
            "dead_letter": {"topic": DEAD} if buried else "none",
            "tombstones": tombstones,
            "kafka": {"bootstrap_servers": "memory:1", "group_id": GROUP, "isolation": isolation},
        }
        self.oracle = Oracle(self.world, self.rules_now())
        handle = self.world.handle

        def struck(record: Any) -> None:
            if self.outage:
                raise ConnectionError("the handler's database is away")
            handle(record)

        self.world.handle = struck

    def rules_now(self) -> Rules:
        """What the oracle needs to know of the file."""
        retry = self.pipeline().retry
        dead = self.pipeline().dead_letter_topic
        isolation = self.settings["kafka"]["isolation"]
        return Rules(GROUP, isolation, retry.max_retries, retry.initial_delay, retry.period, retry.max_delay, dead)

    def pipeline(self) -> Pipeline:
        """The pipeline file as it is now."""
        kafka = {**self.settings["kafka"], "topics": self.subscribed}
        return Pipeline.model_validate({**self.settings, "kafka": kafka})

    def logs(self) -> list[MemoryLog]:
        """The logs that are read, in order."""
        return [self.world.topics[at.topic].logs[at.partition] for at in self.places()]

    def places(self) -> list[TopicPartition]:
        """Their partitions."""
        return [at for at in self.world.partitions() if at.topic in TOPICS]

    def place(self, number: int) -> TopicPartition:
        """One of them."""
        places = self.places()
        return places[number % len(places)]

    def log(self, number: int) -> MemoryLog:
        """Its log."""
        at = self.place(number)
        return self.world.topics[at.topic].logs[at.partition]

    def spawn(self, program: str, fixed: bool) -> Actor:
        """A process that will run a program by the file as it is now; `fixed` sets its clock, as `--now` does."""
        self.count += 1
        name, pipeline = f"{program}-{self.count}", self.pipeline()
        now = self.world.now if fixed else None

        def work(hook: Hook) -> None:
            PROGRAMS[program](lambda: memory_parts(self.world, pipeline, name, hook, now))

        return Actor(name, work)

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
        if isinstance(error, Endless | LedgerError) or not isinstance(error, AcklineError):
            raise Violation(f"{actor.name} ended with {type(error).__name__}: {error}") from error
        said = str(error)
        if type(error) is FatalError and not (self.recreated or "can't be used" in said or MOVE_IT in said):
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
        self.subscribed = [topic for topic in TOPICS if topic in self.world.topics]

    def reach_the_end(self) -> None:
        """I12: runs, one after another, bring every floor to the end, and the group to the floors."""
        tries = self.pipeline().retry.max_retries + 2
        bound = 10 + sum(len(log.written) * tries for log in self.logs())
        for _ in range(bound):
            self.world.now += timedelta(minutes=6)
            actor = self.spawn("run", fixed=False)
            actor.advance(None)
            self.oracle.check()
            if actor.error is not None:
                self.help(actor)
            elif self.at_the_end():
                return
        broken("I12", f"{bound} runs after the faults stopped, the floors are {self.floors()}")

    def help(self, actor: Actor) -> None:
        """What the error tells the operator to do."""
        error = actor.error
        moved = isinstance(error, GroupMoved | NewerCommit) or MOVE_IT in str(error)
        if moved and isinstance(error, AcklineError) and error.topic is not None and error.partition is not None:
            del self.world.held[GROUP, TopicPartition(error.topic, error.partition)]
        elif isinstance(error, TopicChanged) and self.recreated:
            self.subscribed = [topic for topic in self.subscribed if topic != error.topic]
        elif not (isinstance(error, ConfigError) and not self.subscribed):
            broken("I12", f"after the faults stopped, {actor.name} ended with {type(error).__name__}: {error}")

    def floors(self) -> dict[TopicPartition, Any]:
        """The floor of each partition, by the rows."""
        return {at: self.oracle.places[at].floor if at in self.oracle.places else None for at in self.places()}

    def at_the_end(self) -> bool:
        """Whether nothing is left to do."""
        isolation = self.settings["kafka"]["isolation"]
        for at, floor in self.floors().items():
            if at.topic not in self.subscribed:
                continue
            held = self.world.held.get((GROUP, at))
            log = self.world.log(at)
            assert log is not None
            if floor != log.readable_end(isolation) or held is None or held.offset != floor:
                return False
        return True
