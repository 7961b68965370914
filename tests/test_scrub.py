"""A stored error message names what went wrong and holds nothing of the record (I13)."""

import functools
import json
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.scrub import (
    MASK,
    MESSAGE_LIMIT,
    place_of_error,
    scrub,
    scrub_address,
    scrub_setting,
    texts_of_handler,
    words_of_error,
    words_of_handler,
)
from tests.support.refusing_handlers import refuse

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


def shown(fail: Callable[[], object], *payload: bytes | str | None, more: str = "") -> str:
    """The message of a call that fails, as it is stored for a record with this payload."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        fail()
    return scrub(f"{caught.value}{more}", payload, words_of_error(caught.value))


def test_words_of_the_handlers_own_source_stay_and_the_records_value_does_not() -> None:
    payload = '{"unknown": 1, "tender": "ZORKMID", "field": {"total": 7712}}'
    assert scrub("unknown tender ZORKMID in field 'total'", [payload]) == f"{MASK} {MASK} {MASK} in {MASK} '{MASK}'"
    assert shown(partial(refuse, "ZORKMID 7712"), payload) == f"unknown tender {MASK} {MASK} in field 'total'"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("class", f"refused tender {MASK}"),
        ("constant", f"unknown currency {MASK}"),
        ("name", "name 'amuont' is not defined"),
        ("choice", f"{MASK} is no ducat or florin"),
    ],
)
def test_words_of_its_module_stay_too_wherever_the_message_is_made(kind: str, message: str) -> None:
    payload = "ZORKMID refused tender unknown currency amuont ducat florin"
    assert shown(partial(refuse, "ZORKMID", kind), payload) == message


def test_a_short_value_next_to_a_word_that_is_kept_is_masked_as_next_to_a_mask() -> None:
    """Before words of the source were kept, it stood next to a mask."""
    assert shown(partial(refuse, "XTS"), '{"tender": "XTS"}') == f"unknown tender {MASK} in field 'total'"
    assert shown(partial(refuse, "Li"), '{"tender": "Li", "field": "in"}') == (
        f"unknown tender {MASK} {MASK} field 'total'"
    )
    assert shown(partial(refuse, "XTS"), "nothing of it") == "unknown tender XTS in field 'total'"


@pytest.mark.parametrize("kind", ["class", "constant", "name", "inline", "choice"])
@pytest.mark.parametrize(
    "value", ["zorkmid", "gulden", "7712", "ducat7", "c4n4ry", "unknownzork", "XTS", "hunter2hunter", "4111 1111 1111"]
)
def test_no_value_of_a_record_passes_but_one_that_is_a_word_of_the_source(kind: str, value: str) -> None:
    """Also where only a docstring has it, where it begins with a word of the source, and where it is a number."""
    payload = json.dumps({"currency": value, "unknown": "refused tender", "is": "in"})
    assert value not in shown(partial(refuse, value, kind), payload, more=f" {value!r} currency {value}")
    assert "ducat" in shown(partial(refuse, "ducat", "inline"), '{"currency": "ducat"}'), "the one that may"


def test_the_format_of_a_librarys_error_stays_and_no_other_word_of_the_library() -> None:
    message = shown(partial(json.loads, "Zebra"), "Expecting value canary123 Zebra", more=": Zebra canary123")
    assert message == f"Expecting value: line 1 column 1 (char 0): {MASK} {MASK}"
    # `json.loads` has these words in the function that calls the one that raises.
    assert shown(partial(json.loads, "Zebra"), "surrogatepass", more=" surrogatepass").endswith(f" {MASK}")


def test_code_that_was_compiled_from_a_payload_has_no_words_of_its_own() -> None:
    source = "raise ValueError('Zebra')"
    assert shown(partial(exec, source), source) == MASK
    assert (
        shown(partial(exec, "def f():\n  raise KeyError('Zebra')\nf()", {"__name__": __name__}), "Zebra") == f"'{MASK}'"
    )


def test_a_secret_stays_masked_though_the_source_has_its_word() -> None:
    assert scrub("password=hunter", ["hunter"], frozenset({"hunter", "password"})) == f"password={MASK}"


def test_a_longer_word_that_holds_a_word_of_the_source_is_masked_as_before() -> None:
    assert scrub("unknownZebra", ["unknownzebra"], frozenset({"unknown"})) == MASK


def test_the_class_of_an_error_may_hide_what_it_is_made_of() -> None:
    """Each attribute of the user's class raises; the words are found all the same, and nothing is raised."""

    class Meta(type):
        def __getattribute__(cls, name: str) -> object:
            raise RuntimeError(name)

    class Hidden(Exception, metaclass=Meta):
        @property
        def __traceback__(self) -> None:  # type: ignore[override]
            raise RuntimeError("hidden")

    words = frozenset[str]()
    try:
        raise Hidden("unknown")
    except BaseException as error:
        words = words_of_error(error)
    assert "unknown" in words


def test_the_source_of_a_handler_is_that_of_its_module_and_a_wrapper_hides_nothing() -> None:
    assert {"unknown", "currency", "refused", "tender", "amuont"} <= words_of_handler(refuse)
    assert not {"docstring", "handlers", "places"} & words_of_handler(refuse)
    assert not {"zorkmid", "gulden"} & words_of_handler(refuse)
    assert {"total", "FORMAT", "ducat"} - texts_of_handler(refuse) == {"total"}, "whole texts, and names"
    assert words_of_handler(json.loads) >= {"surrogatepass"}
    assert words_of_handler(functools.wraps(refuse)(lambda record: None)) == words_of_handler(refuse)
    assert words_of_handler(print) == words_of_handler(None) == words_of_handler(partial(print)) == frozenset()


def _raised(act: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        act()
    return caught.value


def test_the_place_of_an_error_is_the_innermost_line_of_the_users_own_code() -> None:
    def load() -> object:
        return json.loads("{")

    line = load.__code__.co_firstlineno + 1
    assert place_of_error(_raised(load)) == f"tests/test_scrub.py:{line} in load"


def test_i13_code_that_was_compiled_from_a_text_has_no_place() -> None:
    scope: dict[str, object] = {"__name__": __name__}
    for name in ("<string>", "/opt/4111 1111 1111 1111.py"):
        exec(compile("def secret(): raise ValueError", name, "exec"), scope)  # noqa: S102 - the text is above
        assert "secret" not in (place_of_error(_raised(scope["secret"])) or "")  # type: ignore[arg-type]
    assert place_of_error(ValueError()) is None
