"""Are secrets found by shape and by name, and does evidence that only looks like one stay?"""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.domain.redaction import REDACTED, count_in_binary, is_secret_name, redact, redact_counted
from spike.domain.run import Run
from spike.readers.redaction import redact_command, redact_pairs, redact_run

KEY_BLOCK = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAABG5vbmU\n-----END OPENSSH PRIVATE KEY-----"

SECRETS = {
    "wandb key by name": ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123"),
    "wandb login": ("wandb login 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123"),
    "hugging face token": ("push with hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345 now", "hf_AbCdEf"),
    "hugging face token by name": ("export HF_TOKEN='not-of-the-usual-shape'", "not-of-the-usual-shape"),
    "aws access key id": ("id AKIAIOSFODNN7EXAMPLE used", "AKIAIOSFODNN7EXAMPLE"),
    "aws secret by name": ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    "github token": ("ghp_0123456789abcdefghijklmnopqrstuvwxyz", "ghp_01234"),
    "github fine-grained token": ("github_pat_11ABCDEFG0123456789_abcdefghijklmnop", "11ABCDEFG"),
    "openai key": ("sk-proj-abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopq"),
    "slack token": ("xoxb-123456789012-abcdefghijkl", "123456789012"),
    "slack webhook": ("https://hooks.slack.com/services/T000/B000/XXXXsecretXXXX", "XXXXsecretXXXX"),
    "private key": (f"before\n{KEY_BLOCK}\nafter", "b3BlbnNzaC1rZXk"),
    "cut off private key": (KEY_BLOCK[:60], "b3BlbnNz"),
    "userinfo in a URL": ("git clone https://bob:hunter2@git.example.org/x.git", "hunter2"),
    "token in a URL": ("https://oauthtoken@host/x", "oauthtoken"),
    "signed URL": ("https://a.blob.example/x?sv=2021&sig=AbCdEf%2BgHiJk%3D&se=1", "AbCdEf"),
    "bearer header": ("Authorization: Bearer abcdef.0123456.xyz", "abcdef.0123456"),
    "basic header": ('"Authorization": "Basic dXNlcjpwYXNzd29yZA=="', "dXNlcjpwYXNz"),
    "password in yaml": ("db:\n  password: correct-horse\n  host: x", "correct-horse"),
    "password in json": ('{"db_password": "correct \\"horse\\" x", "host": 1}', "horse"),
    "option with a space": ("train.py --api-key tiger42 --lr 3e-4", "tiger42"),
    "option with an equals sign": ("train.py --hub_token=tiger42 --lr 3e-4", "tiger42"),
    "any capital token": ("MY_SERVICE_TOKEN=tiger42xx", "tiger42xx"),
    "any capital key": ("export DATADOG_KEY=tiger42xx", "tiger42xx"),
    "any secret": ("client_secret: tiger42xx", "tiger42xx"),
    "bare token option": ("push --token tiger42", "tiger42"),
    "bare token that looks like one": ('{"token": "a1b2c3d4e5f6a7b8"}', "a1b2c3d4e5f6"),
    "netrc": ("machine api.wandb.ai login user password 0a1b2c3d4e", "0a1b2c3d4e"),
    "google key": ("AIzaSyA0123456789abcdefghijklmnopqrstuv", "AIzaSyA0123"),
    "web token": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.abcDEF_123", "eyJzdWIi"),
}

KEPT = (
    "pad_token: <pad>  eos_token: </s>  unk_token: '[UNK]'",
    "max_tokens=4096 num_tokens: 1000000 tokens_per_second: 1.3e5",
    "tokenizer: meta-llama/Llama-3.1-8B  tokenizer_path=/data/tok.model",
    "sort_key: length  text_key=content  label_key: y",
    "step 200 | loss 2.31 | tokens 1234567 | grad_norm 0.41",
    "key = jax.random.PRNGKey(0)",
    "token = os.environ['HF_TOKEN']",
    "api_key=args.api_key",
    "WANDB_API_KEY=$WANDB_API_KEY",
    "password: null",
    "secret: ${MY_SECRET}",
    "commit 0123456789abcdef0123456789abcdef01234567",
    "git@github.com:org/repo.git and ssh://git@github.com/org/repo.git",
    "https://example.org/path@v2/file",
    "state_dict key: transformer.h.0.attn.c_attn.weight",
    "add_bos_token: true",
    "a bearer of bad news",
    "mask-token-ratio 0.15",
    "token: antidisestablishmentarianism",
    "token: hello, token=1234567890123456789",
    "running task-specific-fine-tuning-of-the-model",
)


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_taken_out_and_the_rest_stays(name: str) -> None:
    text, secret = SECRETS[name]
    safe, count = redact_counted(text)
    assert secret not in safe
    assert REDACTED in safe
    assert count >= 1
    assert redact(safe) == safe


@pytest.mark.parametrize("text", KEPT)
def test_what_only_looks_like_a_secret_is_evidence_and_stays(text: str) -> None:
    assert redact_counted(text) == (text, 0)


def test_surroundings_of_a_secret_are_untouched() -> None:
    assert redact("a --api-key tiger42 --lr 3e-4 b") == "a --api-key <redacted> --lr 3e-4 b"
    assert redact('{"api_key": "x1y2z3", "lr": 1}') == '{"api_key": "<redacted>", "lr": 1}'
    assert redact("see https://a:b@h/x?y=1 there") == "see https://<redacted>@h/x?y=1 there"
    assert redact(f"before\n{KEY_BLOCK}\nafter") == "before\n<redacted>\nafter"


@pytest.mark.parametrize("before", [b"\x00\x01", b"\x0a\x28", b"*3", b"binary\x12", b"\x5d", b"a"])
def test_a_secret_in_a_binary_file_is_found_whatever_its_length_byte_looks_like(before: bytes) -> None:
    for secret in (
        b"sk-proj-abcdefghijklmnopqrstuvwxyz",
        b"ghp_0123456789abcdefghijklmnopqrstuvwxyz",
        b"HF_TOKEN=tiger42",
    ):
        assert count_in_binary(before + secret + b"\x00\x02") == 1
    assert count_in_binary(before + b"loss/train\x00\x1a\x05value" + bytes(range(256))) == 0


def test_every_secret_of_a_long_text_is_found_at_once() -> None:
    text = "\n".join(f"line {i}\n{text}\n" for i, (text, _) in enumerate(SECRETS.values()) if "cut off" not in text)
    safe = redact(text.replace(KEY_BLOCK[:60], KEY_BLOCK))
    for name, (_, secret) in SECRETS.items():
        assert secret not in safe, name


@given(st.text(max_size=300))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


_PIECES = st.sampled_from([text for text, _ in SECRETS.values()] + ['say "x"', "back\\slash", "nl\n", "'q'", "a", ""])
_TEXTS = st.lists(_PIECES, max_size=4).map(" ".join)


@given(st.recursive(_TEXTS | st.none() | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner)))
def test_json_stays_json_whatever_is_taken_out_of_it(value: object) -> None:
    for text in (json.dumps(value), json.dumps(json.dumps(value))):
        json.loads(redact(text))


def test_a_secret_quoted_inside_json_is_taken_out() -> None:
    text = json.dumps({"log": "password=\"tiger 42\" and api_key='lion 43'", "next": 1})
    assert "tiger" not in redact(text)
    assert "lion" not in redact(text)
    assert json.loads(redact(text))["next"] == 1


def test_a_key_block_without_an_end_does_not_take_the_rest_of_the_log_with_it() -> None:
    safe = redact("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN\nstep 200 | loss: 2.31\n")
    assert "MIIEvQIBADAN" not in safe
    assert "loss: 2.31" in safe


def test_a_hostile_line_does_not_take_forever() -> None:
    start = time.perf_counter()
    for text in (
        "a_" * 50_000 + "key",
        "token" * 40_000,
        "https://" * 20_000,
        "password" + " " * 200_000,
        "-" * 200_000,
    ):
        redact(text)
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "db_password", "MY_PAT"])
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["pad_token", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "num_tokens", "sort_key", "KEYBOARD"]
)
def test_other_names_are_not(name: str) -> None:
    assert not is_secret_name(name)


def test_variables_are_judged_by_name_and_by_value() -> None:
    pairs = (("NCCL_DEBUG", "INFO"), ("HF_TOKEN", "x"), ("CUDA_X", "https://u:p@h"))
    assert redact_pairs(pairs) == (("NCCL_DEBUG", "INFO"), ("HF_TOKEN", REDACTED), ("CUDA_X", f"https://{REDACTED}@h"))


def test_the_argument_after_a_secret_option_is_taken_out() -> None:
    assert redact_command(["train.py", "--api-key", "x", "--lr", "1"]) == (
        "train.py",
        "--api-key",
        REDACTED,
        "--lr",
        "1",
    )
    assert redact_command(["--api-key", "--lr", "1"]) == ("--api-key", "--lr", "1")


def test_a_run_is_described_without_its_secrets() -> None:
    run = Run(
        directory="/r",
        launch="python t.py --wandb-key tiger42",
        holdout="curl -H 'Authorization: Bearer tiger4242'",
        env=(("WANDB_API_KEY", "tiger42"), ("OMP_NUM_THREADS", "1")),
        knobs=(("learning-rate", "--lr {value}"),),
    )
    safe = redact_run(run)
    assert "tiger42" not in repr(safe)
    assert safe.env[1] == ("OMP_NUM_THREADS", "1")
    assert safe.knobs == run.knobs
