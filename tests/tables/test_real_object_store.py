"""The tables in an object store: who may create, who may commit, and what is refused."""

import itertools
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random
from threading import Barrier
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from ackline.actions.maintain import maintain
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.cli.app import app
from ackline.delta import folder as conditional_put
from ackline.delta.checkpoints import expire_entries
from ackline.delta.folder import Folder, prove_conditional_put
from ackline.delta.log import DeltaLog, LogFiles
from ackline.delta.object_store import arrow_filesystem, use_options
from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, TurnId
from ackline.local.processes import free_ports
from ackline.outputs.output_table import check_place
from ackline.outputs.publish import publish_settled
from ackline.tables.audit_table import AuditTable
from ackline.tables.layout import check_layout
from ackline.tables.store import LedgerStore
from ackline.worker.settings import TaskFolder, open_task_folder, remove_task_folders
from tests.outputs.kept_lane import TABLE, Lane, Row, Store, turn_of
from tests.support.object_store.store import SECRET, ObjectStore, object_store
from tests.tables.lane_rows import NOON, TP, plan, settlement, turn, written
from tests.tables.lanes import begin_lane, files, settle_turns

T = TypeVar("T")
DRIVERS = 50


@pytest.fixture
def root(s3: ObjectStore) -> str:
    """An audit root in a bucket of its own."""
    return f"{s3.bucket(f'bucket-{uuid.uuid4()}')}/audit"


@pytest.fixture
def careless(s3: ObjectStore) -> str:
    """An audit root in a store that ignores the condition of a put."""
    return f"{s3.bucket(f'careless-{uuid.uuid4()}')}/audit"


@pytest.fixture(autouse=True)
def _own_options() -> Iterator[None]:
    conditional_put._proved.clear()
    yield
    use_options(None)


def at_once(call: Callable[[], T], times: int) -> list[T]:
    """Calls a function from several threads at the same time."""
    ready = Barrier(times)

    def wait_and_call(_: int) -> T:
        ready.wait()
        return call()

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(wait_and_call, range(times)))


def names(folder: str) -> list[str]:
    """Returns the objects below a folder."""
    store, base = arrow_filesystem(folder)
    infos = store.get_file_info(pafs.FileSelector(base, recursive=True, allow_not_found=True))
    return sorted(info.path.removeprefix(f"{base}/") for info in infos if info.is_file)


def folders(folder: str) -> list[str]:
    """Returns the folders in a folder: those with an object, and empty objects with the name of a folder."""
    store, base = arrow_filesystem(folder)
    infos = store.get_file_info(pafs.FileSelector(base, allow_not_found=True))
    return sorted(info.base_name for info in infos if not info.is_file)


# ---- conditional puts -----------------------------------------------------------------------------------------------


def test_an_object_is_created_by_one_caller_only(root: str) -> None:
    assert sorted(at_once(lambda: Folder(root).create_exclusively("marks/1"), 8)) == [False] * 7 + [True]
    assert not Folder(root).create_exclusively("marks/1")
    assert Folder(root).create_exclusively("marks/2")


def test_i7_a_part_of_a_job_starts_once_though_two_executions_begin_it_at_once(root: str) -> None:
    def starts(folder: TaskFolder) -> bool:
        try:
            folder.check(0)
        except FatalError:
            return False
        return True

    of = TurnId("orders", LIVE, 0, 7)
    with open_task_folder(f"{root}/outcomes", of, once=True) as folder:
        assert sorted(at_once(lambda: starts(folder), 4)) == [False] * 3 + [True]
    assert names(root) == [".tasks/live-0-7/part-0"]
    remove_task_folders(f"{root}/outcomes", of)
    assert names(root) == []
    assert folders(f"{root}/.tasks") == [], "each later turn would list it"


def test_published_turns_leave_no_folder_that_each_later_turn_would_list(root: str) -> None:
    lane = Lane(Store(root), Random(1), kills=False)
    for n in range(1, 6):
        lane.turn = TurnId("shop", LIVE, 0, n)
        outcome = Outcome.IN_FLIGHT if n == 3 else Outcome.ACKED
        lane._stage([Row(n, {n: outcome})])
        turn_of(lane, [OutcomeRow(n, 1, outcome, NOON)])
        publish_settled(lane.adapters, _newest(lane))
    staging = f"{root}/shop/.staging"
    assert folders(staging) == ["live-0-3"], "the rows of turn 3 wait for a record in flight"
    store, base = arrow_filesystem(staging)
    store.create_dir(f"{base}/live-0-2")  # as a task leaves it that has discarded a file
    publish_settled(lane.adapters, _newest(lane))
    assert folders(staging) == ["live-0-3"]
    assert DeltaTable(f"{root}/shop/outputs/{TABLE}").to_pyarrow_table().num_rows == 4


def _newest(lane: Lane) -> Any:
    return SimpleNamespace(turn=lane.turn, outputs=lane.store.settlements[lane.turn])


def test_a_bucket_that_does_not_exist_is_no_place_for_a_table(root: str) -> None:
    check_place(f"{root}/totals")
    assert (names(root), folders(root)) == ([], [])
    with pytest.raises(FatalError, match="the table at s3://none-of-these/totals does not exist, and its place can't"):
        check_place("s3://none-of-these/totals")


def test_a_store_that_refuses_a_second_put_is_proved_and_nothing_stays(root: str) -> None:
    prove_conditional_put(root)
    assert names(root) == []


def test_a_store_that_ignores_the_condition_is_refused_before_a_ledger_begins(careless: str) -> None:
    with pytest.raises(ConfigError, match=r"If-None-Match.*Use a store that supports conditional writes") as refused:
        LedgerStore(careless, "orders", "live").store_settlement(settlement(0))
    assert careless in str(refused.value)
    assert names(f"{careless}/orders") == []


def test_doctor_refuses_a_store_that_ignores_the_condition(
    careless: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, shown in ((careless, "overwritten an object"), (root.replace("s3://", "s3a://") + "/", root)):
        monkeypatch.setenv("ACKLINE_AUDIT", place)
        assert shown in " ".join(CliRunner().invoke(app, ["doctor", "--json"]).stdout.split())


# ---- races ----------------------------------------------------------------------------------------------------------


def test_s53_drivers_that_create_the_tables_at_once_begin_one_ledger(root: str) -> None:
    """delta-rs alone would create the table a second time as version 1, with another ledger's id."""
    first = at_once(lambda: LedgerStore(root, "orders", "live").store_settlement(settlement(0)), 8)
    assert sorted(first) == [False] * 7 + [True]
    store = LedgerStore(root, "orders", "live")
    operations = [entry["operation"] for entry in DeltaTable(store.settlements.uri).history()]
    assert operations == ["WRITE", "CREATE TABLE"]
    assert store.newest() == settlement(0)


def test_s53_of_fifty_drivers_one_takes_each_number_and_none_fails(root: str) -> None:
    LedgerStore(root, "orders", "live").store_settlement(settlement(0))

    def run() -> list[bool]:
        store = LedgerStore(root, "orders", "live")
        won = []
        for n in (1, 2):
            rows = {TP: [OutcomeRow(5, 0, Outcome.DEAD, NOON)]}
            won += [store.store_plan(plan(n)), store.store_outcomes(turn(n), [])]
            won += [store.store_decisions(plan(n), "run", rows), store.store_settlement(settlement(n), plan(n))]
        return won

    wins = at_once(run, DRIVERS)
    assert [sum(column) for column in zip(*wins, strict=True)] == [1] * 8
    store = LedgerStore(root, "orders", "live")
    assert store.newest() == settlement(2)
    assert store.outcomes.read(None).num_rows == 2


# ---- kills ----------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """A process ends here."""


def killed(place: str, work: Callable[[], object], number: int = 1) -> None:
    """Does work that ends before or after its commit of this number, or at `checkpoint`: after the first checkpoint was
    written, and before log entries go."""
    commit, numbers = AuditTable.commit, itertools.count(1)

    def die(*_: object) -> None:
        raise Died

    def dying(*arguments: Any) -> None:
        ends = next(numbers) == number
        if not ends or place == "after":
            commit(*arguments)
        if ends:
            raise Died

    with pytest.MonkeyPatch.context() as patch:
        if place == "checkpoint":
            patch.setattr("ackline.delta.table.expire_entries", die)
        else:
            patch.setattr(AuditTable, "commit", dying)
        with pytest.raises(Died):
            work()


@pytest.mark.parametrize("place", ["before", "after"])
def test_s52_a_turn_killed_at_any_of_its_commits_is_finished_by_the_next_process_and_no_row_is_there_twice(
    root: str, place: str
) -> None:
    """Turn n dies at its commit n: plan, outcomes, decisions or settlement."""

    def do_turn() -> None:
        process = LedgerStore(root, "orders", LIVE)
        process.store_plan(plan(n))
        process.store_outcomes(turn(n), [written(process, turn(n), [(n, 1, "acked")])])
        process.store_decisions(plan(n), "run", {TP: [OutcomeRow(100 + n, 0, Outcome.DEAD, NOON)]})
        process.store_settlement(settlement(n), plan(n))

    store = LedgerStore(root, "orders", "live")
    store.store_settlement(settlement(0))
    for n in (1, 2, 3, 4):
        killed(place, do_turn, n)
        assert (store.newest() == settlement(n)) == ((place, n) == ("after", 4))
        do_turn()
        assert store.newest() == settlement(n)
    rows = store.outcomes.read(None, ["turn", "offset", "outcome"]).to_pylist()
    assert sorted(map(tuple, map(dict.values, rows))) == [
        row for n in (1, 2, 3, 4) for row in ((n, n, "acked"), (n, 100 + n, "dead"))
    ]
    assert [store.plan(turn(n)) for n in (1, 2, 3, 4)] == [plan(n) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("place", ["before", "after", "checkpoint"])
def test_fault_33_a_maintenance_killed_at_a_write_changes_no_row_and_the_next_one_ends_it(
    root: str, place: str
) -> None:
    store = begin_lane(LedgerStore(root, "orders", "live"), 2)
    everything = AuditFilter(everything=True)
    rows, named = list(audit_rows(root, "orders", everything)), len(files(store.outcomes))
    killed(place, lambda: maintain(root))
    assert list(audit_rows(root, "orders", everything)) == rows
    maintain(root)
    again = LedgerStore(root, "orders", "live")
    assert (len(files(again.outcomes)) < named, again.newest()) == (True, settlement(2))
    assert list(audit_rows(root, "orders", everything)) == rows
    settle_turns(again, range(3, 4))
    assert again.newest() == settlement(3)


# ---- logins ---------------------------------------------------------------------------------------------------------


def test_a_connection_reaches_the_tables(root: str, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in s3.environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ACKLINE_AUDIT_CONNECTION", "store")
    extra = f'{{"endpoint_url": "{s3.endpoint}", "allow_http": true, "region_name": "us-east-1"}}'
    fields = f'{{"conn_type": "aws", "login": "key", "password": "{SECRET}", "extra": {extra}}}'
    monkeypatch.setenv("AIRFLOW_CONN_STORE", fields)
    store = LedgerStore(root, "orders", "live")
    assert store.store_settlement(settlement(0))
    assert store.newest() == settlement(0)


@pytest.mark.parametrize("obeyed", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_log_and_data_are_in_one_store_whichever_variable_names_it(
    root: str, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, obeyed: str
) -> None:
    """At the address that the other variables name, no store listens."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv(obeyed, s3.endpoint)
    store = LedgerStore(root, "orders", "live")
    assert store.store_settlement(settlement(0))
    assert LedgerStore(root, "orders", "live").newest() == settlement(0)


@pytest.mark.parametrize("answers", [True, False])
def test_a_missing_bucket_is_fatal_and_a_store_that_does_not_answer_transient_without_the_login(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """In everything that a run does first."""
    store = "s3://no-such-bucket/audit"
    if not answers:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    ledger = LedgerStore(store, "orders", "live")
    last = (lambda: ledger.store_plan(plan(1))) if answers else (lambda: check_layout(store))
    for call in (lambda: prove_conditional_put(store), ledger.newest, last):
        with pytest.raises(AcklineError, match="can't be used") as error:
            call()
        assert SECRET not in str(error.value)
        assert isinstance(error.value, TransientError) is not answers
        assert ("run this again when it does" in str(error.value)) is not answers


def test_a_store_that_goes_away_under_an_open_table_is_a_transient_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = LedgerStore(f"{server.bucket('bucket')}/audit", "orders", "live")
        store.store_settlement(settlement(0))
        store.store_plan(plan(1))
        table = store.plans.open()
        assert table is not None
    calls = (lambda: store.plan(turn(1)), lambda: store.has_claim(turn(1)), lambda: store.plans.read(None, table=table))
    for call in calls:
        with pytest.raises(TransientError, match="run this again when it does"):
            call()


def test_a_process_that_has_read_remote_tables_ends_well(root: str) -> None:
    """Arrow's threads that outlive the interpreter must not abort it."""
    store = LedgerStore(root, "orders", "live")
    store.store_settlement(settlement(0))
    store.store_decisions(plan(1), "run", {TP: [OutcomeRow(5, 0, Outcome.DEAD, NOON)]})
    script = (
        "from ackline.audit.queries import *; print(len(list(audit_rows(%r, 'orders', AuditFilter(everything=True)))))"
    )
    command = [sys.executable, "-c", script % root]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


# ---- checkpoints and the clean-up of the log, by several processes at once ---------------------------------------


AT_ONCE = timedelta(seconds=-60)
"""A retention after which every file of a log is old."""


def settle_and_checkpoint(store: LedgerStore, turns: range) -> None:
    """Settles turns, with a checkpoint of the settlements after each, and expires what no reader needs."""
    for n in turns:
        assert store.store_settlement(settlement(n))
        store.settlements.checkpoint()
        expire_entries(store.settlements.log, AT_ONCE)


def beside(monkeypatch: pytest.MonkeyPatch, log: DeltaLog, at: int, rival: Callable[[], object]) -> list[int]:
    """Runs a rival right after this process has listed a log for the `at`-th time. Returns the numbers of listings."""
    listings: list[int] = []
    list_files = DeltaLog.files

    def listing(self: DeltaLog) -> LogFiles:
        files = list_files(self)
        if self is log:
            listings.append(len(listings) + 1)
            if len(listings) == at:
                rival()
        return files

    monkeypatch.setattr(DeltaLog, "files", listing)
    return listings


def is_whole_up_to(root: str, n: int) -> bool:
    again = LedgerStore(root, "orders", LIVE)
    numbers = again.settlements.transactions()
    rows = sorted(again.settlements.read(None)["turn"].to_pylist())
    return numbers == {"ackline/orders/live/0/settlement": n} and rows == list(range(n + 1))


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_two_processes_that_checkpoint_and_expire_at_once_do_not_fail_each_other(
    root: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    store, other = LedgerStore(root, "orders", LIVE), LedgerStore(root, "orders", LIVE)
    settle_and_checkpoint(store, range(2))
    assert store.store_settlement(settlement(2))
    log = store.settlements.log
    listings = beside(monkeypatch, log, at, lambda: settle_and_checkpoint(other, range(3, 5)))
    store.settlements.checkpoint()
    expire_entries(log, AT_ONCE)
    assert len(listings) >= at, "the rival ran in between"
    assert is_whole_up_to(root, 4)
    settle_and_checkpoint(LedgerStore(root, "orders", LIVE), range(5, 6))
    assert is_whole_up_to(root, 5)
