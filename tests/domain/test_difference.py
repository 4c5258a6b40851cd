"""Are differences between the last good state and the incident complete, and in an order that helps?"""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spike.domain.difference import (
    DifferenceKind,
    commit_differences,
    key_weight,
    launch_differences,
    mapping_differences,
    matters,
    patch_differences,
    ranked,
)

CONFIG = DifferenceKind.CONFIG


@dataclass(frozen=True)
class Commit:
    commit: str
    time: int
    subject: str
    files: tuple[str, ...]


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_every_key_that_differs_is_listed_once_and_no_other(before, after):
    found = mapping_differences(before.items(), after.items(), CONFIG)
    expected = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert sorted(d.key for d in found) == sorted(expected)


@pytest.mark.parametrize(
    ("important", "label"),
    [
        ("config.learning_rate", "config.run_name"),
        ("optim.betas", "output_dir"),
        ("grad_clip", "wandb.project"),
        ("train.batch_size", "logging_steps"),
        ("max_grad_norm", "save_every"),
        ("model.dtype", "seed_log_path"),
        ("data.tokenizer", "tensorboard_dir"),
        ("attn_implementation", "push_to_hub"),
        ("tensor_parallel_size", "rdzv_port"),
        ("warmup_steps", "max_steps"),
    ],
)
def test_settings_of_the_update_come_before_names_and_paths(important, label):
    found = mapping_differences({important: "1", label: "1"}.items(), {important: "2", label: "2"}.items(), CONFIG)
    assert [d.key for d in found] == [important, label]
    assert matters(found[0])
    assert not matters(found[1])


@given(st.text(max_size=40))
def test_every_key_has_a_weight_between_nothing_and_one(key):
    assert 0 < key_weight(key) <= 1


def test_options_are_compared_whatever_their_order_and_spelling():
    before = "torchrun --nproc-per-node 8 train.py --lr 1e-3 --config a.yaml --fp16"
    after = "torchrun --nproc-per-node=8 train.py --config=a.yaml --lr=3e-3 --bf16"
    found = {d.key: (d.before, d.after) for d in launch_differences(before, after)}
    assert found == {"--lr": ("1e-3", "3e-3"), "--fp16": ("set", ""), "--bf16": ("", "set")}


def test_a_negative_number_is_a_value_and_a_changed_script_is_a_difference():
    found = {d.key for d in launch_differences("python a.py --shift -1", "python b.py --shift -2")}
    assert found == {"word 1", "--shift"}


def test_an_unbalanced_quote_is_compared_word_by_word():
    assert launch_differences('python x.py --name "a', 'python x.py --name "b')


def test_commits_that_touch_code_come_before_documentation():
    found = commit_differences(
        [
            Commit("a" * 40, 1, "Say how to run it", ("README.md", "docs/x.md")),
            Commit("b" * 40, 2, "Mask the loss", ("train/loss.py", "README.md")),
            Commit("c" * 40, 3, "More tests", ("tests/test_loss.py",)),
            Commit("d" * 40, 4, "Longer context", ("cfg.yaml",)),
        ]
    )
    assert [d.commit[0] for d in found if matters(d)] == ["d", "b"]
    assert found[1].files == ("train/loss.py",)
    assert str(found[1]) == "commit bbbbbbbbbb (Mask the loss)"


def test_uncommitted_documentation_does_not_matter_and_code_does():
    found = patch_differences(["README.md", "train.py"])
    assert [(d.key, matters(d)) for d in found] == [("train.py", True), ("README.md", False)]


def test_core_packages_come_before_others_and_an_absent_one_is_a_difference():
    before = {"torch": "2.12.0", "tabulate": "1", "flash-attn": "2.8"}
    after = {"torch": "2.13.0", "tabulate": "2"}
    found = mapping_differences(before.items(), after.items(), DifferenceKind.PACKAGE)
    assert [d.key for d in found] == ["flash-attn", "torch", "tabulate"]
    assert str(found[0]) == "package flash-attn: 2.8 -> absent"


def test_ranking_is_stable_and_by_weight():
    found = mapping_differences({"b": "1", "a": "1", "lr": "1"}.items(), {}.items(), CONFIG)
    assert [d.key for d in ranked(reversed(found))] == ["lr", "a", "b"]
