import pytest

from spike.domain.facts import NOT_MEASURED
from spike.domain.measured import NotMeasured
from spike.domain.observations import first_difference, precision, rebuild_facts, receipt_facts, supervised
from spike.domain.receipt import Mismatch, Rebuild, Receipt
from tests.domain.trial_facts import step, trace


def test_a_batch_without_a_supervised_target_is_found_with_its_step_and_rank() -> None:
    traces = [trace([step(11), step(12)]), trace([step(11), step(12, supervised=0)], rank=1)]
    fact = supervised(traces, (11, 12), ("T1",))
    assert (fact.value, fact.step, fact.where.rank) == ("none", 12, 1)


def test_targets_that_no_loss_function_saw_are_not_measured() -> None:
    unknown = trace([step(11, supervised=NotMeasured("own loss"))])
    assert supervised([unknown], (11,), ()).value == NOT_MEASURED
    assert supervised([trace([step(11)])], (11,), ()).value == "some"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("autocast=off params=float32", "no"),
        ("autocast=float16 params=float32", "yes"),
        ("autocast=off params=bfloat16", "yes"),
    ],
)
def test_reduced_precision_is_read_from_what_the_step_used(text: str, value: str) -> None:
    assert precision([trace([step(11, precision=text)])], ()).value == value


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, ""),
        ({"batch": "other"}, "data"),
        ({"precision": "autocast=bfloat16 params=float32", "loss": 2.1}, "precision"),
        ({"loss": 2.1, "grad_norm": 3.0}, "objective"),
        ({"loss": 2.0 * (1 + 1e-6)}, ""),
        ({"grad_norm": 3.0}, "gradients"),
        ({"clip": None, "update_norm": 0.5}, "clipping"),
        ({"lr": 2e-3, "update_norm": 0.5}, "learning-rate"),
        ({"update_norm": 0.5}, "update"),
    ],
)
def test_the_first_field_that_differs_names_what_a_commit_changed(changed: dict[str, object], name: str) -> None:
    found, at = first_difference([trace([step(11)])], [trace([step(11, **changed)])])  # type: ignore[arg-type]
    assert found == name
    assert (at is not None) == bool(name)


def test_receipt_facts_name_rank_and_tensor() -> None:
    wrong = Receipt(2, 2, (Mismatch(1, "parameter", "w", "", "not there"),), ())
    parameters, moments = receipt_facts(wrong, ())
    assert (parameters.value, parameters.where.rank, parameters.where.tensor) == ("differs", 1, "w")
    assert moments.value == "equal"
    assert all(f.value == NOT_MEASURED for f in receipt_facts(NotMeasured("sharded"), ()))


def test_rebuild_facts_tell_parameters_from_moments() -> None:
    parameters, moments = rebuild_facts(Rebuild(20, (), ("w.exp_avg",), 4), ())
    assert (parameters.value, moments.value, moments.step) == ("equal", "differs", 21)
