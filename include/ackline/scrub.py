"""What of an error's text may be kept: nothing of the record it speaks of, and no secret.

Messages of exceptions like to quote what they could not digest. The audit table must hold no payload, key or header
value (I13), so whatever the message shares with the record is masked; the rest stays readable.
"""

import re
from collections.abc import Iterable

from ackline.outcome import MESSAGE_LIMIT

MASK = "***"

# Enough to fill MESSAGE_LIMIT after masking; an exception may carry the whole payload, and scrubbing it is not free.
_LOOKED_AT = 3 * MESSAGE_LIMIT
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_SECRET = re.compile(
    r"(?i)([\w.-]*(?:password|passwd|pwd|secret|token|credential|api[_-]?key|authorization|jaas[\w.]*)\w*)"
    r"(['\"]?\s*[:=]\s*)(?:(?:basic|bearer)\s+)?\S+"
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
_LOGIN = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]*@")
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"|`([^`]+)`")
_WORD = re.compile(r"[^\W_]{4,}")
_DIGITS = re.compile(r"\d{3,}")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\([\"'\\/])")
# A handler may glue a value to its own words, so parts of longer words are looked for too.
_PART = 6
# "Li Wu" beside a longer name: short words are let stand only by themselves.
_BEFORE = re.compile(r"\b(\w{1,3})(?=[ '\",:;.@-]{1,3}\*\*\*)")
_AFTER = re.compile(r"(?<=\*\*\*)([ '\",:;.@-]{1,3})(\w{1,3})\b")


def scrub(message: str, payload: Iterable[bytes | str | None]) -> str:
    """`message` on one line, at most MESSAGE_LIMIT characters, without what it shares with `payload`.

    `payload` is the record's key, value and header values, in any order. Masked are words of four characters and more,
    groups of three digits and more, and quoted strings that occur in it, and values of settings that look secret.
    What a handler computed from a payload (a hash, another encoding) can't be recognized.
    """
    text = _CONTROL.sub(" ", message[:_LOOKED_AT])
    text = _without_secrets(text)
    known = "\n".join(_variants(payload))
    if known:
        text = _QUOTED.sub(lambda found: _quoted(found, known), text)
        text = _WORD.sub(lambda found: _word(found.group(), known), text)
        text = _DIGITS.sub(lambda found: MASK if found.group() in known else found.group(), text)
        text = _BEFORE.sub(lambda found: _short(found.group(1), known), text)
        text = _AFTER.sub(lambda found: found.group(1) + _short(found.group(2), known), text)
    return " ".join(text.split())[:MESSAGE_LIMIT]


def scrub_setting(key: str, value: str) -> str:
    """`KEY=VALUE` with the value masked where the key looks like a secret's, and with no secret inside the value."""
    secret = _SECRET.fullmatch(f"{key}=_") or key.endswith("user.info")
    return f"{key}={MASK}" if secret else f"{key}={_without_secrets(value)}"


def scrub_address(address: str) -> str:
    """An address as it may be shown: without the password in it. Azure's `CONTAINER@ACCOUNT` is none."""
    return _LOGIN.sub(f"{MASK}@", address)


def _without_secrets(text: str) -> str:
    return _USER_INFO.sub(MASK + "@", _SECRET.sub(rf"\1\2{MASK}", text))


def _variants(payload: Iterable[bytes | str | None]) -> list[str]:
    """The payload as text, in lower case, also with the escapes of JSON undone: a message quotes what was decoded."""
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


def _quoted(found: re.Match[str], known: str) -> str:
    inner = next(group for group in found.groups() if group is not None)
    text = inner.casefold()
    shared = text in known if len(text) > 3 else _short(text, known) == MASK
    return found.group().replace(inner, MASK) if shared else found.group()


def _short(word: str, known: str) -> str:
    """A word too short to be looked for inside others."""
    return MASK if re.search(rf"(?<!\w){re.escape(word.casefold())}(?!\w)", known) else word


def _word(word: str, known: str) -> str:
    text = word.casefold()
    if text in known:
        return MASK
    start = 0
    while start + _PART <= len(text):
        end = start + _PART
        if text[start:end] not in known:
            start += 1
            continue
        while end < len(text) and text[start : end + 1] in known:
            end += 1
        if len(text) != len(word):  # folding moved the letters: the whole word goes
            return MASK
        return word[:start] + MASK + _word_rest(word[end:], known)
    return word


def _word_rest(rest: str, known: str) -> str:
    return _word(rest, known) if len(rest) >= 4 else rest
