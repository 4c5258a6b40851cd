"""Are interventions found by their files, and is a broken file named?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spike.domain.errors import SpikeError
from spike.domain.trial import Factor
from spike.lab.catalogue import InterventionInfo, interventions, read_intervention

GOOD = 'NAME = "good-one"\nFACTOR = "rng"\nSUMMARY = "It is good."\nPARAMETERS = ("a",)\nSPECIFIC = True\n'
ALL = sorted(interventions())


@pytest.mark.parametrize("name", ALL)
def test_every_intervention_states_what_it_is(name: str) -> None:
    info = interventions()[name]
    assert Factor(info.factor)
    assert info.summary.endswith(".")
    assert info.summary.count(".") == 1, "one sentence"
    assert all(parameter.isidentifier() for parameter in info.parameters)


@pytest.mark.parametrize("name", [name for name in ALL if interventions()[name].is_in_process])
def test_the_probe_can_make_every_change_that_happens_in_the_process(name: str) -> None:
    from spike_probe.intervention import Intervention, load_intervention
    from spike_probe.plan import PlannedChange

    info = interventions()[name]
    values = {
        "donors": ("5:0:0:/x.pt",),
        "keep": (1,),
        "lr": ("5:0.1",),
        "donor": "/x.pt",
        "seed": 1,
        "scale": 0.5,
        "max_norm": 1.0,
        "element": "w:0:40000000",
    }
    parameters = {parameter: values[parameter] for parameter in info.parameters}
    change = load_intervention(PlannedChange(name, (5,), parameters))
    assert isinstance(change, Intervention)
    assert change.acts_on(5)
    assert not change.acts_on(4)
    for parameter in parameters:
        less = {key: value for key, value in parameters.items() if key != parameter}
        with pytest.raises(ValueError, match=f"needs the parameters {parameter}"):
            load_intervention(PlannedChange(name, (5,), less))


def test_those_that_attenuate_almost_any_spike_are_not_specific() -> None:
    attenuating = {name for name, info in interventions().items() if not info.is_specific}
    assert attenuating == {"scaled-lr", "clipping", "fresh-moments", "reseed"}


def test_a_file_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "good_one.py"
    path.write_text(GOOD + "raise RuntimeError('never run')\n")
    info = read_intervention(path, is_in_process=True)
    assert info == InterventionInfo("good-one", "rng", "It is good.", ("a",), True, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("NAME", "NOME"), "NAME missing at module level"),
        (GOOD.replace("good-one", "bad-one"), "NAME is 'bad-one', the file is called good_one.py"),
        (GOOD.replace('"rng"', '"moon"'), "FACTOR 'moon' is none of code, config"),
        (GOOD.replace('("a",)', '"a"'), "PARAMETERS is 'a', not a tuple"),
        (GOOD.replace("True", "bool(1)"), "SPECIFIC in line 5 is no literal"),
        (GOOD + "def (", "invalid syntax"),
    ],
)
def test_a_malformed_file_fails_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "good_one.py"
    path.write_text(text)
    with pytest.raises(SpikeError) as failure:
        read_intervention(path, is_in_process=True)
    assert "good_one.py" in failure.value.message
    assert message in failure.value.message


def test_reading_the_catalogue_imports_neither_torch_nor_the_probe() -> None:
    code = (
        "import sys; from spike.lab.catalogue import interventions; assert interventions()\n"
        "print([name for name in ('torch', 'spike_probe', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
