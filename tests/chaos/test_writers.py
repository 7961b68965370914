"""Eight writers to one table on a local path, two of them delta-spark JVMs (fault 30).

All writers try to take each number of the transaction id "contest": each number has one winner. Each also counts up a
transaction id of its own, and no row is lost.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from filelock import FileLock

from ackline.tables.audit_table import AuditTable
from ackline.tables.schemas import OUTCOMES
from tests.chaos.victims import SECONDS, ended
from tests.e2e.forked import ForkedProcess
from tests.tables.spark_statements import session

RUST, JVMS, NUMBERS = 6, 2, 4
Append = Callable[[str, int], bool]
DAY = datetime(2026, 1, 31, tzinfo=UTC)
COLUMNS = (
    "pipeline string, plan_date date, lane string, epoch int, turn long, run_id string, topic string, "
    "partition int, offset long, attempt int, outcome string, handled_at timestamp"
)


def row(name: str, application: str, number: int) -> dict[str, object]:
    """Returns a row with the name of its writer and its number."""
    of_turn = {"pipeline": "contest", "plan_date": DAY.date(), "lane": application, "epoch": 0, "turn": number}
    of_record = {"topic": "t", "partition": 0, "offset": number, "attempt": 1, "outcome": "acked", "handled_at": DAY}
    return {**of_turn, "run_id": name, **of_record}


def rust(table: AuditTable, name: str) -> Append:
    """Returns a function that appends as Ackline does."""
    return lambda application, number: table.append(
        pa.Table.from_pylist([row(name, application, number)], schema=OUTCOMES), application, number
    )


def jvm(table: AuditTable, name: str) -> Append:
    """Returns a function that appends with delta-spark, under the same lock."""
    spark, lock = session(), FileLock(Path(table.uri).parent / ".locks" / f"{table.name}.lock")

    def append(application: str, number: int) -> bool:
        with lock:
            last = table.version_of(application)
            if last is not None and last >= number:
                return False
            rows = spark.createDataFrame([tuple(row(name, application, number).values())], COLUMNS)
            writer = rows.write.format("delta").mode("append")
            writer.option("txnAppId", application).option("txnVersion", number).save(table.uri)
            return True

    return append


def contest(root: str, name: str) -> None:
    """Tries to take each number of the contest, and prints the numbers that it got. A JVM waits until all are there."""
    table = AuditTable(root, "outcomes")
    table.create()
    append = jvm(table, name) if name.startswith("jvm") else rust(table, name)
    if name.startswith("jvm"):
        print("ready", flush=True)
        sys.stdin.readline()
    won = []
    for number in range(1, NUMBERS + 1):
        assert append(f"own/{name}", number)
        if append("contest", number):
            won.append(number)
    print(json.dumps(won))


@pytest.mark.deep
@pytest.mark.real
def test_eight_writers_of_two_kinds_lose_nothing_and_each_number_has_one_winner(tmp_path: Path) -> None:
    with ExitStack() as stack:
        names = [f"jvm{n}" for n in range(JVMS)] + [f"rust{n}" for n in range(RUST)]
        jvms = {name: stack.enter_context(ended(ForkedProcess(contest, str(tmp_path), name))) for name in names[:JVMS]}
        for jvm in jvms.values():
            assert jvm.stdout.readline() == "ready\n", jvm.communicate(timeout=SECONDS)[1]
        rust = {name: stack.enter_context(ended(ForkedProcess(contest, str(tmp_path), name))) for name in names[JVMS:]}
        won: dict[str, list[int]] = {}
        for jvm in jvms.values():
            jvm.stdin.write("\n")
            jvm.stdin.flush()
        for name, each in {**jvms, **rust}.items():
            output, errors = each.communicate(timeout=SECONDS)
            assert each.returncode == 0, errors
            won[name] = json.loads(output.splitlines()[-1])
    rows = DeltaTable(str(tmp_path / "outcomes")).to_pyarrow_table().to_pylist()
    contested = [(row["turn"], row["run_id"]) for row in rows if row["lane"] == "contest"]
    assert sorted(contested) == sorted((number, name) for name, numbers in won.items() for number in numbers)
    assert sorted(number for number, _ in contested) == list(range(1, NUMBERS + 1))
    own = Counter(row["run_id"] for row in rows if row["lane"] != "contest")
    assert own == dict.fromkeys(won, NUMBERS)
