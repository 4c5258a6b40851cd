"""Are ranks that hold different state told apart from ranks that legitimately differ?"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spike.domain.checkpoint import Role, TensorFacts
from spike.domain.measured import NotMeasured
from spike.domain.ranks import agreement_fact, logged_agreement, minority, rank_agreement, replica_agreement
from spike.domain.signals import Series, Signals
from spike.domain.trace import Fingerprint, MicroBatch, ProcessFacts, RankTrace, StepRecord, TensorPrint

LOST = NotMeasured("not asked")


def step(number, rank, **changes):
    record = StepRecord(
        step=number,
        micro_batches=(MicroBatch(2.0 + rank, f"batch-{number}-{rank}", 8, 8, 4),),
        loss=2.0 + rank,
        grad_norm=1.0,
        num_nonfinite_grads=0,
        clip_max_norm=1.0,
        lr=(1e-3 * number,),
        applied=True,
        update_norm=LOST,
        param_norm=LOST,
        loss_scale=1024.0,
        precision="autocast=bfloat16 params=float32",
        rng=(("torch", f"r{number}"),),
        seconds=0.1,
    )
    return dataclasses.replace(record, **changes)


def tensor(name, digest, *, role="parameter", key="", shape=(4,)):
    return TensorPrint(role, name, 0, key, "float32", shape, digest, 1.0, 0)


def trace(rank, steps=(), prints=(), world=2):
    process = ProcessFacts(rank, world, f"host{rank}", "cpu", (), "3.11", (), 1, (), ())
    return RankTrace(process, 0, tuple(steps), tuple(prints))


def replicas(changes, *, ranks=3, names=("w", "b", "n"), steps=(4, 8)):
    """Traces of equal replicas; `changes[(rank, step, name)]` is another digest."""
    traces = []
    for rank in range(ranks):
        prints = []
        for number in steps:
            held = [tensor(n, changes.get((rank, number, n), f"{n}@{number}")) for n in names]
            held += [tensor(n, f"m-{n}@{number}", role="moment", key="exp_avg") for n in names]
            prints.append(Fingerprint(number, tuple(held)))
        traces.append(trace(rank, [step(n, rank) for n in range(1, 9)], prints, world=ranks))
    return traces


def test_replicas_with_their_own_data_and_loss_agree():
    found = rank_agreement(replicas({}))
    assert found.agree is True
    assert "3 ranks agree" in found.statement
    assert "every parameter at steps 4, 8" in found.statement
    assert agreement_fact(found, ("T001",)).value == "yes"


def test_the_first_step_rank_and_tensor_that_differ_are_named():
    found = rank_agreement(replicas({(1, 8, "b"): "other"}))
    assert (found.agree, found.step, found.rank, found.tensor) == (False, 8, 1, "b")
    fact = agreement_fact(found, ("T001",))
    assert (fact.value, fact.step, fact.where.rank, fact.where.tensor) == ("no", 8, 1, "b")
    assert "ranks 0, 2" in fact.statement


def test_of_two_ranks_neither_is_called_right():
    found = rank_agreement(replicas({(1, 4, "w"): "other"}, ranks=2))
    assert found.agree is False
    assert "cannot tell which is right" in found.statement


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 3), st.sampled_from(["w", "b", "n"]))
def test_the_order_of_the_traces_does_not_matter(order, culprit, name):
    traces = replicas({(culprit, 8, name): "other"}, ranks=4)
    found = rank_agreement([traces[i] for i in order])
    assert (found.rank, found.tensor, found.step) == (culprit, name, 8)


@pytest.mark.parametrize(
    ("change", "quantity"),
    [({"lr": (9.0,)}, "learning rate"), ({"applied": False}, "applied"), ({"loss_scale": 2.0}, "loss scale")],
)
def test_numbers_that_must_be_equal_are_compared_at_every_step(change, quantity):
    traces = [trace(r, [step(n, r, **(change if (r, n) == (1, 3) else {})) for n in range(1, 6)]) for r in (0, 1)]
    found = rank_agreement(traces)
    assert (found.agree, found.step) == (False, 3)
    assert found.differences[0].quantity == quantity


def test_nan_learning_rates_on_every_rank_are_equal():
    traces = [trace(r, [step(1, r, lr=(float("nan"),))]) for r in (0, 1)]
    assert rank_agreement(traces).agree is True


def test_shards_are_not_called_a_disagreement():
    traces = replicas({(r, s, n): f"{r}{s}{n}" for r in range(2) for s in (4, 8) for n in "wbn"}, ranks=2)
    found = rank_agreement(traces)
    assert found.agree is True
    assert "parameters were not compared" in found.statement
    assert "sharded, or have drifted" in found.statement


def test_drift_of_every_parameter_is_found_where_a_checkpoint_shows_that_they_are_replicas():
    traces = replicas({(r, s, n): f"{r}{s}{n}" for r in range(2) for s in (4, 8) for n in "wbn"}, ranks=2)
    found = rank_agreement(traces, full_shapes={"w": (4,), "b": (4,), "n": (4,)})
    assert (found.agree, found.step) == (False, 4)
    found = rank_agreement(traces, full_shapes={"w": (8,), "b": (8,), "n": (8,)})
    assert found.agree is True


def test_moments_are_compared_only_for_replicated_parameters():
    traces = replicas({}, ranks=2)
    first = traces[1].fingerprints[0]
    changed = [dataclasses.replace(t, digest="x") if (t.role, t.name) == ("moment", "w") else t for t in first.tensors]
    traces[1] = dataclasses.replace(
        traces[1], fingerprints=(dataclasses.replace(first, tensors=tuple(changed)), traces[1].fingerprints[1])
    )
    found = rank_agreement(traces)
    assert (found.agree, found.step, found.differences[0].quantity) == (False, 4, "moment")


def test_missing_ranks_and_ranks_that_stopped_early_are_reported():
    traces = [trace(0, [step(n, 0) for n in (1, 2, 3)], world=4), trace(2, [step(n, 2) for n in (1, 2)], world=4)]
    found = rank_agreement(traces)
    assert found.missing == (1, 3)
    assert "ranks 1, 3 left no trace" in found.statement
    assert any("rank 2 stopped at step 2" in note for note in found.notes)


def test_one_trace_is_not_measured_and_never_agreement():
    for traces in ([], [trace(0, [step(1, 0)])]):
        found = rank_agreement(traces)
        assert isinstance(found.agree, NotMeasured)
        assert agreement_fact(found, ()).value == "not-measured"


def test_traces_without_a_common_step_are_not_measured():
    found = rank_agreement([trace(0, [step(1, 0)]), trace(1, [step(9, 1)])])
    assert isinstance(found.agree, NotMeasured)


def test_the_same_batches_on_every_rank_are_worth_a_note_and_no_disagreement():
    same = (MicroBatch(2.0, "same", 8, 8, 4),)
    traces = [trace(r, [step(n, r, micro_batches=same) for n in (1, 2, 3)]) for r in (0, 1)]
    found = rank_agreement(traces)
    assert found.agree is True
    assert any("same batches" in note for note in found.notes)


def test_generators_that_part_are_worth_a_note():
    rng = {(r, n): (("torch", f"{n}-{r if n > 2 else 'same'}"),) for r in (0, 1) for n in (1, 2, 3)}
    traces = [trace(r, [step(n, r, rng=rng[r, n]) for n in (1, 2, 3)]) for r in (0, 1)]
    assert any("part at step 3" in note for note in rank_agreement(traces).notes)


def test_the_first_rank_with_non_finite_values_is_noted():
    traces = [trace(r, [step(n, r, num_nonfinite_grads=int((r, n) == (1, 2))) for n in (1, 2, 3)]) for r in (0, 1)]
    assert any("step 2, on rank 1 only" in note for note in rank_agreement(traces).notes)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.integers(0, 20), st.sampled_from("ab"), min_size=1))
def test_the_minority_is_never_larger_than_the_majority(values):
    few = minority(values)
    assert len(few) <= len(values) / 2 or len(set(values.values())) > 2
    assert all(values[rank] == values[few[0]] for rank in few)


# -- files and logs -----------------------------------------------------------------------------------------------


def stored(rank, **digests):
    return [
        TensorFacts(Role.PARAMETER, n.replace("__", "."), "", "float32", (4,), f"rank{rank}.pt", d, 0, 1.0, 1.0, 0, 0)
        for n, d in digests.items()
    ]


def test_per_rank_files_of_replicas_are_compared_by_content():
    same = {rank: stored(rank, w="1", b="2") for rank in range(3)}
    assert replica_agreement(same, step=5).agree is True
    found = replica_agreement({**same, 2: stored(2, w="1", b="3")}, step=5)
    assert (found.agree, found.step, found.rank, found.tensor) == (False, 5, 2, "b")


def test_per_rank_files_of_shards_are_not_measured():
    files = {rank: stored(rank, w=f"{rank}", b=f"b{rank}") for rank in range(2)}
    assert isinstance(replica_agreement(files, step=5).agree, NotMeasured)


def test_tensor_parallel_files_must_agree_in_their_normalisation_weights():
    files = {r: stored(r, input_layernorm__weight="1", attention__weight=f"{r}") for r in range(2)}
    assert replica_agreement(files, step=5, only_norms=True).agree is True
    files[1] = stored(1, input_layernorm__weight="2", attention__weight="1")
    found = replica_agreement(files, step=5, only_norms=True)
    assert (found.agree, found.tensor) == (False, "input_layernorm.weight")


def series(name, rank, values):
    return Series(name, np.arange(1, len(values) + 1), np.asarray(values, dtype=np.float64), rank)


def test_learning_rates_that_ranks_logged_differently_are_a_disagreement():
    signals = Signals((series("lr", 0, [1, 2, 3]), series("lr", 1, [1, 2, 4]), series("loss", 0, [1, 1, 1])))
    found = logged_agreement(signals)
    assert (found.agree, found.step, found.rank) == (False, 3, 1)
    same = Signals((series("lr", 0, [1, 2]), series("lr", 1, [1, 2]), series("loss", 0, [1]), series("loss", 1, [9])))
    assert logged_agreement(same).agree is True
    assert isinstance(logged_agreement(Signals((series("loss", 0, [1]), series("loss", 1, [2])))).agree, NotMeasured)
