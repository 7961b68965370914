"""A stored error message names what went wrong and holds nothing of the record (I13)."""

import json
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.scrub import MASK, MESSAGE_LIMIT, scrub, scrub_address, scrub_setting, words_of_traceback

ORDER = json.dumps({"customer": "Zoé Müller", "card": "4111 1111 1111 1111", "iban": "DE02", "note": "a\tb"}).encode()


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("no such column: price", "no such column: price"),
        ("Expecting value: line 1 column 1 (char 0)", "Expecting value: line 1 column 1 (char 0)"),
        ("customer Müller is unknown", f"{MASK} {MASK} is unknown"),
        ("bad card 1111", f"bad {MASK} {MASK}"),
        ("field 'iban' holds 'DE02'", f"field '{MASK}' holds '{MASK}'"),
        ("KeyError: 'quantity'", "KeyError: 'quantity'"),
        ("tenant acme9 of user77123", f"tenant {MASK} of {MASK}"),
    ],
)
def test_what_a_message_shares_with_key_value_or_headers_is_masked(message: str, kept: str) -> None:
    assert scrub(message, [b"acme9", ORDER, None, b"user77123"]) == kept


@pytest.mark.parametrize("quote", [repr, str, lambda value: value.decode(), lambda value: str(json.loads(value))])
def test_no_word_of_a_quoted_payload_is_left(quote: object) -> None:
    value = json.dumps({"name": "Zoé Überfluss", "canary": "c4n4ry-secret-31337", "deep": {"x": ["hidden words"]}})
    kept = scrub(f"can't book {quote(value.encode())}", [value.encode()])  # type: ignore[operator]
    for word in ("Zoé", "fluss", "c4n4ry", "secret", "31337", "hidden", "words"):
        assert word.casefold() not in kept.casefold()
    assert kept.startswith("can't book")


def error_of(parse: Callable[[], object]) -> str:
    with pytest.raises(json.JSONDecodeError) as caught:
        parse()
    return str(caught.value)


@pytest.mark.parametrize("value", [b'{"a": 1 "b": 2, "c": 3}', b'{"a" 1, "b": 2}', b"[1, 2 3]"])
def test_the_delimiter_that_a_parser_misses_is_kept(value: bytes) -> None:
    message = error_of(lambda: json.loads(value))
    assert "delimiter" in message
    assert scrub(message, [value]) == message


@pytest.mark.parametrize("value", ["x", "7", "Li", "NL", "DE0", "é", "😀", "!!??", "a,b", ", ,"])
def test_a_quoted_value_that_is_short_is_masked_unless_it_is_punctuation(value: str) -> None:
    assert scrub(f"bad {value!r} here", [f'{{"field": "{value}"}}'.encode()]) == f"bad '{MASK}' here"


@given(st.text(alphabet="!#%,:;{}[]", min_size=1, max_size=12), st.sampled_from("'\"`"))
def test_a_quotation_of_a_record_of_punctuation_shows_at_most_three_characters_of_it(value: str, quote: str) -> None:
    kept = scrub(f"bad {quote}{value}{quote} here", [value.encode()])
    assert kept == f"bad {quote}{value if len(value) <= 3 else MASK}{quote} here"


def test_a_value_joined_with_other_letters_is_masked() -> None:
    assert "hushhush" not in scrub("badhushhushsuffix and key_hushhush", [b"hushhush"])


@pytest.mark.parametrize(
    ("message", "secret"),
    [
        ("login failed: password=hunter2 refused", "hunter2"),
        ("Authorization: Bearer abc.def.ghi", "abc.def"),
        ("sasl.jaas.config=xyz9", "xyz9"),
        ("https://joe:pw1@example.com/x", "pw1"),
        ('{"api_key": "k-123456"}', "k-123456"),
    ],
)
def test_values_of_secret_looking_settings_are_masked(message: str, secret: str) -> None:
    assert secret not in scrub(message, [])


def test_line_ends_and_control_characters_become_spaces() -> None:
    assert scrub("a\x00b\nc\x1b[31m\ud800d", []) == "a b c [31m d"


@given(st.text(), st.lists(st.one_of(st.none(), st.binary(max_size=50), st.text(max_size=50)), max_size=3))
def test_any_text_gives_a_short_printable_line(message: str, payload: list[bytes | str | None]) -> None:
    kept = scrub(message, payload)
    assert len(kept) <= MESSAGE_LIMIT
    assert kept.encode() is not None
    assert not any(ord(c) < 32 for c in kept)


@given(st.from_regex(r"[a-z]{4,30}", fullmatch=True), st.text(alphabet="xyz '\"_-:.", max_size=20))
def test_a_word_of_the_record_is_nowhere_in_the_message(word: str, around: str) -> None:
    assert word not in scrub(f"{around} {word} {around}", [f'{{"name": "{word}"}}'.encode()])


def test_a_message_as_long_as_its_50_mb_payload_takes_no_time() -> None:
    payload = b"confidential " * 4_000_000
    assert "confidential" not in scrub(payload.decode(), [payload])


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("max_uncommitted", "10", "10"),
        ("kafka.group_id", "orders-replay", "orders-replay"),
        ("decode.key", "utf8", "utf8"),
        ("registry.password", "two words", "***"),
        ("registry.basic.auth.user.info", "me:canary", "***"),
        ("registry.url", "https://me:canary@registry", "https://***@registry"),
        ("handler_option", "token=canary", "token=***"),
    ],
)
def test_a_setting_is_shown_without_a_secret(key: str, value: str, shown: str) -> None:
    assert scrub_setting(key, value) == f"{key}={shown}"


def test_an_address_is_shown_without_its_password_and_with_azures_container() -> None:
    assert scrub_address("s3://me:canary@bucket/x and https://me:canary@h") == "s3://***@bucket/x and https://***@h"
    assert (
        scrub_address("abfss://audit@account.dfs.core.windows.net/x") == "abfss://audit@account.dfs.core.windows.net/x"
    )


def refuse(currency: str) -> None:
    """Words of a docstring, such as zorkmid, are no words of a message."""
    raise ValueError(f"unknown currency {currency} in field 'total'")


def words_of(message: Callable[[], object]) -> frozenset[str]:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - whatever its text
        message()
    return words_of_traceback(caught.value)


def test_words_of_the_handlers_own_source_stay_and_the_records_value_does_not() -> None:
    payload = ['{"unknown": 1, "currency": "ZORKMID", "field": {"total": 7712}}']
    kept = words_of(partial(refuse, "ZORKMID"))
    assert scrub("unknown currency ZORKMID in field 'total'", payload) == f"{MASK} {MASK} {MASK} in {MASK} '{MASK}'"
    shown = scrub("unknown currency ZORKMID 7712 in field 'total'", payload, kept)
    assert shown == f"unknown currency {MASK} {MASK} in field 'total'"


def test_the_format_of_a_librarys_error_stays() -> None:
    payload = ["Expecting value canary123 Zebra"]
    kept = words_of(partial(json.loads, "Zebra"))
    assert scrub("Expecting value: Zebra canary123", payload, kept) == f"Expecting value: {MASK} {MASK}"


def test_code_that_was_compiled_from_a_payload_has_no_words_of_its_own() -> None:
    kept = words_of(partial(exec, "raise ValueError('Zebra')"))
    assert scrub("Zebra", ["raise ValueError('Zebra')"], kept) == MASK


def test_a_secret_stays_masked_though_the_source_has_its_word() -> None:
    assert scrub("password=hunter", ["hunter"], frozenset({"hunter", "password"})) == f"password={MASK}"


def test_a_longer_word_that_holds_a_word_of_the_source_is_masked_as_before() -> None:
    assert scrub("unknownZebra", ["unknownzebra"], frozenset({"unknown"})) == MASK
