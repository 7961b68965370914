"""Which columns a turn names for a table that does not exist yet, from its tasks to its manifest."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.published import OutputsOfTurn, StagedFile, StagedTable
from ackline.ledger.turns import TurnId
from ackline.outputs.checks import check_outputs_of, output_targets
from ackline.outputs.staged import remove_staged, staged_tables, store_manifest
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.topology import topology
from ackline.trees.output_rows import OutputRows
from ackline.trees.rows import Roots
from ackline.worker.settings import OutputTargets
from tests.trees.stages import rows_block

TURN = TurnId("shop", "live", 0, 2)
TP = TopicPartition("orders", 0)
TABLES = [{"from": "source.a", "table": "a"}, {"from": "source.b", "table": "b", "columns": {"value": "double"}}]


def adapters_of(root: Path, *kept: StagedTable) -> Any:
    """A pipeline with two output tables, whose newest settlement keeps these rows."""
    outputs = OutputsOfTurn({}, kept=kept).encode()
    store = SimpleNamespace(
        live_folder=f"{root}/shop",
        newest=lambda: SimpleNamespace(turn=TURN._replace(n=1), outputs=outputs),
        ledger_id=lambda: "ledger",
    )
    blocks = [OutputBlock.model_validate(block) for block in TABLES]
    return SimpleNamespace(
        store=store, pipeline=SimpleNamespace(name="shop", topology=topology([], blocks), shadow=None)
    )


def targets_of(adapters: Any) -> OutputTargets:
    targets = output_targets(adapters, SimpleNamespace(turn=TURN, settings={}))  # type: ignore[arg-type]
    assert targets is not None
    return targets


def staged(adapters: Any, targets: OutputTargets, *batches: list[Any]) -> list[StagedFile]:
    """Stages rows for both tables as one task does."""
    rows, roots = OutputRows(targets, [TP]), Roots()
    for batch in batches:
        rows.add(adapters.pipeline.topology.all_outputs[0], rows_block(roots, *batch, offset=0))
        assert list(rows.flush(roots)) == []
    return rows.close()


def named(adapters: Any, targets: OutputTargets, files: list[StagedFile]) -> list[StagedTable]:
    """The tables of the manifest that the driver stores."""
    job: Any = SimpleNamespace(settings=SimpleNamespace(outputs=targets))
    execution = store_manifest(adapters, SimpleNamespace(turn=TURN), job, SimpleNamespace(staged=files))  # type: ignore[arg-type]
    tables = staged_tables(adapters, TURN, execution)
    assert tables is not None
    return tables


def test_the_manifest_names_all_columns_that_the_tasks_of_the_turn_have_inferred(tmp_path: Path) -> None:
    adapters = adapters_of(tmp_path)
    targets = targets_of(adapters)
    files = [*staged(adapters, targets, [{"id": 1}], [{"note": "late"}]), *staged(adapters, targets, [{"id": 2}])]
    [table] = named(adapters, targets, files)
    assert (table.table, table.columns, len(table.files)) == ("a", {"id": "long", "note": "string"}, 3)


def test_a_turn_begins_from_the_columns_of_rows_that_wait_and_else_anew(tmp_path: Path) -> None:
    waiting = [StagedTable("a", {"id": "string"}, (), ()), StagedTable("a", {"id": "string", "note": "string"}, (), ())]
    adapters = adapters_of(tmp_path, *waiting, StagedTable("b", {"value": "double"}, (), ()))
    targets = targets_of(adapters)
    assert (targets.columns, targets.inferred) == ({1: {"value": "double"}}, {0: {"id": "string", "note": "string"}})
    [table] = named(adapters, targets, staged(adapters, targets, [{"id": "a"}]))
    assert table.columns == {"id": "string", "note": "string"}
    assert targets_of(adapters_of(tmp_path)).inferred == {0: {}}


def test_columns_of_a_turn_go_with_the_other_files_of_the_turn(tmp_path: Path) -> None:
    """A void turn after a bad deployment must not decide the columns of the turns after it."""
    adapters = adapters_of(tmp_path)
    targets = targets_of(adapters)
    staged(adapters, targets, [{"id": "wrong"}])
    later = OutputTargets(TURN._replace(n=3), targets.folder.removesuffix("2") + "3", {}, {0: {}})
    files = staged(adapters, later, [{"id": 1}])
    assert [file.path.split("-")[:2] for file in files] == [["0", "1"]]
    settled: Any = SimpleNamespace(turn=later.turn, outputs="")
    remove_staged(adapters, settled)
    assert not list(tmp_path.rglob("columns-*"))


def test_a_preview_writes_nothing_to_find_out_whether_it_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = adapters_of(tmp_path)
    plan: Any = SimpleNamespace(turn=TURN, empty=False, settings={})
    probed: list[str] = []
    monkeypatch.setattr("ackline.outputs.checks.check_place", probed.append)
    check_outputs_of(adapters, plan, probe=False)
    assert probed == []
    check_outputs_of(adapters, plan)
    assert len(probed) == 2
