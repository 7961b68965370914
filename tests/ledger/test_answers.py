"""Tokens of records in flight, the keys that sign them, and the answers that name them."""

import base64
from datetime import timedelta

import pytest

from ackline import Record
from ackline.errors import ConfigError
from ackline.handler import sign_tokens_with
from ackline.ledger.answers import (
    TOKEN_KEYS,
    Answer,
    TokenSigner,
    counts_text,
    parse_answer,
    parse_token,
    token_keys_of,
    warning_of_keys,
)
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import AnswerKind
from ackline.ledger.turns import TurnId

KEY, OTHER = b"a key of the tests", b"another key of them"
TURN = TurnId("shop", "live", 1, 7)
TP = TopicPartition("orders", 3)
SIGNER = TokenSigner(KEY, "ledger-1", TURN, {TP: "id-1", TP._replace(partition=4): "id-0"})


def test_a_token_names_its_attempt_and_verifies_in_its_ledger_and_topic_alone() -> None:
    text = SIGNER.token(*TP, 41, 2)
    token = parse_token(text)
    assert token is not None
    assert (token[:4], token.text, text[0].isalpha(), "=" in text) == ((TURN, TP, 41, 2), text, True, False)
    assert token.is_signed((KEY,), "ledger-1", "id-1")
    for keys, ledger, topic_id in [((OTHER,), "ledger-1", "id-1"), ((KEY,), "ledger-2", "id-1"),
                                   ((KEY,), "ledger-1", "id-2"), ((), "ledger-1", "id-1")]:  # fmt: skip
        assert not token.is_signed(keys, ledger, topic_id)


def test_each_attempt_has_a_token_of_its_own_and_a_repeated_replay_makes_the_same_one() -> None:
    later = TokenSigner(KEY, "ledger-1", TURN._replace(n=8), {TP: "id-1"})
    tokens = [SIGNER.token(*TP, 41, 1), SIGNER.token(*TP, 41, 2), SIGNER.token(*TP, 42, 1), later.token(*TP, 41, 1)]
    assert (len(set(tokens)), TokenSigner(KEY, "ledger-1", TURN, {TP: "id-1"}).token(*TP, 41, 1)) == (4, tokens[0])


def test_a_key_in_front_signs_and_the_one_behind_it_still_verifies() -> None:
    token = parse_token(SIGNER.token(*TP, 41, 1))
    assert token is not None
    assert token.is_signed((OTHER, KEY), "ledger-1", "id-1")


@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: text + "A", lambda text: text + "=",
                                    lambda text: text[:-1] + ("B" if text[-1] == "A" else "A"), str.lower,
                                    lambda text: "", lambda text: "A" * 3000, lambda text: "é" * 50])  # fmt: skip
def test_what_is_not_exactly_a_token_is_none_or_does_not_verify(change: object) -> None:
    assert callable(change)
    token = parse_token(change(SIGNER.token(*TP, 41, 1)))
    assert token is None or not token.is_signed((KEY,), "ledger-1", "id-1")


@pytest.mark.parametrize("body", [
    b"[1]", b"{}", b"[" * 500, b'[1,"a","b",0,true,"c",0,0,1]', b'[2,"a","b",0,1,"c",0,0,1]',
    b'[1, "a","b",0,1,"c",0,0,1]', b'[1,"a","b",0,1,"c",0,0,1.0]', b"\xff",
])  # fmt: skip
def test_a_text_of_other_content_is_no_token(body: bytes) -> None:
    assert parse_token(base64.urlsafe_b64encode(body + b"m" * 32).decode().rstrip("=")) is None


def test_a_signer_shows_no_key() -> None:
    assert KEY.decode() not in repr(SIGNER)


def test_a_record_has_a_token_during_a_run_and_names_what_is_missing_otherwise() -> None:
    record = Record("orders", 3, 41, None, None, None, (), 2)
    try:
        sign_tokens_with(SIGNER.token)
        assert record.token == SIGNER.token(*TP, 41, 2)
    finally:
        sign_tokens_with(None)
    with pytest.raises(RuntimeError, match="`ack_topic`"):
        _ = record.token


@pytest.mark.parametrize(("extra", "keys"), [
    (["a" * 16, "b" * 20], (b"a" * 16, b"b" * 20)),
    ("a" * 16, (b"a" * 16,)),
    ('["new", "old"]', (b"new", b"old")),
    ("[no JSON", (b"[no JSON",)),
])  # fmt: skip
def test_the_keys_are_a_list_of_texts_or_its_json_or_one_text(extra: object, keys: tuple[bytes, ...]) -> None:
    assert token_keys_of({TOKEN_KEYS: extra}, "shop") == keys


@pytest.mark.parametrize("extra", [None, [], "", "[]", ["hunter2", ""], ["hunter2", 5], [16], 5, {"a": "b"}])
def test_other_keys_are_refused_without_quoting_them(extra: object) -> None:
    with pytest.raises(ConfigError, match=r"connection shop has (no )?`ackline\.token_keys`") as refused:
        token_keys_of({TOKEN_KEYS: extra}, "shop")
    assert "hunter2" not in str(refused.value)


def test_a_short_key_works_and_is_a_warning_without_the_key() -> None:
    assert warning_of_keys((b"a" * 16, b"b" * 40)) is None
    warning = warning_of_keys((b"a" * 16, b"hunter2"))
    assert warning is not None
    assert "1 of 2 keys has fewer than 16 characters" in warning
    assert "hunter2" not in warning


@pytest.mark.parametrize(("value", "answer"), [
    (b"ack", Answer(AnswerKind.ACK)), (b" ack\n", Answer(AnswerKind.ACK)), (b"fail", Answer(AnswerKind.FAIL)),
    (b"fail  too late ", Answer(AnswerKind.FAIL, "too late")),
    (b"renew 1h30m", Answer(AnswerKind.RENEW, "", timedelta(minutes=90))), ("ack", Answer(AnswerKind.ACK)),
    (b"ack now", None), (b"ACK", None), (b"", None), (None, None), (b"renew", None), (b"renew 0s", None),
    (b"renew 5", None), (b"\xff", None), (b"timeout", None), (b"renew 99999999999d", None),
])  # fmt: skip
def test_the_value_of_an_answer_is_ack_fail_or_renew(value: bytes | str | None, answer: Answer | None) -> None:
    assert parse_answer(value) == answer


def test_the_counts_of_answers_read_in_words() -> None:
    assert counts_text({"timed_out": 1, "stale": 1200}) == "1 timed out; ignored: 1,200 stale"
    assert counts_text({}) == ""
