"""Tuples on their way to other tasks: how they are divided into batches."""

from ackline.worker.trees.batch import MAX_BYTES, MAX_ROWS, SentTuples
from ackline.worker.trees.rows import EdgeColumns

MIB = 1 << 20


def test_a_batch_holds_few_rows_and_few_bytes_wherever_the_large_tuples_are() -> None:
    tuples, edges = SentTuples(), EdgeColumns()
    payloads = [b"small"] * (MAX_ROWS + 1) + [bytes(MIB)] * 40 + [b"small"]
    for number, payload in enumerate(payloads):
        tuples.add(0, 0, (edges.add_input_edge(0, number, 1, number),), b"k", payload)
    batches = tuples.rows(edges.resolve())
    assert [payload for batch in batches for payload in batch.column("payload").to_pylist()] == payloads
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(len(payloads)))
    assert max(len(batch) for batch in batches) <= MAX_ROWS
    assert max(batch.nbytes for batch in batches) <= MAX_BYTES + 2 * MIB
    assert len(batches) <= 6
