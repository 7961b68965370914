"""What to write instead of a value that pydantic refuses: one sentence for each kind of its errors. Pure.

pydantic's own messages describe Python types and never reach a user. A message quotes no value, which may be a secret;
a word that is not among the words of its key is the exception.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ackline.field_types import ADVICE_BY_PATTERN

_EXPECTED = {
    "kafka": "a mapping, e.g. {connection: kafka_default, group_id: orders-replay, topics: [orders]}",
    "kafka.group_id": "the name of a consumer group, e.g. orders-replay",
    "kafka.topics": "a list of names, e.g. [orders]",
    "kafka.partitions": "a mapping of topics to lists of numbers, e.g. {orders: [0, 1]}",
    "kafka.properties": "a mapping of properties to values, e.g. {fetch.min.bytes: 1}",
    "decode": "a mapping, e.g. {value: json}",
    "streams": "a list of mappings, e.g. [{name: paid, topics: [payments], handler: handlers.shop:paid}]",
    "steps": "a list of mappings, e.g. [{name: price, handler: handlers.shop:price, input: source}]",
    "retry": "a mapping, e.g. {period: 1m, max_retries: 5}",
    "retry.by_error": "a mapping of error classes to numbers or `never`, e.g. {KeyError: never}",
    "breaker": "a mapping, e.g. {failure_ratio: 0.5, min_records: 100}",
    "breaker.failure_ratio": "a ratio from 0 to 1, e.g. 0.5",
    "max_offset_behind": "a mapping, e.g. {offsets: 1000000, policy: skip}",
    "spark": "a mapping, e.g. {driver_memory: 2g}",
    "spark.archives": "a list of texts, e.g. [deps.tar.gz]",
    "spark.conf": "a mapping of properties to values, e.g. {spark.cores.max: 4}",
    "ack_topic": "the name of a topic, e.g. orders.acks",
    "in_flight": "a mapping, e.g. {timeout: 30s, max: 10000}",
    "schedule": "a cron expression in quotes, e.g. '*/10 * * * *'",
    "name": "a name, e.g. orders",
    "handler": "module:name, e.g. handlers.orders:handle",
}
"""What each key takes, where the kind of its value alone is not enough."""

_QUOTES = "put a number, a date, or a word such as yes or no in quotes"
_WHOLE_NUMBER = "a whole number in digits, e.g. 1000"
_NUMBER = "a number, e.g. 2 or 0.5"
_TIME = "a time with its zone, e.g. 2026-01-31T12:00:00Z"
_DURATION = "a duration with its unit, e.g. 30s or 5m"
_MAPPING = "a mapping of keys to values"

_KINDS = {
    "string": "text",
    "int": _WHOLE_NUMBER,
    "float": _NUMBER,
    "bool": "true or false",
    "list": "a list, e.g. [a, b]",
    "dict": _MAPPING,
    "mapping": _MAPPING,
    "model": _MAPPING,
    "datetime": _TIME,
    "time": _DURATION,
}
"""What to write, by the first word of the names of pydantic's errors: `int_type`, `int_parsing` …"""

_LIMITS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda limits: f"a number above {limits['gt']:,.15g}",
    "greater_than_equal": lambda limits: f"{limits['ge']:,.15g} or more",
    "less_than": lambda limits: f"a number below {limits['lt']:,.15g}",
    "less_than_equal": lambda limits: f"{limits['le']:,.15g} or less",
    "finite_number": lambda _: "a finite number",
    "too_short": lambda limits: f"at least {_counted(limits['min_length'], 'item')}",
    "too_long": lambda limits: f"at most {_counted(limits['max_length'], 'item')}",
    "string_too_short": lambda limits: f"at least {_counted(limits['min_length'], 'character')}",
    "string_too_long": lambda limits: f"at most {_counted(limits['max_length'], 'character')}",
}
"""What to write, by the name of an error about a limit and what the limit is."""

_OTHER = "not valid; docs/settings.md lists what this key takes"


def advice_for(key: str, kind: str, context: Mapping[str, Any], value: object) -> str:
    """Returns what to write at `key` instead of `value`.

    `kind` and `context` are the `type` and the `ctx` of pydantic's error. A kind without a sentence of its own gets
    one that names the page of settings.
    """
    if kind in _LIMITS:
        return f"not valid; write {_LIMITS[kind](context)}"
    if kind == "literal_error":
        shown = f", not {value!r}" if isinstance(value, (str, int, float)) else ""
        return f"write {context['expected'].replace(chr(39), '')}{shown}"
    if kind == "string_pattern_mismatch" and context["pattern"] in ADVICE_BY_PATTERN:
        return f"not valid; {ADVICE_BY_PATTERN[context['pattern']]}"
    if kind == "invalid_key":
        return f"a key is text; {_QUOTES}"
    expected = expected_at(key) or _KINDS.get(kind.partition("_")[0])
    if expected is None or kind == "string_pattern_mismatch":
        return _OTHER
    quotes = f"; {_QUOTES}" if kind == "string_type" and not isinstance(value, (list, dict)) else ""
    return f"not valid; write {expected}{quotes}"


def expected_at(key: str) -> str | None:
    """Returns what a key takes, with an example; None if the kind of its value alone is enough."""
    return _EXPECTED.get(key)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
