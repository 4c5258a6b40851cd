from __future__ import annotations

import xml.etree.ElementTree as ET

from spike.report.junit import CaseState, JUnitCase, junit_xml

CASES = (
    JUnitCase("clean", CaseState.PASSED, 1.5),
    JUnitCase("bad-shard", CaseState.FAILURE, 2.0, "the step is 221, not 222\nsecond line"),
    JUnitCase("flip", CaseState.ERROR, 0.25, "exit 70: \x1b[31mred\x00 & <b>"),
    JUnitCase("hf", CaseState.SKIPPED, 0.0, "transformers is not installed here"),
)


def test_every_state_is_counted_and_its_message_kept() -> None:
    suite = ET.fromstring(junit_xml("fixtures", CASES))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (
        "4",
        "1",
        "1",
        "1",
    )
    assert suite.get("time") == "3.750"
    cases = {c.get("name"): c for c in suite}
    assert len(cases["clean"]) == 0
    failure = cases["bad-shard"].find("failure")
    assert failure is not None
    assert failure.get("message") == "the step is 221, not 222"
    assert failure.text == "the step is 221, not 222\nsecond line"
    assert cases["hf"].find("skipped") is not None


def test_what_xml_cannot_hold_is_replaced() -> None:
    suite = ET.fromstring(junit_xml("fixtures", CASES))
    error = suite.find("testcase[@name='flip']/error")
    assert error is not None
    assert error.text == "exit 70: ?[31mred? & <b>"
