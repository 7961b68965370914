"""`--where` of a backfill: an expression in DuckDB's syntax, checked and made into a predicate over records. Pure.

DuckDB parses the expression, and this module rewrites its syntax tree before DuckDB sees it again. A JSON field has
another type in each record, and DuckDB compares JSON with JSON, so `value.currency = 'XTS'` would be an error. Here a
field takes the type of what it is compared with, and a field in another place needs a cast. docs/semantics.md has the
rules under "Records that match".

The tree is checked against lists of what is allowed: kinds of nodes, and scalar functions that DuckDB calls
CONSISTENT. So an expression can neither read a file or a table, nor give another answer for a retry of the same record.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import duckdb

from ackline.errors import ConfigError, did_you_mean

OPTION = "--where"
MOST_CHARACTERS = 2_000
MEMORY = "256MB"
RAW_DECODERS = ("bytes", "utf8")
"""Decoders that leave one scalar. Fields below it are those of the JSON that it holds."""

_PARTS = ("value", "key", "headers")
_SCALARS = {"topic": "VARCHAR", "partition": "INTEGER", "offset": "BIGINT", "timestamp": "TIMESTAMP WITH TIME ZONE"}
_NAMES = (*_PARTS, *_SCALARS)
_WORDS = f"the names are {', '.join(_NAMES)} (write \"offset\" in double quotes), and a text has single quotes: 'XTS'"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPERATORS = _words(
    "OPERATOR_NOT OPERATOR_IS_NULL OPERATOR_IS_NOT_NULL OPERATOR_COALESCE OPERATOR_TRY COMPARE_IN COMPARE_NOT_IN "
    "ARRAY_EXTRACT ARRAY_SLICE STRUCT_EXTRACT ARRAY_CONSTRUCTOR"
)
_IMPURE = frozenset({"age", "current_localtime", "current_localtimestamp", "version", "json_serialize_plan"})
"""DuckDB calls these CONSISTENT; they depend on the clock, the time zone or the release. `age` of one time counts from
today."""
_OF_TEXT = _words(
    "~~ !~~ ~~* !~~* ~~~ || ^@ like_escape not_like_escape ilike_escape not_ilike_escape lower upper lcase ucase "
    "trim ltrim rtrim starts_with ends_with prefix suffix substring substr left right replace strpos position "
    "instr concat concat_ws string_split split reverse strip_accents lpad rpad strlen md5 sha256 regexp_matches "
    "regexp_full_match regexp_extract regexp_replace strptime try_strptime url_decode levenshtein"
)
"""Functions and operators whose arguments are text. A field among them is taken as text. `contains` and `length` are
not here: both take lists as well, and `x IN value.tags` is `contains` to the parser."""
_OF_NUMBERS = _words(
    "+ - * / // % ** ^ @ abs ceil ceiling floor round trunc sign sqrt mod pow power ln log log10 exp to_timestamp "
    "make_timestamp epoch_ms isnan isinf isfinite"
)
"""Functions and operators whose arguments are numbers. A field among them is taken as DOUBLE."""
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
            "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL")  # fmt: skip
_TEXTS = ("VARCHAR", '"NULL"', "NULL")
_WHOLE = "'-?[0-9]{1,38}'"
"""Texts that a HUGEINT holds. Whole numbers are compared exactly: an id may have more digits than a DOUBLE keeps."""

Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Predicate:
    """An expression as SQL over the columns of `columns_of`. It matches where it is true, and not where it is false or
    null. DuckDB raises for a record whose values it can't cast."""

    sql: str
    columns: frozenset[str]
    """The columns that it reads."""


class _Field(NamedTuple):
    """A JSON value whose type is known only once a record is read: a column, and the keys and indexes of lists that
    lead to the value."""

    column: str
    path: tuple[str | int, ...]

    @property
    def sql_path(self) -> str:
        steps = [
            (f"[{step}]" if step >= 0 else f"[#{step}]")
            if isinstance(step, int)
            else '."' + step.replace("\\", "\\\\").replace('"', '\\"') + '"'
            for step in self.path
        ]
        return _text("".join(["$", *steps]))

    @property
    def shown(self) -> str:
        return ".".join([self.column.partition("_")[0], *map(str, self.path)])


_Operand = Node | _Field


def connect() -> duckdb.DuckDBPyConnection:
    """Returns a connection in memory that reaches no file, no host and no extension. Its time zone is UTC."""
    off = dict.fromkeys(
        ["enable_external_access", "autoload_known_extensions", "autoinstall_known_extensions"], "false"
    )
    connection = duckdb.connect(
        ":memory:", config={**off, "threads": "1", "memory_limit": MEMORY, "temp_directory": ""}
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


def columns_of(key: str, value: str) -> dict[str, str]:
    """Returns the columns that a predicate may read, with their types: for keys and values with these decoders."""
    roots = {
        f"{part}_root": "BLOB" if decoder == "bytes" else "VARCHAR"
        for part, decoder in (("key", key), ("value", value))
    }
    return {**{f"{part}_json": "VARCHAR" for part in _PARTS}, **roots, **_SCALARS}


@cache
def predicate_of(text: str, key: str, value: str) -> Predicate:
    """Returns an expression as a predicate over records whose key and value have these decoders.

    Raises ConfigError for a text that is no expression of a record alone, for a name that a record does not have, for a
    field whose type can't be told, and for an expression that is neither true nor false.
    """
    _check_text(text)
    with closing(connect()) as connection:
        try:
            return _Compiler(connection, key, value).predicate(text)
        except RecursionError:
            raise _refused("it is nested too deep; write it with fewer brackets") from None
        except duckdb.Error as error:
            raise _refused(f"DuckDB refuses it: {str(error).splitlines()[0]}") from None


def _check_text(text: str) -> None:
    if not text.strip():
        raise _refused("it is empty; write an expression such as value.currency = 'XTS'")
    if len(text) > MOST_CHARACTERS:
        raise _refused(f"it has {len(text):,} characters; write {MOST_CHARACTERS:,} at most")
    if not text.isprintable():
        raise _refused("it holds a line break or another control character; write it in one line")


def _refused(reason: str) -> ConfigError:
    return ConfigError(f"{OPTION}: {reason}", key=OPTION)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


class _Compiler:
    """Rewrites the tree of one expression."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, key: str, value: str) -> None:
        self._connection = connection
        self._decoders = {"key": key, "value": value}
        columns = ", ".join(f'"{name}" {kind}' for name, kind in columns_of(key, value).items())
        connection.execute(f"CREATE TABLE record ({columns})")
        connection.execute("INSERT INTO record (topic) VALUES (NULL)")
        self._statement = self._parsed("SELECT 1")
        found = connection.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'scalar' GROUP BY ALL "
            "HAVING bool_and(stability = 'CONSISTENT')"
        ).fetchall()
        self._functions = {name for (name,) in found if not name.startswith("__")} - _IMPURE

    def predicate(self, text: str) -> Predicate:
        """Returns the predicate of an expression. Raises as `predicate_of` does, and duckdb.Error."""
        node = self._boolean(self._rewritten(self._expression(text)))
        if (kind := self._type(node)) != "BOOLEAN":
            raise _refused(f"it gives {kind.lower()}, and neither true nor false; compare it with something")
        sql = self._sql(node)
        # An error for a record without any value, such as CAST('x' AS INTEGER), would fail each record.
        self._connection.execute(f"SELECT {sql} FROM record").fetchall()
        return Predicate(sql, frozenset(_column_names(node)))

    # ---- text and tree ----------------------------------------------------------------------------------------------

    def _parsed(self, statement: str) -> Node:
        row = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchone()
        assert row is not None
        parsed: Node = json.loads(row[0])
        if parsed["error"]:
            raise _refused(f"it is no expression: {parsed['error_message']}")
        return parsed

    def _expression(self, text: str) -> Node:
        """Returns the tree of a text that is one expression and nothing else."""
        parsed = self._parsed(f"SELECT (\n{text}\n)")
        nodes = [statement["node"] for statement in parsed["statements"]]
        # Compared with an empty SELECT, so that no clause of a query can hide behind the expression.
        if len(nodes) != 1 or _clauses(nodes[0]) != _clauses(self._statement["statements"][0]["node"]):
            raise _refused("it is a query, and not one expression; write a condition such as value.currency = 'XTS'")
        expressions: list[Node] = nodes[0]["select_list"]
        if len(expressions) != 1:
            raise _refused("it is more than one expression; join conditions by AND or OR")
        return expressions[0]

    def _sql(self, node: Node) -> str:
        statement = json.loads(json.dumps(self._statement))
        statement["statements"][0]["node"]["select_list"] = [node]
        row = self._connection.execute("SELECT json_deserialize_sql(?)", [json.dumps(statement)]).fetchone()
        assert row is not None
        return str(row[0]).removeprefix("SELECT ")

    def _type(self, node: Node) -> str:
        row = self._connection.execute(f"SELECT typeof({self._sql(node)}) FROM record").fetchone()
        assert row is not None
        return str(row[0])

    def _made(self, template: str, *nodes: Node) -> Node:
        """Returns the tree of an expression, in which `_0`, `_1` … stand for nodes."""
        made = self._parsed(f"SELECT {template}")["statements"][0]["node"]["select_list"][0]
        found: Node = _replaced(made, {f"_{number}": node for number, node in enumerate(nodes)})
        return found

    # ---- types of fields --------------------------------------------------------------------------------------------

    def _as(self, field: _Field, kind: str) -> Node:
        """Returns a field as a value of a type. Lists and structs are cast from JSON, and scalars from their text, as
        JSON has quotes around texts."""
        text = f"json_extract_string({field.column}, {field.sql_path})"
        if kind in _TEXTS:
            return self._made(text)
        if _is_nested(kind):
            return self._made(f"CAST(json_extract({field.column}, {field.sql_path}) AS {kind})")
        return self._made(f"CAST({text} AS {kind})")

    def _boolean(self, operand: _Operand) -> Node:
        return self._as(operand, "BOOLEAN") if isinstance(operand, _Field) else operand

    def _static(self, operand: _Operand, where: str) -> Node:
        if isinstance(operand, _Field):
            raise _refused(
                f"the type of {operand.shown} is not known in {where}; name it: {operand.shown}::VARCHAR, ::BIGINT, "
                f"::VARCHAR[]"
            )
        return operand

    def _is_bytes(self, operand: _Operand) -> bool:
        """Returns whether an operand is an undecoded key or value."""
        names = [] if isinstance(operand, _Field) else operand.get("column_names", ())
        return any(names == [f"{part}_root"] for part, decoder in self._decoders.items() if decoder == "bytes")

    def _alike(self, operands: Sequence[_Operand], make: Callable[[Sequence[Node]], Node], exact: bool) -> Node:
        """Returns what `make` makes of operands that are compared with each other: each field has the type of the
        operands that have one. An `exact` comparison takes whole numbers as such, and others as DOUBLE."""
        fields = [operand for operand in operands if isinstance(operand, _Field)]
        static = [operand for operand in operands if not isinstance(operand, _Field)]
        if fields and not static:
            shown = fields[0].shown
            raise _refused(f"the type of {shown} is not known; cast one of the two, as in {shown}::VARCHAR or ::DOUBLE")
        if any(map(self._is_bytes, static)):
            return make([self._encoded(operand) for operand in operands])
        if not fields:
            return make(static)
        kind = self._type(static[0] if len(static) == 1 else self._made(_coalesce(len(static)), *static))

        def typed(kind: str) -> Node:
            return make([self._as(each, kind) if isinstance(each, _Field) else each for each in operands])

        if not kind.startswith(_NUMBERS) or _is_nested(kind):
            return typed(kind)
        if not exact or len(fields) > 1:
            return typed("DOUBLE")
        is_whole = f"regexp_full_match(_0, {_WHOLE})"
        text = self._as(fields[0], "VARCHAR")
        return self._made(f"CASE WHEN {is_whole} THEN _1 ELSE _2 END", text, typed("HUGEINT"), typed("DOUBLE"))

    def _encoded(self, operand: _Operand) -> Node:
        """Returns an operand that is compared with undecoded bytes, as bytes."""
        if isinstance(operand, _Field):
            return self._made("encode(_0)", self._as(operand, "VARCHAR"))
        return self._made("encode(_0)", operand) if self._type(operand) == "VARCHAR" else operand

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def _rewritten(self, node: Node) -> _Operand:
        rewrite = _REWRITES.get(node["class"])
        if rewrite is None:
            what = node["class"].lower().replace("_", " ")
            raise _refused(f"a {what} is no part of an expression over one record{_ADVICE.get(node['class'], '')}")
        return rewrite(self, node)

    def _all(self, nodes: Sequence[Node]) -> list[_Operand]:
        return [self._rewritten(node) for node in nodes]

    def _constant(self, node: Node) -> _Operand:
        return node

    def _column(self, node: Node) -> _Operand:
        name, *path = node["column_names"]
        name = name.lower()
        if name in _SCALARS and not path:
            return node | {"column_names": [name]}
        if name not in _PARTS:
            shown = ".".join(node["column_names"])
            raise _refused(f"{shown[:100]} is no name of a record{did_you_mean(name, _NAMES)}; {_WORDS}")
        if name == "headers" and not path:
            raise _refused("headers are read by their names: write headers.NAME, or headers['the-name']")
        if not path and self._decoders.get(name) in RAW_DECODERS:
            return node | {"column_names": [f"{name}_root"]}
        return self._below(_Field(f"{name}_json", ()), *path)

    def _below(self, field: _Field, *path: str | int) -> _Field:
        if "" in path or "*" in path:
            raise _refused("a field whose name is empty or `*` can't be read")
        return field._replace(path=(*field.path, *path))

    def _extract(self, node: Node) -> _Operand:
        """Returns an element of a list or a struct. A field's elements are fields; lists in JSON count from 0."""
        child, step = node["children"]
        names = [name.lower() for name in child.get("column_names", ())]
        child = _Field(f"{names[0]}_json", ()) if names in ([part] for part in _PARTS) else self._rewritten(child)
        if not isinstance(child, _Field):
            return node | {"children": [child, *(self._static(each, "an index") for each in self._all([step]))]}
        sign = 1
        if step.get("function_name") == "-" and len(step["arguments"]) == 1:
            sign, step = -1, step["arguments"][0]["expression"]
        literal = step.get("literal", {})
        if literal.get("kind") == "STRING" and sign == 1:
            return self._below(child, literal["text"])
        if literal.get("kind") == "INTEGER":
            return self._below(child, sign * int(literal["text"]))
        raise _refused(f"{child.shown}[…] needs the name of a field in single quotes, or a number")

    def _operator(self, node: Node) -> _Operand:
        kind = node["type"]
        if kind not in _OPERATORS:
            raise _refused(f"{kind.lower()} is no part of an expression over one record")
        if kind in ("ARRAY_EXTRACT", "STRUCT_EXTRACT"):
            return self._extract(node)
        operands = self._all(node["children"])

        def with_children(children: Sequence[Node]) -> Node:
            return node | {"children": list(children)}

        if kind.startswith("COMPARE_") or kind == "OPERATOR_COALESCE":
            return self._alike(operands, with_children, exact=kind != "OPERATOR_COALESCE")
        if kind == "OPERATOR_NOT":
            return with_children([self._boolean(each) for each in operands])
        if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_TRY"):
            return with_children([self._as(each, "VARCHAR") if isinstance(each, _Field) else each for each in operands])
        return with_children([self._static(each, "a list") for each in operands])

    def _comparison(self, node: Node) -> _Operand:
        def compared(sides: Sequence[Node]) -> Node:
            return node | {"left": sides[0], "right": sides[1]}

        return self._alike(self._all([node["left"], node["right"]]), compared, exact=True)

    def _between(self, node: Node) -> _Operand:
        names = ("input", "lower", "upper")
        operands = self._all([node[name] for name in names])
        return self._alike(operands, lambda parts: node | dict(zip(names, parts, strict=True)), exact=True)

    def _conjunction(self, node: Node) -> _Operand:
        return node | {"children": [self._boolean(each) for each in self._all(node["children"])]}

    def _case(self, node: Node) -> _Operand:
        checks: list[Node] = node["case_checks"]
        whens = [self._boolean(self._rewritten(check["when_expr"])) for check in checks]
        results = self._all([*(check["then_expr"] for check in checks), node["else_expr"]])

        def with_results(parts: Sequence[Node]) -> Node:
            made = [{"when_expr": when, "then_expr": then} for when, then in zip(whens, parts[:-1], strict=True)]
            return node | {"case_checks": made, "else_expr": parts[-1]}

        return self._alike(results, with_results, exact=False)

    def _cast(self, node: Node) -> _Operand:
        child = self._rewritten(node["child"])
        if isinstance(child, _Field):
            kind = self._type(node | {"child": self._made("NULL")})
            read = "json_extract" if _is_nested(kind) else "json_extract_string"
            text = f"{read}({child.column}, {child.sql_path})"
            return node | {"child": self._made(text)}
        return node | {"child": child}

    def _collate(self, node: Node) -> _Operand:
        child = self._rewritten(node["child"])
        return node | {"child": self._as(child, "VARCHAR") if isinstance(child, _Field) else child}

    def _function(self, node: Node) -> _Operand:
        name, path = node["function_name"], node["qualified_name"]["path"]
        if path != [name] or name not in self._functions:
            raise _refused(
                f"{'.'.join(path)[:100]} is no function that an expression may call; allowed are DuckDB's functions of "
                f"one row that give the same answer each time, such as lower, regexp_matches and round"
            )
        if node["distinct"] or node["filter"] is not None or node["order_bys"]["orders"] or node["export_state"]:
            raise _refused(f"{name} is called as an aggregate; remove DISTINCT, FILTER and ORDER BY")
        return node | {"arguments": [self._argument(name, argument) for argument in node["arguments"]]}

    def _argument(self, name: str, argument: Node) -> Node:
        operand = self._rewritten(argument["expression"])
        if name in _OF_TEXT:
            if isinstance(operand, _Field):
                operand = self._as(operand, "VARCHAR")
            elif self._is_bytes(operand):
                operand = self._made("decode(_0)", operand)
        elif name in _OF_NUMBERS and isinstance(operand, _Field):
            operand = self._as(operand, "DOUBLE")
        return argument | {"expression": self._static(operand, f"{name}(…)")}


_REWRITES: dict[str, Callable[[_Compiler, Node], _Operand]] = {
    "CONSTANT": _Compiler._constant,
    "COLUMN_REF": _Compiler._column,
    "COMPARISON": _Compiler._comparison,
    "CONJUNCTION": _Compiler._conjunction,
    "BETWEEN": _Compiler._between,
    "CASE": _Compiler._case,
    "CAST": _Compiler._cast,
    "COLLATE": _Compiler._collate,
    "FUNCTION": _Compiler._function,
    "OPERATOR": _Compiler._operator,
}
"""The kinds of nodes that an expression may have."""
_ADVICE = {
    "LAMBDA": "; write value.a for a field, and not value->'a'",
    "SUBQUERY": "; write IN (…) with the values",
}


def _is_nested(kind: str) -> bool:
    return kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION", "JSON", "VARIANT"))


def _coalesce(count: int) -> str:
    return f"coalesce({', '.join(f'_{number}' for number in range(count))})"


def _clauses(node: Node) -> Node:
    """Returns a SELECT without its expressions, and without the places in its text."""
    return node | {"select_list": None, "from_table": {"type": node["from_table"]["type"]}}


def _replaced(node: Any, nodes: dict[str, Node]) -> Any:
    if isinstance(node, list):
        return [_replaced(each, nodes) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("class") == "COLUMN_REF" and node["column_names"][0] in nodes:
        return nodes[node["column_names"][0]]
    return {name: _replaced(each, nodes) for name, each in node.items()}


def _column_names(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from _column_names(each)
    elif isinstance(node, dict):
        if node.get("class") == "COLUMN_REF":
            yield node["column_names"][0]
        for each in node.values():
            yield from _column_names(each)
