"""`backfill --where`: which expressions are accepted, and how the others are refused."""

import re
from pathlib import Path

import pytest

from ackline.errors import ConfigError
from ackline.pipeline.where import OPTION, connect, predicate_of

ACCEPTED = [
    "value.currency = 'XTS'",
    "value.amount > 10 AND NOT value.paid",
    "value.lines[0].sku IN ('a', 'b') OR value['the-id'] BETWEEN 1 AND 5",
    "key = 'k' AND headers.origin LIKE 'eu-%'",
    "headers['the-origin'] IS NULL",
    "topic = 'orders' AND partition IN (1, 2) AND \"offset\" < 1000 AND timestamp >= '2026-01-31T12:00:00Z'",
    "CASE WHEN value.a THEN value.b ELSE 'x' END = 'y'",
    "coalesce(value.discount, 0) > 0.5",
    "lower(value.country) ~ 'd[ek]'",
    "list_contains(value.tags::VARCHAR[], 'new')",
    "TRY_CAST(value.amount AS DECIMAL(10, 2)) > 9.99",
    "value.price * value.pieces > 100",
    "value.at::TIMESTAMPTZ > timestamp - INTERVAL 1 HOUR",
    "value IS NOT DISTINCT FROM 'x' -- a comment",
    "date_part('hour', timestamp) = 3",
    "value.name COLLATE NOCASE = 'a'",
    "TRUE",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_an_expression_over_one_record_is_accepted(text: str) -> None:
    assert predicate_of(text, "bytes", "json").sql


@pytest.mark.parametrize(("text", "message"), [
    ("", "it is empty"),
    ("value.a =", "it is no expression: syntax error"),
    ("value.a = 1\n", "a line break or another control character"),
    ("value.a = '" + "x" * 2000 + "'", "2,012 characters; write 2,000 at most"),
    ("NOT " * 480 + "TRUE", "nested too deep"),
    ("value.a = 1; SELECT 1", "it is no expression"),
    ("value.a = 1) FROM t WHERE (TRUE", "it is a query, and not one expression"),
    ("1), (2", "it is more than one expression"),
    ("(SELECT max(x) FROM t) = value.a", "a subquery is no part of an expression over one record"),
    ("value.a IN (SELECT 1)", "a subquery"),
    ("EXISTS (FROM 'file.csv')", "a subquery"),
    ("value.a = ANY ([1, 2])", "a subquery"),
    ("sum(value.a) > 1", "sum is no function that an expression may call"),
    ("count(*) > 1", "count_star is no function"),
    ("row_number() OVER () = 1", "a window is no part"),
    ("unnest([1]) = 1", "unnest is no function"),
    ("list_filter([1], x -> x > 0) = []", "a lambda is no part"),
    ("value->'a' = 'b'", "write value.a for a field"),
    ("value->>'a' = 'b'", "the type of value is not known"),
    ("COLUMNS(*) = 1", "a star is no part"),
    ("? = 1", "a parameter is no part"),
    ("#1 = 1", "a positional reference is no part"),
    ("random() > 0.5", "random is no function"),
    ("now() > timestamp", "now is no function"),
    ("current_date > '2026-01-01'", "current_date is no name of a record"),
    ("current_localtimestamp() > '2026-01-01'", "current_localtimestamp is no function"),
    ("age(timestamp) > INTERVAL 1 DAY", "age is no function"),
    ("current_setting('TimeZone') = 'UTC'", "current_setting is no function"),
    ("getenv('HOME') = 'x'", "getenv is no function"),
    ("getvariable('x') = 'x'", "getvariable is no function"),
    ("nextval('s') = 1", "nextval is no function"),
    ("version() = 'x'", "version is no function"),
    ("sleep_ms(1000) IS NULL", "sleep_ms is no function"),
    ("write_log('x') IS NULL", "write_log is no function"),
    ("read_text('/etc/passwd') = 'x'", "read_text is no function"),
    ("glob('*') = 'x'", "glob is no function"),
    ("main.lower(value.a) = 'x'", "main.lower is no function"),
    ("lower(DISTINCT value.a) = 'x'", "called as an aggregate"),
    ("value.currency = \"XTS\"", "XTS is no name of a record.*single quotes"),
    ("valu.currency = 'XTS'", "did you mean value?"),
    ("topic.x = 'a'", "topic.x is no name of a record"),
    ("headers = 'x'", "write headers.NAME"),
    ("value.a = value.b", "the type of value.a is not known; cast one of the two"),
    ("'x' IN value.tags", r"value.tags is not known in contains\(…\); name it: value.tags::VARCHAR"),
    ("length(value.a) > 1", "value.a is not known in length"),
    ("value.a[value.b] = 1", "needs the name of a field in single quotes, or a number"),
    ("value.\"*\" = 1", "a field whose name is empty or `[*]` can't be read"),
    ("value.a + 1", "it gives double, and neither true nor false"),
    ("'a'", "it gives varchar"),
    ("NULL", "neither true nor false"),
    ("value.a > CAST('x' AS INTEGER)", "DuckDB refuses it: Conversion Error"),
    ("lower(partition, 1) = 'x'", "DuckDB refuses it: Binder Error"),
    ("value.a::NOTHING = 1", "DuckDB refuses it"),
])  # fmt: skip
def test_any_other_text_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        predicate_of(text, "bytes", "json")
    assert caught.value.key == OPTION
    assert str(caught.value).startswith(f"{OPTION}: ")


def test_an_expression_reads_the_columns_that_it_names_and_no_other() -> None:
    assert predicate_of("value.a = 1 AND key = 'x'", "bytes", "json").columns == {"value_json", "key_root"}
    assert predicate_of("value LIKE 'x%' OR value.a = 1", "json", "utf8").columns == {"value_json", "value_root"}
    assert predicate_of('"offset" > 3', "bytes", "bytes").columns == {"offset"}


@pytest.mark.parametrize("query", ["FROM read_text('/etc/hostname')", "COPY (SELECT 1) TO '/tmp/x'", "INSTALL spatial",
                                   "SET enable_external_access = true", "ATTACH '/tmp/x.db'"])  # fmt: skip
def test_the_connection_reaches_no_file_and_no_extension(query: str) -> None:
    """What the checks of the tree might let pass one day still reads and writes nothing."""
    with connect() as connection, pytest.raises(Exception, match=r"(?i)disabled|locked|permission"):
        connection.execute(query)


def test_each_example_of_the_docs_is_accepted() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text()
    rules = docs.partition('<a id="records-that-match">')[2].partition("**Epochs.**")[0]
    rows = [line.split("|")[1] for line in rules.partition("| expression |")[2].splitlines() if line.startswith("| `")]
    examples = [example for row in rows for example in re.findall("`([^`]+)`", row)]
    assert len(examples) > 10
    for example in examples:
        assert predicate_of(example, "bytes", "json").columns >= {"value_json"}
