"""The lab of the restore drills: a pipeline of which parts are set back to an older copy, one at a time or two.

The tables are real, and so is the command; Kafka is in memory. A `Drill` handles records up to a moment, takes a copy
of all parts, and goes on. That story is the same for many tests, so each works on a copy of a drill that has told it
(`copied`). Then a test sets parts back, and `recover` does what each error of a run advises, until the lane is at the
end of its log.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from ackline.errors import AcklineError
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE
from ackline.steps import settle
from ackline.verify.check import judge
from ackline.verify.evidence import Evidence, OutputTable
from ackline.verify.evidence import TopicPartition as CheckedPartition
from ackline.verify.read_tables import OutputTables, named_in_plans, named_in_settlements, read_table
from ackline.worker import tasks
from tests.chaos import drill_handlers
from tests.chaos.evidence import log_of
from tests.chaos.restores import set_back
from tests.cli.memory_command import MemoryCommand
from tests.support.memory import MemoryLog
from tests.support.memory_kafka import MemoryReader
from tests.support.memory_lane import AT_MOST_ONCE, DEAD, FAILS, FAILS_ONCE, GROUP, OK, TP
from tests.worker.disk_lane import DiskLane

PARTS = ("audit", "outputs", "topics", "made again", "group", "file")
"""What is set back. `topics` are logs that end earlier, under the same topic id, as a restored broker has them; `made
again` are the same logs under another id."""
MOMENTS = ("between turns", "planned", "claimed", "replayed", "settled")
"""When the copy is taken: how far the newest turn is."""
WAITS = b'{"wait": true}'
COMMAND = re.compile(r"`ackline ([^`]+)`")
DECIDES = ("reset", "adopt-ledger", "void", "backfill")
TABLE = {"from": "source", "table": "totals"}
FILE: dict[str, Any] = {"handler": "tests.chaos.drill_handlers:emit", "outputs": [TABLE]}
RETRY = {"initial_delay": "0s", "period": "0s", "max_retries": 1}


@dataclass(frozen=True, slots=True)
class Copy:
    """All parts but those on the disk, as they were at one moment."""

    logs: Mapping[TopicPartition, MemoryLog]
    committed: Mapping[tuple[str, TopicPartition], Committed]
    settings: Mapping[str, Any]


class Drill:
    """A lane in a folder. `commands` are those that the errors have advised, in order, by their first words."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, *, once: bool = False, older: Mapping[str, Any] | None = None
    ) -> None:
        self.folder, self.once = folder, once
        self.lane = DiskLane(folder / "audit", **FILE, retry=RETRY)
        if once:
            self.lane.settings = {**FILE, "retry": RETRY, "guarantee": AT_MOST_ONCE}
        self.newer = deepcopy(self.lane.settings)
        for key, value in (older or {}).items():
            self.lane.settings.pop(key, None)
            self.lane.settings |= {} if value is None else {key: value}
        self.commands: list[str] = []
        self.told: list[str] = []
        """The errors, and what the commands have printed."""
        self._handled: tuple[list[Any], dict[int, str]] = [], {}
        """What the handler has kept outside of the lane."""
        self._begin(patch)

    def _begin(self, patch: pytest.MonkeyPatch) -> None:
        self._command = MemoryCommand(self.lane, self.folder, patch)
        file = self.folder / "lane.yaml"  # of the settings of a backfill, the command takes some from the file
        text = file.read_text().replace("tests.support.journal:handle", FILE["handler"])
        file.write_text(f"{text}outputs: {[TABLE]}\n")
        patch.setattr(tasks, "ExactReader", lambda *_: MemoryReader(self.lane.world, "read_committed"))
        patch.setattr(os, "fsync", lambda _: None)  # no machine loses its power here
        patch.setattr(drill_handlers, "CALLS", self._handled[0])
        patch.setattr(drill_handlers, "TOKENS", self._handled[1])

    def copied(self, folder: Path, patch: pytest.MonkeyPatch) -> "Drill":
        """Returns a copy in another folder. Nothing that happens to one of the two happens to the other."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        copy = deepcopy(self)
        copy.folder, copy.lane.root = folder, folder / "audit"
        copy._begin(patch)
        return copy

    @property
    def live(self) -> Path:
        return self.folder / "audit" / "lane"

    # ---- the story ------------------------------------------------------------------------------------------------

    def until(self, moment: str) -> "Drill":
        """Handles records, begins a backfill, and takes a copy at a moment of the third turn."""
        lane = self.lane
        lane.produce(OK, OK, FAILS_ONCE, DEAD, OK, *self._waiting(2))
        lane.run()
        self._backfill("orders:0:0-5", "--max-records", "2")
        lane.produce(OK, FAILS, OK)
        self._answer(first=True)
        lane.run()
        lane.produce(OK, FAILS_ONCE, OK, *self._waiting(1))
        if moment != "between turns":
            self._begin_turn(moment)
        return self.take_copy()

    def take_copy(self) -> "Drill":
        lane, world = self.lane, self.lane.world
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        shutil.copytree(self.live, self.folder / "copy")
        logs = {tp: deepcopy(lane.log(tp)) for tp in world.partitions()}
        self.copy = Copy(logs, dict(world.committed), deepcopy(lane.settings))
        return self

    def _begin_turn(self, moment: str) -> None:
        lane = self.lane
        planned = lane.plan()
        if moment == "claimed":
            lane.adapters().store.store_claim(planned)
        if moment in ("replayed", "settled"):
            lane.replay()
        if moment == "settled":
            adapters = lane.adapters()
            newest, plan = adapters.newest_and_open_plan()
            assert newest is not None
            assert plan is not None
            settle.settle_turn(adapters, plan, newest)

    def goes_on(self, *, reset: int | None = None, turns: int = 3) -> "Drill":
        """Handles more records, ends the backfill, and perhaps begins a new epoch meanwhile."""
        lane = self.lane
        lane.settings = deepcopy(self.newer)
        for turn in range(turns):
            self.later()
            self._answer()
            lane.run()
            if turn == 0:
                self._backfill("--id", "b")
            if turn == 1 and reset is not None:
                self._run_command("reset", "lane", "--to", str(reset), "--reason", "test")
            lane.produce(OK, DEAD if turn else FAILS_ONCE, OK)
        self.later()
        lane.run()
        return self

    def later(self) -> None:
        """Lets a minute pass: what is in flight times out."""
        self.lane.world.now += timedelta(minutes=1)

    def _waiting(self, count: int) -> list[bytes]:
        return [] if self.once else [WAITS] * count

    def _answer(self, first: bool = False) -> None:
        for token in list(drill_handlers.TOKENS.values())[: 1 if first else None]:
            self.lane.answer_with(token, "ack")

    # ---- the restore ----------------------------------------------------------------------------------------------

    def restore(self, *parts: str) -> "Drill":
        """Sets parts back to the copy, and produces two records."""
        world = self.lane.world
        for part in parts:
            if part in ("audit", "outputs"):
                self._restore_folders(part)
            elif part == "group":
                world.committed = dict(self.copy.committed)
            elif part == "file":
                self.lane.settings = dict(deepcopy(self.copy.settings))
            elif part == "topics":
                for tp, log in self.copy.logs.items():
                    set_back(self.lane.log(tp), log)
            else:
                committed = world.committed
                world.create_topic("orders").logs = {0: deepcopy(self.copy.logs[TP])}
                world.committed = committed
        self.lane.produce(OK, OK)
        return self

    def _restore_folders(self, part: str) -> None:
        for copied, folder in ((False, self.live), (True, self.folder / "copy")):
            for path in folder.iterdir():
                if (path.name == "outputs") == (part == "outputs"):
                    shutil.copytree(path, self.live / path.name) if copied else shutil.rmtree(path)

    # ---- the way on -----------------------------------------------------------------------------------------------

    def recover(self, offset: str = "floor") -> "Drill":
        """Runs until the lane is at the end of its log, and does what the errors advise; `OFFSET` is `offset`."""
        for _ in range(15):
            self.later()
            self._answer()
            try:
                self.lane.run()
            except AcklineError as error:
                self.told.append(str(error))
                self._follow(str(error), offset)
                continue
            if self.lane.committed() == self.lane.floor() == self.lane.log().end:
                return self
        raise AssertionError(f"15 runs and {self.commands} did not end it: {self.told}")

    def _follow(self, text: str, offset: str) -> None:
        """Runs the first command of a text. If it is refused, its own error comes first. The next run is what is left,
        if an error says so."""
        tried = set[str]()
        while lines := [line for line in COMMAND.findall(text) if self._decides(line) and line not in tried]:
            tried.add(lines[0])
            words = lines[0].replace("…", "test").replace("OFFSET", offset).split()
            status, printed = self._run_command(*words)
            if status == 0:
                self.commands.append(words[0])
                return
            text = printed + text
        assert "`ackline run lane`" in text, f"no command ends this: {text}"

    def _decides(self, line: str) -> bool:
        words = line.split()
        return words[0] in DECIDES and "lane" in words

    def _run_command(self, *words: str) -> tuple[int, str]:
        done = self._command(*words, *(["--yes"] if "--yes" not in words else []))
        self.told.append(done.output + done.errors)
        return done.status, done.output + done.errors

    def _backfill(self, *arguments: str) -> tuple[int, str]:
        identity = () if "--id" in arguments else ("--id", "b")
        return self._run_command("backfill", "lane", *arguments, *identity, "--now", self.lane.world.now.isoformat())

    def end_backfill(self) -> str:
        """Resumes the backfill, and does what the error advises. Returns how it has ended: settled, cancelled, or gone
        with the tables that are not there any more."""
        status, text = self._backfill("--id", "b")
        if "no such backfill" in text:
            return "gone"
        if status:
            self._follow(text, "")
            return "cancelled"
        return "settled"

    # ---- what came of it ------------------------------------------------------------------------------------------

    def rows(self) -> Counter[int]:
        """How many rows the output table has of each record, by offset, whichever lane has published them."""
        try:
            table = DeltaTable(f"{self.live}/outputs/totals").to_pyarrow_table(columns=["_offset"])
        except TableNotFoundError:
            return Counter()
        return Counter(table["_offset"].to_pylist())

    def acked(self) -> set[int]:
        outcomes = self.evidence().outcomes.to_pylist()
        return {row["offset"] for row in outcomes if row["outcome"] == "acked"}

    def evidence(self, lane: str = LIVE) -> Evidence:
        root = str(self.folder / "audit")
        outputs = OutputTables(root, "lane", lane)
        settlements, ledger = read_table(root, "settlements", "lane", lane)
        outcomes, _ = read_table(root, "outcomes", "lane", lane)
        plans, _ = read_table(root, "plans", "lane", lane)
        named, ids = named_in_settlements(settlements)
        names = sorted({*named_in_plans(plans), *named})
        rows, published = outputs.read_rows(names), outputs.read_published(names, ids)
        tables = [
            OutputTable(
                name,
                rows[name],
                published[name],
                outputs.foreign_writer(transactions, ledger),
                transactions,
                *outputs.read_history(name),
            )
            for name, transactions in ((name, outputs.transactions(name)) for name in names)
        ]
        log = log_of(self.lane.log(), "read_committed", self.lane.world.committed.get((GROUP, TP)))
        logs = {CheckedPartition(*TP): log}
        return Evidence("lane", lane, logs, plans, outcomes, settlements, ledger, outputs=tables)

    def violations(self, lane: str = LIVE, outputs: bool = True) -> list[str]:
        evidence = self.evidence(lane)
        return judge(evidence if outputs else replace(evidence, outputs=()), settled=True).violations
