"""Does the comparison of two checkpoints tell training from everything that is not training?"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spike.domain.checkpoint import CheckpointScan, Role, TensorFacts
from spike.domain.compare import (
    FEW_ELEMENTS,
    ValueComparison,
    compare_scans,
    impossible_decays,
    single_nonfinite,
    stale_parts,
    step_counters,
)
from spike.domain.measured import NotMeasured


def facts(name, digest, *, role=Role.PARAMETER, key="", file="a.pt", absmax=1.0, shape=(100,), dtype="float32", **more):
    return TensorFacts(
        role=role,
        name=name,
        key=key,
        dtype=dtype,
        shape=shape,
        file=file,
        digest=digest,
        num_nonfinite=more.get("num_nonfinite", 0),
        absmax=absmax,
        l2=more.get("l2", 10.0),
        num_zeros=more.get("num_zeros", 0),
        num_subnormal=more.get("num_subnormal", 0),
    )


def moment(name, digest, key="exp_avg", **more):
    return facts(name, digest, role=Role.MOMENT, key=key, **more)


def scan(*tensors):
    return CheckpointScan("x", tensors)


def test_training_moves_weights_and_is_not_called_frozen():
    found = compare_scans(scan(facts("w", "1"), facts("b", "2")), scan(facts("w", "3"), facts("b", "2")))
    assert not found.is_frozen
    assert [t.name for t in found.unchanged] == ["b"]


def test_not_one_moved_weight_means_frozen():
    found = compare_scans(scan(facts("w", "1"), moment("w", "5")), scan(facts("w", "1"), moment("w", "6")))
    assert found.is_frozen


def test_no_common_weight_is_not_called_frozen():
    assert not compare_scans(scan(facts("w", "1")), scan(facts("v", "1"))).is_frozen


def test_integer_buffers_do_not_hide_a_frozen_model():
    counter = [facts("n", str(i), dtype="int64") for i in range(2)]
    assert compare_scans(scan(facts("w", "1"), counter[0]), scan(facts("w", "1"), counter[1])).is_frozen


def test_a_tensor_that_became_zeros_or_subnormals_is_named_and_one_that_was_is_not():
    before = scan(facts("w", "1"), facts("v", "2"), facts("z", "3", num_zeros=100))
    after = scan(
        facts("w", "4", num_zeros=100), facts("v", "5", num_subnormal=90), facts("z", "6", num_zeros=100, absmax=0.0)
    )
    found = compare_scans(before, after)
    assert [t.name for t in found.zeroed] == ["w"]
    assert [t.name for t in found.subnormal] == ["v"]


def test_added_removed_and_reshaped_tensors_are_told_apart():
    before = scan(facts("a", "1"), facts("b", "2"), facts("c", "3"))
    after = scan(facts("a", "1", shape=(50, 2)), facts("b", "2", dtype="bfloat16"), facts("d", "4"))
    found = compare_scans(before, after)
    assert [t.name for t in found.added] == ["d"]
    assert [t.name for t in found.removed] == ["c"]
    assert [b.name for _, b in found.reshaped] == ["a", "b"]


def test_the_same_name_in_two_files_is_two_tensors():
    before = scan(facts("w", "1", file="rank0.pt"), facts("w", "1", file="rank1.pt"))
    after = scan(facts("w", "2", file="rank0.pt"), facts("w", "1", file="rank1.pt"))
    found = compare_scans(before, after)
    assert found.num_compared == 2
    assert [t.file for t in found.unchanged] == ["rank1.pt"]


def test_a_file_that_stayed_while_the_others_moved_is_stale():
    before = scan(facts("a", "1", file="x"), facts("b", "2", file="x"), facts("c", "3", file="y"))
    after = scan(facts("a", "4", file="x"), facts("b", "5", file="x"), facts("c", "3", file="y"))
    (stale,) = compare_scans(before, after).stale
    assert (stale.part, stale.num_tensors, stale.num_moved_elsewhere, stale.first) == ("y", 1, 2, "c")


@pytest.mark.parametrize(("moved", "stale"), [("parameter", "moments"), ("moment", "parameters")])
def test_moments_of_another_generation_in_one_file_are_stale(moved, stale):
    before = scan(facts("a", "1"), moment("a", "2"))
    after = scan(facts("a", "9" if moved == "parameter" else "1"), moment("a", "9" if moved == "moment" else "2"))
    assert [part.part for part in compare_scans(before, after).stale] == [stale]


def test_two_identical_checkpoints_have_no_stale_part():
    both = scan(facts("a", "1"), moment("a", "2"))
    assert compare_scans(both, both).stale == ()


def test_constants_and_scalars_do_not_make_a_file_stale():
    pairs = [
        (facts("mask", "1", file="y", absmax=0.0, num_zeros=100), facts("mask", "1", file="y", absmax=0.0)),
        (facts("w", "2", file="x"), facts("w", "3", file="x")),
    ]
    assert stale_parts(pairs) == ()


def test_unread_tensors_are_never_called_unchanged():
    lost = NotMeasured("its bytes could not be read")
    found = compare_scans(scan(facts("w", lost)), scan(facts("w", lost)))
    assert found.unchanged == ()
    assert not found.is_frozen


def test_step_counters_are_the_optimizers_own():
    tensors = [moment(str(i), "x", key="step", shape=(), absmax=float(n)) for i, n in enumerate((7, 7, 3))]
    assert step_counters(scan(*tensors, moment("w", "1"))) == (3.0, 7.0)


@pytest.mark.parametrize(
    ("share", "is_impossible"), [(2.0**-14, True), (0.05, True), (0.08, False), (0.2, False), (1.5, False)]
)
def test_second_moments_below_their_own_decay_are_impossible(share, is_impossible):
    # 0.95 ** 36 = 0.158, and half of that is the bound
    before = scan(moment("w", "1", key="exp_avg_sq", l2=4.0), moment("w", "2", l2=1.0))
    after = scan(moment("w", "3", key="exp_avg_sq", l2=4.0 * share), moment("w", "4", l2=1e-9))
    found = impossible_decays(before, after, beta2=0.95, num_updates=36)
    assert bool(found) == is_impossible
    if found:
        assert math.isclose(found[0][1], share / 0.95**36, rel_tol=1e-6)


def test_an_honest_adam_never_has_impossible_moments():
    rng = np.random.default_rng(0)
    v = rng.random(100) * 1e-6
    before = scan(moment("w", "1", key="exp_avg_sq", l2=float(np.linalg.norm(v))))
    for _ in range(40):
        v = 0.95 * v + 0.05 * np.square(rng.normal(size=100) * 1e-9)
    after = scan(moment("w", "2", key="exp_avg_sq", l2=float(np.linalg.norm(v))))
    assert impossible_decays(before, after, beta2=0.95, num_updates=40) == ()


# -- values -----------------------------------------------------------------------------------------------------


def compared(before, after, *, role=Role.PARAMETER, dtype="float32", blocks=1):
    old, new = np.asarray(before, dtype=np.float32), np.asarray(after, dtype=np.float32)
    finite = np.abs(old[np.isfinite(old)])
    make = facts if role is Role.PARAMETER else moment
    a = make("w", "1", absmax=float(finite.max(initial=0)), shape=old.shape, dtype=dtype)
    comparison = ValueComparison(a, make("w", "2", shape=old.shape, dtype=dtype))
    for x, y in zip(np.array_split(old, blocks), np.array_split(new, blocks), strict=True):
        comparison.add(x, y)
    return comparison.result()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_the_relative_change_does_not_depend_on_the_blocks(seed, blocks):
    rng = np.random.default_rng(seed)
    old = rng.normal(size=50).astype(np.float32)
    new = old + rng.normal(size=50).astype(np.float32) * 0.01
    expected = np.linalg.norm(new.astype(np.float64) - old) / np.linalg.norm(old.astype(np.float64))
    found = compared(old, new, blocks=blocks)
    assert math.isclose(found.relative, expected, rel_tol=1e-9)
    assert math.isclose(found.largest, float(np.abs(new - old).max()), rel_tol=1e-6)
    assert found.flips == ()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 199), st.sampled_from([27, 28, 29, 30]))
def test_a_flipped_exponent_bit_is_found_at_its_element_through_more_training(seed, element, bit):
    rng = np.random.default_rng(seed)
    old = (rng.normal(size=200) * 0.02).astype(np.float32)
    new = old + (rng.normal(size=200) * 1e-4).astype(np.float32)
    new.view(np.uint32)[element] ^= np.uint32(1 << bit)
    if abs(float(new[element])) <= float(np.abs(old).max()) * 2.0**10 and np.isfinite(new[element]):
        return  # the bit was set and went out: the weight became small, which no magnitude bound can tell
    found = compared(old, new, blocks=3)
    assert [f.element for f in found.flips] == [element]
    assert found.flips[0].before == old[element]


def test_a_weight_that_collapsed_but_is_not_zero_is_a_flip():
    old = np.full(100, 0.5)
    new = old.copy()
    new[3] = 0.5 * 2.0**-64
    assert [f.element for f in compared(old, new).flips] == [3]
    new[3] = 0.0
    assert compared(old, new).flips == ()


def test_many_jumps_together_are_no_flip():
    old = np.full(100, 0.5)
    new = old.copy()
    new[: FEW_ELEMENTS + 1] = 1e9
    assert compared(old, new).flips == ()
    new[FEW_ELEMENTS] = 0.5
    assert len(compared(old, new).flips) == FEW_ELEMENTS


def test_a_small_tensor_that_diverged_as_a_whole_is_no_flip():
    assert compared([1e-4, -1e-4, 5e-5, 2e-5], [0.8, -0.7, 0.6, 0.5]).flips == ()
    assert (
        compared(
            [1e-4, -1e-4, 5e-5, 2e-5],
            [
                0.8,
                -0.7,
                5e-5,
                2e-5,
            ],
        ).flips
        != ()
    )
    assert compared([1e-4] * 6, [0.8, -0.7, 0.02, 0.02, 0.02, 0.02]).flips == ()


def test_moments_may_grow_by_a_million_in_an_ordinary_spike():
    old = np.full(100, 1e-8)
    new = old.copy()
    new[5] = 1e-2
    assert compared(old, new, role=Role.MOMENT).flips == ()
    new[5] = 1e6
    assert [f.element for f in compared(old, new, role=Role.MOMENT).flips] == [5]


def test_a_non_finite_element_among_finite_ones_is_a_flip_and_a_lost_tensor_is_not():
    old = np.full(100, 0.5)
    new = old.copy()
    new[9] = np.inf
    (flip,) = compared(old, new).flips
    assert (flip.element, flip.power) == (9, math.inf)
    assert compared(old, np.full(100, np.nan)).flips == ()
    few, many = facts("a", "1", num_nonfinite=1), facts("b", "2", num_nonfinite=100)
    assert single_nonfinite([few, many]) == (few,)


def test_a_tensor_that_was_zero_changed_infinitely():
    assert compared(np.zeros(4), np.ones(4)).relative == math.inf
    assert compared(np.zeros(4), np.zeros(4)).relative == 0.0


@pytest.mark.parametrize(("kind", "name"), [(np.float16, "float16"), ("bfloat16", "bfloat16")])
def test_values_rounded_to_half_precision_are_recognised(kind, name):
    rng = np.random.default_rng(0)
    old = rng.random(64).astype(np.float32)
    moved = old + rng.random(64).astype(np.float32) * 0.01
    if kind == "bfloat16":
        rounded = (moved.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    else:
        rounded = moved.astype(kind).astype(np.float32)
    assert compared(old, rounded).rounded_to == name
    assert compared(old, moved).rounded_to == ""
    assert compared(rounded, rounded * np.float32(0.5)).rounded_to == ""
    assert compared(old[:8], rounded[:8]).rounded_to == ""
