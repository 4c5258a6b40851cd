"""Which parts of a captured text are secrets, and what does the text look like without them?

By shape (tokens with a known prefix, key blocks, userinfo in URLs) and by name (`HF_TOKEN=...`, `--api-key ...`,
`"password": "..."`). What a language model calls a token (`pad_token: <pad>`, `max_tokens=4096`) stays: it is
evidence. A secret without a known shape and without a telling name is not found; nobody can promise that.
"""

from __future__ import annotations

import re

REDACTED = "<redacted>"

_SHAPES: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = (
    # (literals of which one must occur, pattern); the pattern's group "keep", where it has one, stays. A prefix that
    # no word ends with needs no boundary before it: in a binary file any byte may stand there.
    (
        ("PRIVATE KEY",),
        # Cut off before its end, the block goes as far as base64 goes; inside JSON its line breaks are escapes.
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:[^-]{0,20000}"
            r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----|(?:[A-Za-z0-9+/=\s]|\\[nr])*)",
            re.S,
        ),
    ),
    (("hf_",), re.compile(r"hf_[A-Za-z0-9]{20,}")),
    (("api_org_",), re.compile(r"api_org_[A-Za-z0-9]{20,}")),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), re.compile(r"gh[pousr]_[A-Za-z0-9]{20,}")),
    (("github_pat_",), re.compile(r"github_pat_[A-Za-z0-9_]{20,}")),
    (("glpat-",), re.compile(r"glpat-[A-Za-z0-9_-]{16,}")),
    (("sk-",), re.compile(r"\bsk-[A-Za-z0-9_-]{18,}")),
    (("xox", "xapp-"), re.compile(r"(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{8,}")),
    (("hooks.slack.com",), re.compile(r"(?P<keep>hooks\.slack\.com/services/)[A-Za-z0-9/_-]+")),
    (
        ("AKIA", "ASIA", "ABIA", "ACCA"),
        re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ),
    (("AIza",), re.compile(r"AIza[A-Za-z0-9_-]{35}")),
    (("wandb_v",), re.compile(r"wandb_v\d+_[A-Za-z0-9_-]{16,}")),
    (("npm_",), re.compile(r"npm_[A-Za-z0-9]{30,}")),
    (("pypi-",), re.compile(r"pypi-[A-Za-z0-9_-]{40,}")),
    (("eyJ",), re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]+)?")),
    (
        ("://",),
        re.compile(r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{1,20}://)(?!git@|<redacted>@)[^\s/@'\"<>]{1,512}(?=@)"),
    ),
    (("earer ",), re.compile(r"(?P<keep>\b[Bb]earer )[A-Za-z0-9._~+/=-]{8,}")),
    (
        ("uthorization",),
        re.compile(r"(?P<keep>\b[Aa]uthorization[\"']?\s*[:=]\s*[\"']?(?:[A-Za-z]+ )?)[A-Za-z0-9._~+/=-]{8,}"),
    ),
    # A bare "token" is a word of language models; as an option, or with a value like one of a machine, it is a secret.
    (("--token", "--auth"), re.compile(r"(?P<keep>--(?:auth-)?(?:token|auth)[= ]+)(?![<-])[^\s\"'\\]+")),
    (
        ("token",),
        re.compile(
            r"(?P<keep>\btoken[\"']?\s{0,4}[:=]\s{0,4}[\"']?)"
            r"(?=[A-Za-z_-]{0,64}\d)(?=[\d_-]{0,64}[A-Za-z])[A-Za-z0-9_-]{16,}(?![A-Za-z0-9_./-])"
        ),
    ),
    (("wandb login",), re.compile(r"(?P<keep>\bwandb login(?: --\S+)* )[A-Za-z0-9_-]{16,}")),
    (("machine ",), re.compile(r"(?P<keep>\bmachine \S+\s+login \S+\s+password )[^\s\"'\\]+")),
    (
        ("=",),
        re.compile(
            r"(?P<keep>[?&](?:sig|[Ss]ignature|X-Amz-Signature|X-Amz-Credential|X-Amz-Security-Token|X-Goog-Signature"
            r"|AWSAccessKeyId|access_token|api_key|apikey|key|token)=)[^&\s'\"<>\\]{6,}"
        ),
    ),
)

_ALWAYS = (
    r"secret|passw(?:or)?d|passwd|passphrase|api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|secret[_-]?key"
    r"|private[_-]?key|account[_-]?key|auth[_-]?key|signing[_-]?key|encryption[_-]?key|license[_-]?key|wandb[_-]?key"
    r"|credentials?|auth[_-]?token|access[_-]?token|refresh[_-]?token|bearer[_-]?token|session[_-]?token"
    r"|(?:hf|hub|huggingface|github|gh|gitlab|slack|wandb|neptune|comet|api|bot|pypi|security|id|user|private)"
    r"[_-]?token"
)
# Names that only look like environment variables when they are written in capitals: MY_KEY=, CI_TOKEN=.
_CAPITALS = r"(?-i:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:TOKEN|KEY|PAT|AUTH|PWD|PASS|CREDS))"
_NAME = rf"(?:[A-Za-z0-9_.-]{{0,80}}?(?:{_ALWAYS})|{_CAPITALS})"
# A quoted value inside a JSON text has its quotes escaped; a bare one ends before any escape.
_VALUE = (
    r"\\\"[^\"\\\n]*\\\"|"
    r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[^\s\"'\\,;&|)}\]]+"
)
_NAMED = re.compile(
    rf"(?P<keep>(?P<option>--)?(?P<name>{_NAME})(?![A-Za-z0-9_-])[\"']?"
    rf"(?:\s{{0,4}}(?::=|[:=])\s{{0,4}}|(?(option)[ \t]+|(?!))))(?P<value>{_VALUE})",
    re.I,
)
_WORDS = ("secret", "passw", "passphrase", "key", "token", "credential", "_pat", "_auth", "_pwd", "_pass", "_creds")
"""Every telling name ends with one of these, or with `key_id`."""
_ENDS_A_NAME = re.compile(
    r"(?:secret|passw(?:or)?d|passphrase|key(?:[_-]id)?|token|credentials?|_pat|_auth|_pwd|_pass|_creds)"
    r"(?![a-z0-9_-])[\"']?[ \t]{0,4}[:= \t\n]",
    re.I,
)
_NAME_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_MAX_NAME = 90

_VOCABULARY = re.compile(
    r"(?:^|[_.-])(?:pad|eos|bos|unk|mask|sep|cls|image|video|audio|special|num|max|min|per|new|next|first|last|start"
    r"|end|stop|boi|eoi|think|tool|prompt|sort|group|text|label|batch|cache|dict|primary|foreign|prng|rng|jax)"
    r"[_-](?:token|key)$",
    re.I,
)
_NO_SECRET = re.compile(
    r"^(?:<.*>|\[.*|\d{1,8}|\d+\.\d+|none|null|true|false|yes|no|str|int|float|bool|bytes|optional\[.*"
    r"|\$\{?\w+\}?|\{\w*\}|\*+|\.{3}"
    r"|(?:os|self|args|cfg|config|conf|settings|env|environ|opts?|options|hparams|params|flags|kwargs|getpass|getenv)"
    r"[.\[(].*)$",
    re.I | re.S,
)
_PRINTABLE = re.compile(rb"[\t\x20-\x7e]{8,}")
_LENGTH_BYTES = 4
"""A tag and a length, each of one or two bytes, may stand before a string in a protocol buffer."""
_NAME_ALONE = re.compile(rf"^(?:{_NAME})$", re.I)


def is_secret_name(name: str) -> bool:
    """True where a variable or option of this name holds a secret."""
    return bool(_NAME_ALONE.match(name)) and not _VOCABULARY.search(name)


def redact(text: str) -> str:
    """The text with every secret found replaced by `<redacted>`; applying it twice changes nothing more."""
    return redact_counted(text)[0]


def redact_counted(text: str) -> tuple[str, int]:
    """The redacted text, and how many secrets were taken out of it."""
    total = 0
    for literals, pattern in _SHAPES:
        for literal in literals:
            if literal in text:
                text, count = _substitute_near(text, literal, pattern)
                total += count
    text, count = _redact_named(text)
    return text, total + count


def count_in_binary(data: bytes) -> int:
    """How many secrets the printable runs of a binary file hold.

    A length byte in front of a string may be a letter by accident, so each run is also read without its first bytes.
    """
    total = 0
    for run in _PRINTABLE.finditer(data):
        text = run[0].decode("ascii")
        total += max(redact_counted(text[skip:])[1] for skip in range(_LENGTH_BYTES))
    return total


def _keep_prefix(match: re.Match[str]) -> str:
    kept = match.group("keep") if "keep" in match.re.groupindex else ""
    return f"{kept}{REDACTED}"


def _substitute_near(text: str, literal: str, pattern: re.Pattern[str]) -> tuple[str, int]:
    """Replace in the lines that hold the literal only: a log of a gigabyte has few of them, or none."""
    if pattern.flags & re.S:  # a key block goes over many lines
        return pattern.subn(_keep_prefix, text)
    pieces: list[str] = []
    done = total = 0
    at = text.find(literal)
    while at >= 0:
        start = text.rfind("\n", done, at) + 1 or done
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        safe, count = pattern.subn(_keep_prefix, text[start:end])
        pieces += (text[done:start], safe)
        done, total = end, total + count
        at = text.find(literal, end)
    pieces.append(text[done:])
    return "".join(pieces), total


def _redact_named(text: str) -> tuple[str, int]:
    """Values of telling names, found from the name's last word backwards: no pattern ever scans the whole text."""
    pieces: list[str] = []
    done = count = 0
    for at in _telling_places(text):
        if at < done:
            continue
        match = _NAMED.match(text, _start_of_name(text, at, done))
        if match is None:
            continue
        value = match.group("value")
        quote = value[: 2 if value[0] == "\\" else 1] if value[0] in "\"'\\" else ""
        bare = value[len(quote) : len(value) - len(quote)]
        if not bare or _NO_SECRET.match(bare) or _VOCABULARY.search(match.group("name")):
            continue
        count += 1
        pieces += (text[done : match.start()], match.group("keep"), f"{quote}{REDACTED}{quote}")
        done = match.end()
    pieces.append(text[done:])
    return "".join(pieces), count


def _telling_places(text: str) -> list[int]:
    """Where the last word of what may be a telling name begins, in order."""
    lower = text.lower()
    if len(lower) != len(text):  # a few letters of other scripts grow
        lower = "".join(c.lower() if c.isascii() else c for c in text)
    places = []
    for word in _WORDS:
        at = lower.find(word)
        while at >= 0:
            if _ENDS_A_NAME.match(lower, at):
                places.append(at)
            at = lower.find(word, at + 1)
    return sorted(places)


def _start_of_name(text: str, at: int, limit: int) -> int:
    limit = max(limit, at - _MAX_NAME)
    while at > limit and text[at - 1] in _NAME_LETTERS:
        at -= 1
    return at
