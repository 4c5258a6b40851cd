from dataclasses import replace

import pytest

from spike.domain.factors import differences, identical_results, observe, uncontrolled, undeclared
from spike.domain.trace import Effect, Fingerprint
from spike.domain.trial import Factor
from tests.domain.trial_facts import spec, step, tensor, trace, trial_run


def _observed(*steps, **more):  # type: ignore[no-untyped-def]
    return observe(trial_run(trace(list(steps) or [step(11), step(12)], **more)))


def test_equal_trials_differ_in_no_factor_although_their_losses_differ() -> None:
    assert differences(_observed(step(11)), _observed(step(11, loss=9.0, grad_norm=4.0))) == ()


@pytest.mark.parametrize(
    ("changed", "factor"),
    [
        (step(12, lr=5e-4), Factor.LEARNING_RATE),
        (step(12, batch="another batch digest"), Factor.BATCH),
        (step(12, clip=None), Factor.CLIPPING),
        (step(12, precision="autocast=bfloat16 params=float32"), Factor.PRECISION),
    ],
)
def test_each_changed_input_is_seen_as_its_own_factor_with_its_place(changed, factor) -> None:  # type: ignore[no-untyped-def]
    found = differences(_observed(), _observed(step(11), changed))
    assert [d.factor for d in found] == [factor]
    assert found[0].where == "step 12 rank 0"


def test_swapped_batches_are_another_order_not_other_content() -> None:
    left = _observed(step(11, batch="aaaa"), step(12, batch="bbbb"))
    right = _observed(step(11, batch="bbbb"), step(12, batch="aaaa"))
    assert [d.factor for d in differences(left, right)] == [Factor.DATA_ORDER]


def test_a_second_changed_factor_is_undeclared() -> None:
    found = differences(_observed(), _observed(step(11), step(12, lr=5e-4, clip=None)))
    assert [d.factor for d in undeclared(Factor.LEARNING_RATE, found)] == [Factor.CLIPPING]
    assert undeclared(Factor.LEARNING_RATE, found[:1]) == ()


def test_arguments_may_differ_only_where_the_command_itself_made_the_change() -> None:
    found = differences(_observed(), _observed(argv=("train.py", "--dtype", "fp32")))
    assert [d.factor for d in found] == [Factor.CONFIG]
    assert undeclared(Factor.PRECISION, found)
    assert not undeclared(Factor.PRECISION, found, by_knob=True)


def test_another_checkpoint_may_bring_its_own_moments() -> None:
    def loaded(digest: str):  # type: ignore[no-untyped-def]
        tensors = (tensor("w", digest), tensor("w", digest + "m", role="moment", key="exp_avg"))
        return _observed(fingerprints=[Fingerprint(10, tensors)])

    found = differences(loaded("a"), loaded("b"))
    assert {d.factor for d in found} == {Factor.CHECKPOINT, Factor.OPTIMIZER_STATE}
    assert undeclared(Factor.CHECKPOINT, found) == ()
    assert undeclared(Factor.OPTIMIZER_STATE, found)


def test_a_withheld_update_counts_as_a_change_of_the_batch() -> None:
    effect = Effect(12, "skip-batch", "params-delta", "0.01", "0", True)
    found = differences(_observed(), _observed(effects=[effect]))
    assert [d.factor for d in found] == [Factor.BATCH]


def test_another_commit_is_a_change_of_code_whatever_it_brings() -> None:
    other = observe(trial_run(trace([step(11, lr=5e-4)]), of=spec(commit="abc")))
    found = differences(observe(trial_run(trace([step(11)]))), other)
    assert Factor.CODE in {d.factor for d in found}
    assert undeclared(Factor.CODE, found) == ()


def test_results_are_identical_only_when_loss_and_gradients_are() -> None:
    assert identical_results(trial_run(trace([step(11)])), trial_run(trace([step(11)])))
    assert not identical_results(trial_run(trace([step(11)])), trial_run(trace([step(11, grad_norm=1.1)])))


def test_a_generator_that_the_run_never_seeds_is_not_held_against_a_trial() -> None:
    def seeded(python: str, torch: str):  # type: ignore[no-untyped-def]
        return _observed(replace(step(11), rng=(("python", python), ("torch", torch))))

    baseline, repeat = seeded("p1", "t"), seeded("p2", "t")
    loose = uncontrolled(baseline, [repeat])
    assert loose == {(Factor.RNG, "python")}
    assert differences(baseline, seeded("p3", "t"), loose) == ()
    assert [d.factor for d in differences(baseline, seeded("p3", "other"), loose)] == [Factor.RNG]


def test_a_batch_that_differs_between_unchanged_trials_stays_a_difference() -> None:
    baseline, repeat = _observed(step(11, batch="a")), _observed(step(11, batch="b"))
    loose = uncontrolled(baseline, [repeat])
    assert [d.factor for d in differences(baseline, repeat, loose)] == [Factor.BATCH]


def test_a_variable_that_only_one_trial_has_is_a_difference_of_its_kind() -> None:
    def with_env(*env: tuple[str, str]):  # type: ignore[no-untyped-def]
        bare = trace([step(11)])
        return observe(trial_run(replace(bare, process=replace(bare.process, env=env))))

    kernels = differences(with_env(), with_env(("CUBLAS_WORKSPACE_CONFIG", ":4096:8")))
    other = differences(with_env(), with_env(("OMP_NUM_THREADS", "2")))
    assert [d.factor for d in kernels] == [Factor.KERNELS]
    assert [d.factor for d in other] == [Factor.ENVIRONMENT]
