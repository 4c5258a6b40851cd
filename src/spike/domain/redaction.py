"""Which parts of a captured text are secrets, and what does the text look like without them?

By shape (tokens with a known prefix, key blocks, userinfo in URLs) and by name (`HF_TOKEN=...`, `--api-key ...`,
`"password": "..."`). What a language model calls a token (`pad_token: <pad>`, `max_tokens=4096`) stays: it is
evidence. A secret without a known shape and without a telling name is not found; nobody can promise that.
"""

from __future__ import annotations

import re

REDACTED = "<redacted>"

_SHAPES: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = (
    # (literals of which one must occur, pattern); the pattern's group "keep", where it has one, stays.
    (
        ("PRIVATE KEY",),
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?"
            r"(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
            re.S,
        ),
    ),
    (("hf_",), re.compile(r"\bhf_[A-Za-z0-9]{20,}")),
    (("api_org_",), re.compile(r"\bapi_org_[A-Za-z0-9]{20,}")),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}")),
    (("github_pat_",), re.compile(r"\bgithub_pat_[A-Za-z0-9_]{20,}")),
    (("glpat-",), re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}")),
    (("sk-",), re.compile(r"\bsk-[A-Za-z0-9_-]{18,}")),
    (("xox", "xapp-"), re.compile(r"\b(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{8,}")),
    (("hooks.slack.com",), re.compile(r"(?P<keep>hooks\.slack\.com/services/)[A-Za-z0-9/_-]+")),
    (
        ("AKIA", "ASIA", "ABIA", "ACCA"),
        re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ),
    (("AIza",), re.compile(r"\bAIza[A-Za-z0-9_-]{35}")),
    (("wandb_v",), re.compile(r"\bwandb_v\d+_[A-Za-z0-9_-]{16,}")),
    (("npm_",), re.compile(r"\bnpm_[A-Za-z0-9]{30,}")),
    (("pypi-",), re.compile(r"\bpypi-[A-Za-z0-9_-]{40,}")),
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
    (("wandb login",), re.compile(r"(?P<keep>\bwandb login(?: --\S+)* )[A-Za-z0-9_-]{16,}")),
    (("machine ",), re.compile(r"(?P<keep>\bmachine \S+\s+login \S+\s+password )\S+")),
    (
        ("=",),
        re.compile(
            r"(?P<keep>[?&](?:sig|signature|X-Amz-Signature|X-Amz-Credential|X-Amz-Security-Token|X-Goog-Signature"
            r"|AWSAccessKeyId|access_token|api_key|apikey|key|token)=)[^&\s'\"<>]{6,}"
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
_VALUE = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[^\s\"',;&|)}\]]+"
_NAMED = re.compile(
    rf"(?P<keep>(?<![A-Za-z0-9_])(?P<option>--)?(?P<name>{_NAME})(?![A-Za-z0-9_-])[\"']?"
    rf"(?:\s{{0,4}}(?::=|[:=])\s{{0,4}}|(?(option)[ \t]+|(?!))))(?P<value>{_VALUE})",
    re.I,
)
_TELLING = re.compile(
    r"(?:secret|passw(?:or)?d|passwd|passphrase|key|token|credentials?|key[_-]id|_pat|_auth|_pwd|_pass|_creds)"
    r"(?![a-z0-9_-])[\"']?\s{0,4}(?:[:=]|(?<=[ \t])\S)",
    re.I,
)

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
        if any(literal in text for literal in literals):
            text, count = pattern.subn(_keep_prefix, text)
            total += count
    text, count = _redact_named(text)
    return text, total + count


def _keep_prefix(match: re.Match[str]) -> str:
    kept = match.group("keep") if "keep" in match.re.groupindex else ""
    return f"{kept}{REDACTED}"


def _redact_named(text: str) -> tuple[str, int]:
    """Names and values stand in one line: only lines with a telling word are looked at closely."""
    count = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        value = match.group("value")
        quote = value[0] if value[0] in "\"'" else ""
        bare = value[1:-1] if quote else value
        if not bare or _NO_SECRET.match(bare) or _VOCABULARY.search(match.group("name")):
            return match.group(0)
        count += 1
        return f"{match.group('keep')}{quote}{REDACTED}{quote}"

    pieces: list[str] = []
    done = 0
    for telling in _TELLING.finditer(text):
        if telling.start() < done:
            continue
        start = text.rfind("\n", done, telling.start()) + 1 or done
        end = text.find("\n", telling.end())
        end = len(text) if end < 0 else end
        pieces += (text[done:start], _NAMED.sub(replace, text[start:end]))
        done = end
    pieces.append(text[done:])
    return "".join(pieces), count
