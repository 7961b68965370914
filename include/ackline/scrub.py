"""Error messages and settings without payloads and secrets. Pure.

The message of an exception often quotes the value that it failed on. The audit table must hold no payload, key or
header value (I13), so `scrub` masks what a message shares with its record, and leaves the rest readable.
"""

import functools
import inspect
import re
from collections.abc import Collection, Iterable
from types import CodeType
from typing import Any

MESSAGE_LIMIT = 200
"""The most characters of an `error_message` that are stored."""
MASK = "***"

_SCANNED = 3 * MESSAGE_LIMIT
"""Characters of a message that are scrubbed: enough to fill MESSAGE_LIMIT after masking. A limit, because an exception
may carry a whole payload, and scrubbing takes time."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_SECRET = re.compile(
    r"(?i)([\w.-]*(?:password|passwd|pwd|secret|token|credential|api[_-]?key|authorization|jaas[\w.]*)\w*)"
    r"(['\"]?\s*[:=]\s*)(?:(?:basic|bearer)\s+)?\S+"
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
_LOGIN = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]*@")
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"|`([^`]+)`")
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]{1,3}")
"""A quotation that is kept though the record contains it: one to three ASCII punctuation characters. Parsers name a
delimiter in this way (`Expecting ',' delimiter`), and almost every record contains that delimiter. It is safe: scrub
never masks punctuation outside quotation marks, so a quotation of it shows nothing more. A quoted letter, digit or
emoji may be a whole value, such as an initial, and four characters may be a password; both stay masked."""
_WORD = re.compile(r"[^\W_]{4,}")
_NAME = re.compile(r"[^\W_]{3,}")
_DIGITS = re.compile(r"\d{3,}")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\([\"'\\/])")
_PART = 6
"""The shortest part of a longer word that is masked: a handler may have joined a value with its own text."""
# A short word of the record is masked only next to a mask, such as the "Li" in "Li Müller". Alone it occurs by chance.
_BEFORE = re.compile(r"\b(\w{1,3})(?=[ '\",:;.@-]{1,3}\*\*\*)")
_AFTER = re.compile(r"(?<=\*\*\*)([ '\",:;.@-]{1,3})(\w{1,3})\b")


def scrub(message: str, payload: Iterable[bytes | str | None], kept: Collection[str] = ()) -> str:
    """`message` as one line of at most MESSAGE_LIMIT characters, with what it shares with `payload` masked.

    `payload` is the record's key, value and header values, in any order. Words of four characters and more, groups of
    three digits and more, and quoted strings are masked if they occur in it; so are the values of settings whose name
    looks secret. A quotation of at most three punctuation characters is kept, and so are the words `kept`
    (`source_words`), which stand in the code. Text that a handler computed from a payload (a hash, another encoding) is
    not recognized.
    """
    text = _CONTROL.sub(" ", message[:_SCANNED])
    text = _without_secrets(text)
    payload_text = "\n".join(_variants(payload))
    if payload_text:
        text = _QUOTED.sub(lambda match: _mask_quoted(match, payload_text, kept), text)
        text = _WORD.sub(lambda match: _mask_word(match.group(), payload_text, kept), text)
        text = _DIGITS.sub(lambda match: MASK if match.group() in payload_text else match.group(), text)
        text = _BEFORE.sub(lambda match: _mask_short_word(match.group(1), payload_text), text)
        text = _AFTER.sub(lambda match: match.group(1) + _mask_short_word(match.group(2), payload_text), text)
    return " ".join(text.split())[:MESSAGE_LIMIT]


_traceback_of: Any = BaseException.__dict__["__traceback__"].__get__
"""Returns the traceback of an exception, whatever its own class has under that name: a handler's may raise there."""


@functools.lru_cache(256)
def _literals(code: CodeType) -> frozenset[str]:
    if code.co_filename.startswith("<"):  # made by exec or eval, perhaps of a payload
        return frozenset()
    words = set[str]()
    # A docstring, the first constant of a function, forms no message: its many words would only unmask a record's.
    is_function = code.co_flags & inspect.CO_NEWLOCALS and code.co_name != "<lambda>"
    for constant in code.co_consts[1:] if is_function else code.co_consts:
        if isinstance(constant, str):
            words.update(word.casefold() for word in _NAME.findall(constant) if word.isalpha())
        elif isinstance(constant, CodeType):
            words |= _literals(constant)
    return frozenset(words)


def source_words(codes: Iterable[CodeType]) -> frozenset[str]:
    """Returns the words, in lower case and of letters alone, of the string literals in the source of some functions.

    They are names of fields and streams, and the format of an error. Code
    that was compiled from a text has none, because the text may be a payload.
    """
    return frozenset[str]().union(*map(_literals, codes))


def words_of_traceback(error: BaseException) -> frozenset[str]:
    """Returns `source_words` of the functions through which an exception came: the handler, and what it called."""
    codes, traceback = list[CodeType](), _traceback_of(error)
    while traceback is not None:
        codes.append(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    return source_words(codes)


def scrub_setting(key: str, value: str) -> str:
    """`KEY=VALUE`, with the value masked if the key looks secret, and with any secret inside the value masked."""
    secret = _SECRET.fullmatch(f"{key}=_") or key.endswith("user.info")
    return f"{key}={MASK}" if secret else f"{key}={_without_secrets(value)}"


def scrub_address(address: str) -> str:
    """An address without its user and password, so that it may be shown. Azure's `CONTAINER@ACCOUNT` stays as it is."""
    return _LOGIN.sub(f"{MASK}@", address)


def _without_secrets(text: str) -> str:
    return _USER_INFO.sub(MASK + "@", _SECRET.sub(rf"\1\2{MASK}", text))


def _variants(payload: Iterable[bytes | str | None]) -> list[str]:
    """The payload as text in lower case, each part also with its JSON escapes decoded: a message may quote either."""
    texts = []
    for part in payload:
        if not part:
            continue
        text = (part if isinstance(part, str) else part.decode("utf-8", "replace")).casefold()
        texts.append(text)
        if "\\" in text:
            plain = _ESCAPE.sub(lambda e: e.group(3) or chr(int(e.group(1) or e.group(2), 16)), text)
            texts.append(plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace").casefold())
    return texts


def _mask_quoted(match: re.Match[str], payload_text: str, kept: Collection[str]) -> str:
    inner = next(group for group in match.groups() if group is not None)
    if _PUNCTUATION.fullmatch(inner) or inner.casefold() in kept:
        return match.group()
    text = inner.casefold()
    shared = text in payload_text if len(text) > 3 else _mask_short_word(text, payload_text) == MASK
    return match.group().replace(inner, MASK) if shared else match.group()


def _mask_short_word(word: str, payload_text: str) -> str:
    """MASK if the payload has `word` as a whole word: as part of longer words, short ones occur by chance."""
    return MASK if re.search(rf"(?<!\w){re.escape(word.casefold())}(?!\w)", payload_text) else word


def _mask_word(word: str, payload_text: str, kept: Collection[str] = ()) -> str:
    """`word` with each part of _PART characters and more that the payload has masked."""
    text = word.casefold()
    if text in kept:
        return word
    if text in payload_text:
        return MASK
    start = 0
    while start + _PART <= len(text):
        end = start + _PART
        if text[start:end] not in payload_text:
            start += 1
            continue
        while end < len(text) and text[start : end + 1] in payload_text:
            end += 1
        if len(text) != len(word):  # casefold changed the length, so positions differ: mask the whole word
            return MASK
        rest = word[end:]
        return word[:start] + MASK + (_mask_word(rest, payload_text) if len(rest) >= 4 else rest)
    return word
