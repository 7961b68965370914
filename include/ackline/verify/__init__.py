"""The independent checker: judges a pipeline by its topics, tables and committed offsets, without the product's code.

    python -m ackline.verify --bootstrap HOST:PORT --audit ROOT --pipeline NAME --group GROUP --topic TOPIC …

It reads the topics, the dead-letter topic, the three Delta tables, the output tables, the committed offsets of the
group and, if there is one, a journal of handler calls. It reports which of the invariants I1 to I11, I14 and I16
(docs/guarantees.md) do not hold; of I10, only what records in flight show. With `--settled` it also requires that
nothing is open, pending or behind.

It imports nothing of `ackline` but this package, so a mistake in the product cannot hide itself in the checker.
Reading and judging are apart: `check.gather` makes an `Evidence` of plain data, `check.judge` is a function of that
alone, `check.check` does both. Each `judge_*` module holds the rules of one theme. A large topic has millions of
offsets, so offsets and outcomes are numpy arrays.
"""
