"""The state machine for pipelines with an order: what failed holds back its key while everything else happens too."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.chaos.config import Config, ordered_configs
from tests.chaos.machine import SLOTS, WRITES, ChaosMachine
from tests.chaos.world_changes import FAILS, small
from tests.support.memory import AFTER, BEFORE

followed = st.lists(st.sampled_from([{}, {}, {"skip": True}, None, *FAILS]), min_size=2, max_size=6)


class OrderedMachine(ChaosMachine):
    """All rules of the state machine, and those about the order of calls (I19)."""

    @initialize(config=ordered_configs())
    def begin(self, config: Config) -> None:
        super().begin(config)

    @rule(order=st.sampled_from(["none", "key", "key", "partition"]), runs=st.integers(0, 2), planned=st.booleans())
    def order_changes(self, order: str, runs: int, planned: bool) -> None:
        """Deploys a file with another order, perhaps while a turn is planned by the one before."""
        if planned:
            self.advance(self.spawn("plan"), None)
        self.settings["order"] = order
        self.whole_runs(*["run"] * runs)

    @rule(where=small, records=followed, minutes=st.sampled_from([0, 1, 5]), runs=st.integers(1, 4))
    def followers_wait(self, where: int, records: list[Any], minutes: int, runs: int) -> None:
        """Lets records follow one of their key that fails, and several runs come to them."""
        self.append(self.log(where), [FAILS[where % len(FAILS)], *records])
        for _ in range(runs):
            self.whole_runs("run")
            self.clock(minutes)

    @rule(
        where=small,
        records=followed,
        write=st.sampled_from(WRITES),
        when=st.sampled_from([BEFORE, AFTER]),
        others=st.lists(st.sampled_from(["run", "void", "dag"]), min_size=1, max_size=2),
    )
    def overtaken_in_order(self, where: int, records: list[Any], write: str, when: str, others: list[str]) -> None:
        """Stops a run at a write while others go on with its records, and lets it come back."""
        if len(self.actors) >= SLOTS:
            return
        self.append(self.log(where), [FAILS[where % len(FAILS)], *records])
        first = self.spawn("run")
        self.actors.append(first)
        self.advance(first, (write, when))
        self.whole_runs(*others)
        self.oracle.check()
        if not first.over:
            self.advance(first, None)
