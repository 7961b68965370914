"""Finds which records of a batch a backfill's `--where` takes, by one query of DuckDB for the batch.

A record for which the expression can't be evaluated fails, and its neighbours do not. Skipping it could leave out a
record that the operator means, without a trace.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ackline.handler import Record
from ackline.pipeline.streams import Decode, Undecodable, json_decoder
from ackline.pipeline.where import RAW_DECODERS, columns_of, connect, predicate_of
from ackline.worker.outcomes import RowOutcome, Unmatched, WhereFailed, outcome_of_exception
from ackline.worker.records import Headers, Int64s, Records, timestamp_column


class Match(IntEnum):
    """What the expression makes of a record."""

    NO = 0
    YES = 1
    FAILED = 2
    """It can't be evaluated."""


Matches = npt.NDArray[np.int8]
"""A `Match` for each row."""

_QUERY = 'SELECT "row", TRY(coalesce({}, false)) AS matches FROM record'
"""Null means that the expression has raised: `coalesce` leaves no other null, and TRY stands for each row alone."""
_ARROW_TYPES = {"BLOB": pa.binary(), "VARCHAR": pa.string()}


class Where:
    """An expression over records whose key and value have decoders of these names. A decoder is None where bytes stay
    bytes. Raises ConfigError as `predicate_of` does."""

    def __init__(self, text: str, decoding: tuple[str, str], key: Decode | None, value: Decode | None) -> None:
        self._predicate = predicate_of(text, *decoding)
        self._types = columns_of(*decoding)
        self._parts = (("key", decoding[0], key), ("value", decoding[1], value))
        self._json = json_decoder()
        self._query = _QUERY.format(self._predicate.sql)
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._process = 0

    def matches(self, records: Records) -> Matches:
        """Returns a `Match` for each record. A record that does not decode counts as a match, because whoever decodes
        it for its handler fails it as Undecodable. Raises the AcklineError of a schema registry without an answer."""
        found = np.full(len(records), Match.YES, dtype=np.int8)
        undecodable = np.zeros(len(records), dtype=np.bool_)
        columns = self._columns(records, found, undecodable)
        rows = np.flatnonzero((found == Match.YES) & ~undecodable)
        if len(rows):
            found[rows] = self._evaluated(columns.take(pa.array(rows)))
        found[undecodable] = Match.YES
        return found

    def _columns(self, records: Records, found: Matches, undecodable: npt.NDArray[np.bool_]) -> pa.Table:
        """Returns the columns that the predicate reads. Marks the rows that have none: those that do not decode, and in
        `found` those whose fields can't be read."""
        used, count = self._predicate.columns, len(records)
        columns: dict[str, pa.Array] = {"row": pa.array(np.arange(count))}
        for part, name, decode in self._parts:
            root, fields = f"{part}_root", f"{part}_json"
            if not {root, fields} & used:
                continue
            decoded: list[Any] = [None] * count
            texts: list[str | None] = [None] * count
            for row, record in enumerate(records):
                data = getattr(record, part)
                if data is None:
                    continue
                try:
                    decoded[row] = data if decode is None else decode(data, record)
                except Undecodable:
                    undecodable[row] = True
                    continue
                if fields in used:
                    try:
                        texts[row] = _json_text(self._parsed(decoded[row]) if name in RAW_DECODERS else decoded[row])
                    except Exception:  # of msgspec, of a value with more levels than the stack, of no JSON at all
                        found[row] = Match.FAILED
            if root in used:
                columns[root] = pa.array(decoded, _ARROW_TYPES[self._types[root]])
            if fields in used:
                columns[fields] = pa.array(texts, pa.string())
        if "headers_json" in used:
            headers = records.headers if records.headers is not None else [()] * count
            columns["headers_json"] = pa.array(map(_headers_text, headers), pa.string())
        scalars = {
            "topic": pa.array([records.tp.topic] * count, pa.string()),
            "partition": pa.array(np.full(count, records.tp.partition, np.int32)),
            "offset": pa.array(records.offsets),
            "timestamp": timestamp_column(records.timestamps),
        }
        columns |= {name: column for name, column in scalars.items() if name in used}
        return pa.table(columns)

    def _parsed(self, data: bytes | str) -> Any:
        return self._json(data.encode() if isinstance(data, str) else data)

    def _evaluated(self, columns: pa.Table) -> Matches:
        try:
            return self._query_rows(columns)
        except duckdb.Error:
            # TRY catches what a value causes. What is left, such as a lack of memory, fails the rows that cause it.
            self._connection = None
            return np.concatenate([self._query_row(columns.slice(row, 1)) for row in range(len(columns))])

    def _query_row(self, columns: pa.Table) -> Matches:
        try:
            return self._query_rows(columns)
        except duckdb.Error:
            self._connection = None
            return np.array([Match.FAILED], dtype=np.int8)

    def _query_rows(self, columns: pa.Table) -> Matches:
        if self._connection is None or self._process != os.getpid():  # a fork may not use the connection of its parent
            self._connection, self._process = connect(), os.getpid()
        self._connection.register("record", columns)
        try:
            result = self._connection.execute(self._query).fetchnumpy()
        finally:
            self._connection.unregister("record")
        matches = np.ma.filled(np.ma.asarray(result["matches"]).astype(np.int8), Match.FAILED)
        places = np.searchsorted(columns.column("row").to_numpy(), np.asarray(result["row"]))
        found = np.full(len(columns), Match.FAILED, dtype=np.int8)
        found[places] = matches
        return found


@dataclass(frozen=True, slots=True)
class Taken:
    """What `--where` makes of each record of a batch, by the decoding of the stream that takes the record. `matches` is
    empty without a `--where`."""

    offsets: Int64s
    matches: Mapping[tuple[str, str], Matches]

    def check(self, decoding: tuple[str, str], record: Record) -> None:
        """Raises Unmatched or WhereFailed for a record that its handler does not get."""
        match = self.matches[decoding][np.searchsorted(self.offsets, record.offset)]
        if match != Match.YES:
            raise _NOT_TAKEN[match]

    def rows(self, decoding: tuple[str, str]) -> Int64s:
        """Returns the rows that the handler gets."""
        return np.flatnonzero(self.matches[decoding] == Match.YES) if self.matches else np.arange(len(self.offsets))

    def others(self, decoding: tuple[str, str], time: int) -> list[RowOutcome]:
        """Returns the outcomes of the other rows."""
        matches = self.matches[decoding]
        rows = np.flatnonzero(matches != Match.YES).tolist()
        return [outcome_of_exception(_NOT_TAKEN[matches[row]](), row, None, time) for row in rows]


_NOT_TAKEN: dict[int, type[Exception]] = {Match.NO: Unmatched, Match.FAILED: WhereFailed}


def _json_text(value: Any) -> str:
    """Returns a decoded value as JSON: decimals as texts with all their digits, times in ISO 8601, bytes in Base64, and
    null for NaN and the infinities, which JSON does not have. Raises what msgspec raises for any other value."""
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which Python's JSON lets pass and DuckDB's does not
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


_encode = msgspec.json.Encoder().encode


def _headers_text(headers: Headers) -> str:
    """Returns headers as a JSON object of texts. Of several with one name the last counts, as in Kafka's lastHeader."""
    return _json_text({name: None if value is None else value.decode("utf-8", "replace") for name, value in headers})
