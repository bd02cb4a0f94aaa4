"""A command line without its secrets and without prompt text.

What is hidden errs on the side of too much: a hidden file name costs a little, a stored key a lot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

#: What stands in the place of something hidden.
MASK = "***"
#: What stands in the place of a text or of code given as an argument.
TEXT_MASK = "<text>"
#: Longest command line that is kept, in characters, and most arguments that are looked at.
MAX_LENGTH = 4096
MAX_ARGUMENTS = 512
#: Longest argument that is looked at; the rest of a longer one is dropped.
MAX_ARGUMENT_LENGTH = 2048

# fmt: off
_SECRET_WORDS = frozenset(
    (
        "key", "apikey", "token", "secret", "secrets", "password", "passwd", "passwort", "pwd",
        "pass", "passphrase", "passcode", "credential", "credentials", "cred", "creds", "auth",
        "authorization", "authentication", "bearer", "cookie", "cookies", "header", "headers",
        "privatekey", "accesskey", "secretkey", "signature", "sig", "hmac", "salt", "jwt", "dsn",
        "pat", "pw", "user", "username", "userpwd", "login", "license", "licence", "serial",
    )
)
_SECRET_SUFFIXES = ("token", "secret", "password", "passwd", "apikey", "accesskey", "secretkey")
#: Words which turn a secret word of an option into a mere quantity.
_QUANTITY_WORDS = frozenset(
    (
        "max", "min", "num", "n", "len", "length", "limit", "per", "count", "size", "budget",
        "chunk", "bucket", "batch",
    )
)
_TEXT_WORDS = frozenset(
    (
        "prompt", "prompts", "message", "messages", "query", "question", "instruction",
        "instructions", "text", "content", "completion", "conversation", "chat",
    )
)
# fmt: on
#: Short options whose value is a header, credentials or form data (curl, wget, docker login).
_SHORT_SECRETS = frozenset(("-H", "-u", "-U", "-d", "-b"))
#: Short options whose value is a password of some programs and a port number of others.
_SHORT_UNLESS_NUMBER = frozenset(("-p", "-P"))

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_KEY = re.compile(r"(?<![\w.])(?P<key>[A-Za-z][\w.\-]*)[\"']?\s*[:=]\s*[\"']?(?!//)")
_VALUE = re.compile(r"[^\s\"',;&}\]]+")
_URL_CREDENTIALS = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.\-]*://)[^/\s]*@")
_SCHEME_TOKEN = re.compile(r"\b(bearer|basic|digest|negotiate)\s+\S+", re.IGNORECASE)
_KNOWN_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|api_org_|sk-|sk_|pk_|rk_|gh[pousr]_|github_pat_|glpat-|gldt-|xox[a-z]-|"
    r"nvapi-|npm_|pypi-|dop_v1_|r8_|gsk_|tvly-|pplx-|wandb_|AKIA|ASIA|AIza|ya29\.|eyJ|SG\.)"
    r"[A-Za-z0-9_.\-/+=]{4,}"
)
_RUN = re.compile(r"[A-Za-z0-9+/_=\-]{20,}")
_HEX = re.compile(r"(?<![A-Za-z0-9])(?=[a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{20,}")
#: How Python's multiprocessing starts a child: code that is worth keeping and holds no text.
_SPAWN = re.compile(r"from multiprocessing\.[a-z_]+ import [a-z_]+; ?[a-z_]+\([\w=, ]*\)[\w=, ()]*")
_NAME = re.compile(r"-{0,2}[A-Za-z_][\w.\-]*")
_NUMBER = re.compile(r"[+-]?[0-9.]{1,12}")


def redact(arguments: Sequence[str]) -> str:
    """Return one line of text: the command line with secrets, texts and inline code hidden.

    Hidden are values of options and variables whose name speaks of a secret or a prompt,
    credentials in URLs, tokens of known form, long random-looking strings, and every argument
    of three words or more. The line is at most ``MAX_LENGTH`` characters.
    """
    words = [word[:MAX_ARGUMENT_LENGTH] for word in arguments[:MAX_ARGUMENTS]]
    if words and any(character.isspace() for character in words[0]):
        # A process title in the place of the program's name or of the whole command line.
        words[:1] = words[0].split()
    shown: list[str] = []
    length = 0
    hide_next = hide_list = False
    hide_as = MASK
    for position, word in enumerate(words):
        is_option = word.startswith("-") and len(word) > 1
        if hide_next or (hide_list and not is_option):
            is_kept = hide_as == TEXT_MASK and _NUMBER.fullmatch(word) is not None
            is_other = word.startswith("--") and len(word) > 2
            if not is_other:
                shown.append(word if is_kept else hide_as)
                length += len(shown[-1]) + 1
                hide_next = False
                continue
        hide_next = hide_list = False
        text = _redact_argument(word, is_code=position > 0)
        shown.append(text)
        length += len(text) + 1
        if length > MAX_LENGTH:
            break
        if is_option and "=" not in word:
            mask = _mask_of(word) if word.startswith("--") or len(word) > 2 else None
            if word in _SHORT_SECRETS:
                mask = MASK
            elif word in _SHORT_UNLESS_NUMBER:
                mask = TEXT_MASK
            if mask is not None:
                hide_next, hide_as = True, mask
                hide_list = word.startswith("--")
    line = _SCHEME_TOKEN.sub(rf"\1 {MASK}", " ".join(shown))
    if len(line) > MAX_LENGTH or len(arguments) > MAX_ARGUMENTS:
        line = line[: MAX_LENGTH - 2] + " …"
    return line


def _redact_argument(word: str, is_code: bool) -> str:
    """One argument with what is secret in it hidden."""
    if is_code and word[:1] in ("{", "["):
        structure = _parse_json(word)
        if structure is not None:
            return json.dumps(_redact_json(structure), separators=(",", ":"))
    if is_code and len(word.split(maxsplit=3)) >= 3 and not _SPAWN.fullmatch(word):
        option, mark, _ = word.partition("=")
        is_named = bool(mark) and option.startswith("-") and not option.split()[1:]
        return f"{option}={TEXT_MASK}" if is_named else TEXT_MASK
    if "=" in word:
        name, _, value = word.partition("=")
        mask = _mask_of(name)
        if mask is not None and value and _NAME.fullmatch(name):
            is_kept = mask == TEXT_MASK and _NUMBER.fullmatch(value) is not None
            return word if is_kept else f"{name}={mask}"
        if value[:1] in ("{", "[") and _NAME.fullmatch(name):
            return f"{name}={_redact_argument(value, is_code=True)}"
    return _redact_text(word)


def _redact_text(text: str) -> str:
    """Text with assignments, credentials and tokens in it hidden."""
    text = _URL_CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text)
    text = _SCHEME_TOKEN.sub(rf"\1 {MASK}", text)
    text = _redact_assignments(text)
    text = _KNOWN_TOKEN.sub(MASK, text)
    text = _HEX.sub(MASK, text)
    return _RUN.sub(lambda match: MASK if _is_random(match[0]) else match[0], text)


def _redact_assignments(text: str) -> str:
    """Text in which each ``key=value`` whose key speaks of a secret or a text is hidden."""
    parts = []
    at = 0
    for match in _KEY.finditer(text):
        mask = _mask_of(match["key"])
        value = _VALUE.match(text, match.end())
        if mask is not None and value is not None and match.end() >= at:
            parts += [text[at : match.end()], mask]
            at = value.end()
    return "".join((*parts, text[at:]))


def _mask_of(name: str) -> str | None:
    """What to put for the value of an option or variable of that name; None to keep it."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return None
    is_quantity = not _QUANTITY_WORDS.isdisjoint(words)
    if not is_quantity:
        if not _SECRET_WORDS.isdisjoint(words) or any(w.endswith(_SECRET_SUFFIXES) for w in words):
            return MASK
        if words[-1] in _TEXT_WORDS:
            return TEXT_MASK
    return None


def _is_random(run: str) -> bool:
    """Whether a run of 20 characters or more looks like a key and not like a name.

    Names change between lower case, upper case and digits rarely (at most 0.2 times a
    character in model names such as Qwen2-VL-72B-Instruct-GPTQ-Int4), random strings often.
    """
    classes = ["a" if c.islower() else "A" if c.isupper() else "0" for c in run if c.isalnum()]
    if not classes:
        return False
    changes = sum(1 for old, new in pairwise(classes) if old != new and old + new != "Aa")
    rate = changes / len(classes)
    if rate >= 0.25 or (rate >= 0.1 and "+" in run):
        return True
    longest = max(re.split(r"[+/_=\-]", run), key=len)
    if len(longest) < 16:
        return False
    share = sum(character.isupper() for character in longest) / len(longest)
    return rate >= 0.15 or 0.3 <= share <= 0.7


def _parse_json(text: str) -> dict[str, Any] | list[Any] | None:
    """The JSON object or list of a short text, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


def _redact_json(value: Any, depth: int = 0) -> Any:
    """A JSON value with secrets and texts hidden; nothing is kept below eight levels."""
    if depth > 8:
        return MASK
    if isinstance(value, dict):
        shown: dict[str, Any] = {}
        for key, item in value.items():
            mask = _mask_of(key)
            is_kept = mask is None or isinstance(item, bool) or item is None
            shown[_redact_text(key)] = _redact_json(item, depth + 1) if is_kept else mask
        return shown
    if isinstance(value, list):
        return [_redact_json(item, depth + 1) for item in value]
    if isinstance(value, str):
        return _redact_argument(value, is_code=True)
    return value
