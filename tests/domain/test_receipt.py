from spike.domain.checkpoint import CheckpointScan, Role, TensorFacts
from spike.domain.measured import NotMeasured
from spike.domain.receipt import Receipt, compare_rebuild, load_receipt
from spike.domain.trace import Fingerprint
from tests.domain.trial_facts import step, tensor, trace


def stored(name: str, digest: str, *, key: str = "") -> TensorFacts:
    role = Role.MOMENT if key else Role.PARAMETER
    return TensorFacts(role, name, key, "float32", (4, 4), "state.pt", digest, 0, 1.0, 1.0, 0, 0)


SCAN = CheckpointScan(
    "/run/step-10",
    (
        stored("a.weight", "A"),
        stored("b.weight", "B"),
        stored("0", "MA", key="exp_avg"),
        stored("1", "MB", key="exp_avg"),
    ),
)


def live(a: str = "A", b: str = "B", ma: str = "MA", mb: str = "MB", *, rank: int = 0, at: int = 10):  # type: ignore[no-untyped-def]
    tensors = (
        tensor("module.a.weight", a, index=0),
        tensor("module.b.weight", b, index=1),
        tensor("module.a.weight", ma, role="moment", key="exp_avg", index=0),
        tensor("module.b.weight", mb, role="moment", key="exp_avg", index=1),
    )
    return trace([step(11)], rank=rank, fingerprints=[Fingerprint(at, tensors)])


def receipt(*traces) -> Receipt:  # type: ignore[no-untyped-def]
    found = load_receipt(traces, SCAN)
    assert isinstance(found, Receipt)
    return found


def test_a_full_load_gives_a_clean_receipt_whatever_the_names() -> None:
    found = receipt(live())
    assert found.is_clean
    assert (found.num_parameters, found.num_moments) == (2, 2)


def test_a_parameter_that_was_not_loaded_is_named_with_its_rank() -> None:
    found = receipt(live(), live(b="fresh", rank=1))
    assert [(m.rank, m.name) for m in found.parameters] == [(1, "module.b.weight")]
    assert not found.moments


def test_moments_swapped_between_parameters_are_not_taken_for_loaded() -> None:
    found = receipt(live(ma="MB", mb="MA"))
    assert not found.parameters
    assert {m.why for m in found.moments} == {"it is another parameter's"}


def test_an_optimizer_that_starts_empty_did_not_load_the_moments() -> None:
    bare = trace([step(11)], fingerprints=[Fingerprint(10, (tensor("a.weight", "A"), tensor("b.weight", "B")))])
    assert "started with none" in receipt(bare).moments[0].why


def test_without_a_fingerprint_nothing_is_measured() -> None:
    assert isinstance(load_receipt([trace([step(11)])], SCAN), NotMeasured)


def test_sharded_live_state_is_not_called_a_mismatch() -> None:
    shard = trace([step(11)], fingerprints=[Fingerprint(10, (tensor("a", "x"),))])
    other = CheckpointScan("/c", (TensorFacts(Role.PARAMETER, "a", "", "float32", (8, 4), "f", "A", 0, 1, 1, 0, 0),))
    assert isinstance(load_receipt([shard], other), NotMeasured)


def test_a_rebuild_tells_wrong_weights_from_wrong_moments() -> None:
    wrong_weights = compare_rebuild([live(a="other", at=20)], SCAN, step=20)
    wrong_moments = compare_rebuild([live(ma="other", at=20)], SCAN, step=20)
    assert not isinstance(wrong_weights, NotMeasured)
    assert not isinstance(wrong_moments, NotMeasured)
    assert (wrong_weights.parameters, wrong_weights.moments) == (("module.a.weight",), ())
    assert (wrong_moments.parameters, wrong_moments.moments) == ((), ("module.a.weight.exp_avg",))
    assert isinstance(compare_rebuild([live()], SCAN, step=20), NotMeasured)
