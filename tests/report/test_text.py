"""Are numbers written so that they are read right, and names so that a terminal survives them?"""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.domain.measured import NotMeasured
from spike.report.document import case_href
from spike.report.markdown import escape
from spike.report.text import device_hours, duration, name, number, sentence, size, visible


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (48_200, "48,200"),
        (0.4, "0.4"),
        (12.18, "12.18"),
        (6.7549, "6.755"),
        (9.9996, "10"),
        (123_456.78, "123,457"),
        (0.0003, "0.0003"),
        (3e-5, "3e-05"),
        (1.2345e9 + 0.5, "1.235e+09"),
        (-3.14159, "-3.142"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (NotMeasured("no column"), "not measured"),
    ],
)
def test_a_number_has_four_digits_that_mean_something(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12))
def test_a_number_is_within_its_digits_of_the_value(value: float) -> None:
    shown = float(number(value).replace(",", ""))
    assert math.isclose(shown, value, rel_tol=6e-4, abs_tol=1e-300)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.5, "3.5 s"),
        (41, "41 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (7_500, "2 h 05 min"),
        (200_000, "2 d 8 h"),
    ],
)
def test_a_duration_is_said_as_people_say_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_and_device_hours_have_units() -> None:
    assert size(512) == "512 B"
    assert size(13_958_643_712) == "13.0 GiB"
    assert device_hours(1_740.4) == "1,740 GPU‑h"
    assert device_hours(0.0123) == "0.012 GPU‑h"


@given(st.text())
def test_what_is_visible_is_one_line_of_plain_characters(text: str) -> None:
    shown = visible(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert visible(shown) == shown


def test_terminal_and_bidirectional_controls_are_shown_as_escapes() -> None:
    assert visible("a\x1b[2Jb\u202ec\ndir\udcff") == "a\\x1b[2Jb\\u202ec\\x0adir\\udcff"


def test_a_very_long_name_keeps_both_ends() -> None:
    shown = name("layer." + "x" * 5_000 + ".weight")
    assert len(shown) < 310
    assert shown.startswith("layer.")
    assert shown.endswith(".weight")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the loss came back", "The loss came back."),
        ("spike.yaml has no holdout command", "spike.yaml has no holdout command."),
        ("grad_norm leaves its baseline.", "grad_norm leaves its baseline."),
        ("absent: stayed low", "Absent: stayed low."),
        ("", ""),
    ],
)
def test_a_clause_becomes_a_sentence_and_names_keep_their_case(text: str, shown: str) -> None:
    assert sentence(text) == shown


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/case.yaml", "evidence/../../x", ""])
def test_no_link_leads_out_of_the_case(path: str) -> None:
    assert case_href(path) == ""


def test_a_link_cannot_become_a_script() -> None:
    assert case_href("javascript:alert(1)") == "javascript%3Aalert%281%29"
    assert case_href("evidence/a b#c?.txt") == "evidence/a%20b%23c%3F.txt"


@given(st.text(min_size=1, max_size=60))
def test_escaped_markdown_reads_as_the_text_itself(text: str) -> None:
    from markdown_it import MarkdownIt

    shown = visible(text).strip()
    # The first character is guarded where a paragraph begins; here it is kept from being one.
    tokens = MarkdownIt("commonmark", {"html": True}).parse("x " + escape(shown))
    assert [t.type for t in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    children = tokens[1].children or []
    assert {c.type for c in children} <= {"text", "text_special"}
    assert "".join(c.content for c in children) == f"x {shown}".rstrip()
