"""Error messages and settings without payloads and secrets. Pure.

The message of an exception often quotes the value that it failed on. The audit table must hold no payload, key or
header value (I13), so `scrub` masks what a message shares with its record, and leaves the rest readable.
"""

import functools
import inspect
import re
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType

MESSAGE_LIMIT = 200
"""The most characters of an `error_message` that are stored."""
MASK = "***"

SCANNED = 3 * MESSAGE_LIMIT
"""Characters of a message that are scrubbed: enough to fill MESSAGE_LIMIT after masking. A limit, because an exception
may carry a whole payload, and scrubbing takes time."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ue000]+")
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
_KEPT = "\ue000"
"""Stands around a word that is kept although the record has it, until the short words next to it are looked at."""
_SHORT = re.compile(r"\b[^\W_]{2,3}\b")
# A short word of the record that is no whole value is masked only next to a mask, such as the "Li" in "Li Müller", or
# next to a word that is kept in place of a mask, as in "customer Li". Alone it occurs by chance.
_BEFORE = re.compile(rf"\b(\w{{1,3}})(?=[ '\",:;.@-]{{1,3}}(?:\*\*\*|{_KEPT}))")
_AFTER = re.compile(rf"(?:(?<=\*\*\*)|(?<={_KEPT}))([ '\",:;.@-]{{1,3}})(\w{{1,3}})\b")


def scrub(message: str, payload: Iterable[bytes | str | None], kept: Collection[str] = ()) -> str:
    """`message` as one line of at most MESSAGE_LIMIT characters, with what it shares with `payload` masked.

    `payload` is the record's key, value and header values, in any order. Words of four characters and more, groups of
    three digits and more, and quoted strings are masked if they occur in it; so are shorter words that are a whole
    value there, such as "XTS" in JSON, or stand next to a mask, and the values of settings whose name
    looks secret. A quotation of at most three punctuation characters is kept, and so are the words `kept`
    (`words_of_error`, `words_of_handler`), which stand in the code. Text that a handler computed from a payload (a
    hash, another encoding) is not recognized.
    """
    text = _CONTROL.sub(" ", message[:SCANNED])
    text = _without_secrets(text)
    payload_text = "\n".join(_variants(payload))
    if payload_text:
        text = _QUOTED.sub(lambda match: _mask_quoted(match, payload_text, kept), text)
        text = _WORD.sub(lambda match: _mask_word(match.group(), payload_text, kept), text)
        text = _DIGITS.sub(lambda match: MASK if match.group() in payload_text else match.group(), text)
        text = _SHORT.sub(lambda match: _mask_short_value(match.group(), payload_text, kept), text)
        text = _BEFORE.sub(lambda match: _mask_short_word(match.group(1), payload_text, kept), text)
        text = _AFTER.sub(lambda match: match.group(1) + _mask_short_word(match.group(2), payload_text, kept), text)
        text = text.replace(_KEPT, "")
    return " ".join(text.split())[:MESSAGE_LIMIT]


def is_library(file: str) -> bool:
    """Returns whether a source file is of Ackline, of Python or of an installed package, and not the user's own; also
    True for code that was compiled from a text."""
    return file.startswith(("<", *_libraries()))


@functools.cache
def _libraries() -> tuple[str, ...]:
    return (str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


@functools.lru_cache(1024)
def _texts_of(code: CodeType, names: bool) -> frozenset[str]:
    """Returns the texts in the source of some code and of the functions in it; with `names` also the names there."""
    if code.co_filename.startswith("<"):  # made by exec or eval, perhaps of a payload
        return frozenset()
    texts = {code.co_name, *code.co_names, *code.co_varnames, *code.co_freevars} if names else set[str]()
    waiting = _without_docstring(code)
    while waiting:
        constant = waiting.pop()
        if isinstance(constant, str):
            texts.add(constant)
        elif isinstance(constant, CodeType):
            texts |= _texts_of(constant, names)
        elif isinstance(constant, tuple | frozenset):
            waiting += constant
    return frozenset(texts)


def _without_docstring(code: CodeType) -> list[object]:
    """Returns the constants of some code without its docstring: its many words form no message, and would only unmask
    a record's."""
    constants = list(code.co_consts)
    if not code.co_flags & inspect.CO_NEWLOCALS:  # of a module or a class, where the name of the class may come first
        texts = [text for text in constants if isinstance(text, str) and text != code.co_qualname]
        if "__doc__" in code.co_names and texts:
            constants.remove(texts[0])
        return constants
    if sys.version_info >= (3, 14):
        return constants[bool(code.co_flags & 0x4000000) :]  # CO_HAS_DOCSTRING
    return constants[code.co_name != "<lambda>" :]  # None stands there in a function without a docstring


@functools.lru_cache(256)
def _module_code(name: str, file: str) -> CodeType | None:
    """Returns the code of a module as its file has it; None if it has none."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    code = spec.loader.get_code(name) if spec is not None and hasattr(spec.loader, "get_code") else None
    return code if isinstance(code, CodeType) and code.co_filename == file else None


def _users_code(code: CodeType, module: object) -> CodeType | None:
    """Returns the code of the user's module that has this code; None for a library's."""
    if is_library(code.co_filename) or not isinstance(module, str):
        return None
    try:
        return _module_code(module, code.co_filename)
    except (ImportError, OSError, SyntaxError, ValueError):
        return None


def texts_of_handler(handler: object) -> frozenset[str]:
    """Returns the texts and the names in the source of a handler and of its module."""
    function = inspect.unwrap(handler) if callable(handler) else None
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return frozenset()
    whole = _users_code(code, getattr(function, "__module__", None))
    return _texts_of(code, True) | (frozenset() if whole is None else _texts_of(whole, True))


def words_of_handler(handler: object) -> frozenset[str]:
    """Returns the words, in lower case and of letters alone, in the source of a handler and of its module."""
    return _words_of_texts(texts_of_handler(handler))


def _words_of_texts(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(word.casefold() for text in texts for word in _NAME.findall(text) if word.isalpha())


def words_of_error(error: BaseException) -> frozenset[str]:
    """Returns the words, in lower case and of letters alone, that stand in the code of the user through which an
    exception came, and those of its format: of the function that raised it, and of its class.

    They are names of fields and streams, and the words of its message. Code that was compiled from a text has none,
    because the text may be a payload.
    """
    through, last, kind = dict[int, tuple[CodeType, object]](), None, type(error)
    traceback = _TRACEBACK.__get__(error)
    while traceback is not None:
        last = traceback.tb_frame.f_code
        through[id(last)] = last, traceback.tb_frame.f_globals.get("__name__")
        traceback = traceback.tb_next
    # By the numbers of the objects, which the cache keeps: to hash the code of a chain takes longer than all the rest.
    chain = (id(last), id(kind), *through)
    if chain not in _CHAINS:
        if len(_CHAINS) >= _MOST_CHAINS:
            _CHAINS.clear()
        _CHAINS[chain] = (last, kind, *through.values()), _words_of_chain(through.values(), last, kind)
    return _CHAINS[chain][1]


def place_of_error(error: BaseException) -> str | None:
    """Returns the innermost line of the user's own code through which an exception came, such as
    `handlers/shop.py:41 in price`; None if it came through none.

    The path begins at the folder that the module was imported from, so it is the same on every machine. Code that was
    compiled from a text has no place, because the text may be a payload.
    """
    place = None
    for file, text in _frames(error):
        place = place if is_library(file) else text
    return place


def frames_of_error(error: BaseException) -> list[str]:
    """Returns the lines through which an exception came, outermost first and named as `place_of_error` names them: also
    those of libraries, but for Ackline's own."""
    own = str(Path(__file__).parent)
    return [text for file, text in _frames(error) if not file.startswith(own)]


def _frames(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yields the file and the place of each frame of an exception whose code comes from the file of its module."""
    entry = _TRACEBACK.__get__(error)
    while entry is not None:
        if (text := _place(entry.tb_frame, entry.tb_lineno)) is not None:
            yield entry.tb_frame.f_code.co_filename, text
        entry = entry.tb_next


def _place(frame: FrameType, line: int) -> str | None:
    code, name = frame.f_code, frame.f_globals.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if getattr(module, "__file__", None) != code.co_filename:
        return None
    file = Path(code.co_filename)
    depth = 1 if name == "__main__" else str(name).count(".") + 1 + (file.stem == "__init__")
    return f"{'/'.join(file.parts[-depth:])}:{line} in {code.co_name}"[:MESSAGE_LIMIT]


def place_of_frame(frame: FrameType) -> str | None:
    """Returns the innermost line of the user's own code in a stack, as `place_of_error` does; None if it has none."""
    for each, line in walk_stack(frame):
        if not is_library(each.f_code.co_filename) and (text := _place(each, line)) is not None:
            return text
    return None


_MOST_CHAINS = 256
_CHAINS: dict[tuple[int, ...], tuple[object, frozenset[str]]] = {}
# The class of an exception is the user's: it may hide these behind attributes that raise.
_TRACEBACK, _BASES = BaseException.__dict__["__traceback__"], type.__dict__["__mro__"]
_CONTENT = type.__dict__["__dict__"]
_FORMATS = ("__new__", "__init__", "__str__")


def _words_of_chain(through: Iterable[tuple[CodeType, object]], last: CodeType | None, kind: type) -> frozenset[str]:
    texts = set[str]()
    for code, module in through:
        if not is_library(code.co_filename):
            whole = _users_code(code, module)
            texts |= _texts_of(code, True) | (frozenset() if whole is None else _texts_of(whole, True))
    own = (_CONTENT.__get__(base) for base in _BASES.__get__(kind))
    formats = [getattr(of_base.get(name), "__code__", None) for of_base in own for name in _FORMATS]
    for found in (last, *formats):
        texts |= _texts_of(found, False) if isinstance(found, CodeType) else frozenset()
    return _words_of_texts(texts)


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


def _mask_short_word(word: str, payload_text: str, kept: Collection[str] = ()) -> str:
    """MASK if the payload has `word` as a whole word: as part of longer words, short ones occur by chance."""
    if word.casefold() in kept:
        return word
    return MASK if re.search(rf"(?<!\w){re.escape(word.casefold())}(?!\w)", payload_text) else word


def _mask_short_value(word: str, payload_text: str, kept: Collection[str]) -> str:
    """MASK if the payload has `word` as a whole value: between double quotes, or as the whole key, value or header."""
    text = word.casefold()
    if text in kept or not (f'"{text}"' in payload_text or f"\n{text}\n" in f"\n{payload_text}\n"):
        return word
    return MASK


def _mask_word(word: str, payload_text: str, kept: Collection[str] = ()) -> str:
    """`word` with each part of _PART characters and more that the payload has masked."""
    text = word.casefold()
    if text in kept:
        return f"{_KEPT}{word}{_KEPT}" if text in payload_text else word
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
