"""How does a CI server learn of the fixtures? JUnit XML, one test case a fixture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from enum import StrEnum

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""


class CaseState(StrEnum):
    """What JUnit knows of a test case."""

    PASSED = "passed"
    FAILURE = "failure"
    """It ran, and the answer is wrong."""
    ERROR = "error"
    """It could not run to the end."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class JUnitCase:
    """One test case."""

    name: str
    state: CaseState
    seconds: float
    message: str = ""


def junit_xml(suite: str, cases: tuple[JUnitCase, ...]) -> str:
    """The document, with its XML declaration."""
    count = {state: sum(c.state is state for c in cases) for state in CaseState}
    root = ET.Element(
        "testsuite",
        name=suite,
        tests=str(len(cases)),
        failures=str(count[CaseState.FAILURE]),
        errors=str(count[CaseState.ERROR]),
        skipped=str(count[CaseState.SKIPPED]),
        time=f"{sum(c.seconds for c in cases):.3f}",
    )
    for case in cases:
        element = ET.SubElement(root, "testcase", classname=suite, name=case.name, time=f"{case.seconds:.3f}")
        if case.state is not CaseState.PASSED:
            message = _NOT_XML.sub("?", case.message)
            ET.SubElement(element, case.state.value, message=message.splitlines()[0] if message else "").text = message
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
