import math

import pytest

from spike.casefile.codec import canonical, dumps, from_payload, to_payload
from spike.domain.errors import InputUnreadable
from spike.domain.measured import NotMeasured
from spike.domain.trace import MicroBatch
from spike.domain.trial import Outcome, OutcomeKind


def test_a_fact_comes_back_as_it_went() -> None:
    fact = MicroBatch(2.5, "digest", NotMeasured("own loss"), 4, 8)
    assert from_payload(MicroBatch, to_payload(fact, schema="spike.x/1"), schema="spike.x/1") == fact


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_survive_as_text_that_any_json_reader_accepts(value: float) -> None:
    outcome = Outcome(OutcomeKind.REPRODUCED, "why", "loss", value, 221, value)
    text = dumps(to_payload(outcome, schema="spike.outcome/1"))
    assert "NaN" in text or "Infinity" in text
    back = from_payload(Outcome, __import__("json").loads(text), schema="spike.outcome/1")
    assert back.peak_value == value or (math.isnan(value) and math.isnan(back.peak_value))


def test_another_schema_is_refused_by_name() -> None:
    with pytest.raises(InputUnreadable, match=r"spike\.other/2"):
        from_payload(Outcome, {"schema": "spike.other/2"}, schema="spike.outcome/1")


def test_a_field_that_does_not_fit_is_named() -> None:
    with pytest.raises(InputUnreadable, match="kind"):
        from_payload(Outcome, {"kind": "exploded", "reason": "?"})


def test_the_canonical_form_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical({"b": 1, "a": 2}) == canonical({"a": 2, "b": 1})
