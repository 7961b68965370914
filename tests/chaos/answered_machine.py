"""The state machine for pipelines with an ack topic: answers come from outside while everything else happens too."""

from datetime import timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.chaos.config import Config, answered_configs
from tests.chaos.machine import SLOTS, ChaosMachine
from tests.chaos.outside import VALUES
from tests.chaos.stage import Stop
from tests.chaos.world_changes import ORDERS, small
from tests.support.actor import Actor
from tests.support.memory import AFTER, BEFORE, READ


class Answered(NamedTuple):
    """What one token is answered with. `which` counts tokens from the newest on, of all or of what is `waiting`."""

    which: int
    values: list[str]
    waiting: bool
    forged: bool


WAITING = [order for order in ORDERS if order is not None and "wait" in order]
answers = st.builds(
    Answered,
    st.integers(0, 12),
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=3),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([False] * 7 + [True]),
)
several = st.lists(answers, min_size=1, max_size=4)
transactions = st.sampled_from([None] * 4 + ["open", "commit", "abort"])
changes = st.sampled_from(["leader", "leader", "expire", "expire", "truncate", "mend", "recreate"])
stops = st.sampled_from(
    [
        *(None, ("outcomes", AFTER), ("decisions", BEFORE), ("decisions", AFTER), ("decisions", AFTER)),
        *(("settlement", BEFORE), ("settlement", AFTER), ("bounds", READ), ("fetch", READ), ("poll", READ)),
    ]
)
"""Where a run stops that another one overtakes: mostly around the writes that fix which answers count."""


class AnsweredMachine(ChaosMachine):
    """All rules of the state machine, and those about the ack topic."""

    @initialize(config=answered_configs())
    def begin(self, config: Config) -> None:
        super().begin(config)

    @precondition(lambda self: self.outside.live_tokens())
    @rule(answered=several, transaction=transactions)
    def answers_come(self, answered: list[Answered], transaction: str | None) -> None:
        """Answers for attempts that are or were in flight, more than once, late, forged or in a transaction."""
        tokens = self.outside.live_tokens()
        waiting = [token for token in tokens if self.is_waiting(token)]
        for which, values, only_waiting, forged in answered if tokens else ():
            chosen = waiting if only_waiting and waiting else tokens
            token = chosen[which % len(chosen)]
            for value in values:
                written = token[:-8] + token[-8:].swapcase() if forged else token
                self.outside.answer(written, value, open_=transaction is not None)
        if transaction in ("commit", "abort"):
            for log in self.outside.logs().values():
                log.end_transaction(transaction == "commit")

    def is_waiting(self, token: str) -> bool:
        """Returns whether the record of a token is in flight, perhaps under a later token."""
        call = self.outside.issued[token].call
        account = self.oracle.partitions.get(call.tp)
        pending = account.pending.get(call.offset) if account is not None else None
        return pending is not None and pending.kind == "in_flight"

    @rule(where=small, far=small, what=changes)
    def ack_topic_changes(self, where: int, far: int, what: str) -> None:
        """Takes or returns a leader of the ack topic, lets answers expire, truncates its log, or creates it again."""
        logs = self.outside.logs()
        tp = sorted(logs)[where % len(logs)]
        if what == "leader":
            logs[tp].has_leader ^= True
        elif what == "expire":
            logs[tp].expire(min(logs[tp].start + far, logs[tp].readable_end("read_committed")))
        elif what == "truncate":
            self.outside.truncate(tp, far)
        elif what == "recreate":
            self.outside.create_again()
        else:
            self.outside.mend()

    @rule(
        where=small,
        records=st.lists(st.sampled_from(WAITING), min_size=1, max_size=4),
        answered=several,
        transaction=transactions,
        change=st.sampled_from([None] * 5 + ["leader", "expire", "truncate", "recreate"]),
        seconds=st.sampled_from([0, 0, 31, 150, 400]),
        stop=stops,
        late=st.lists(answers, max_size=3),
    )
    def handed_on(
        self,
        where: int,
        records: list[Any],
        answered: list[Answered],
        transaction: str | None,
        change: str | None,
        seconds: int,
        stop: Stop | None,
        late: list[Answered],
    ) -> None:
        """Hands records on. Then answers come, and a run settles them; it may stop, and more answers come, and another
        run overtakes it."""
        self.append(self.log(where), records)
        self.advance(self.spawn("run"), None)
        self.oracle.check()
        self.answers_come(answered, transaction)
        if change is not None:
            self.ack_topic_changes(where, len(records), change)
        self.world.now += timedelta(seconds=seconds)
        self.latest = max(self.latest, self.world.now)
        first = self.spawn("run")
        self.actors.append(first)
        self.advance(first, stop)
        self.oracle.check()
        self.answers_come(late, None)
        self.overtakes(first)

    @precondition(lambda self: len(self.actors) < SLOTS)
    @rule(where=small, records=st.lists(st.sampled_from(WAITING), min_size=1, max_size=4), answered=several)
    def handed_on_in_vain(self, where: int, records: list[Any], answered: list[Answered]) -> None:
        """Hands records on in a turn that an operator voids, and again in the next. Answers come for both tokens."""
        self.append(self.log(where), records)
        first = self.spawn("run")
        self.actors.append(first)
        self.advance(first, ("decisions", BEFORE))
        for program in ("void", "run"):
            self.advance(self.spawn(program), None)
            self.oracle.check()
        self.answers_come(answered, None)
        self.overtakes(first)

    def overtakes(self, first: Actor) -> None:
        """Lets a run go to its end, and then the process that it has overtaken."""
        self.advance(self.spawn("run"), None)
        if not first.over:
            self.oracle.check()
            self.advance(first, None)
