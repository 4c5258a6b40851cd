"""Does the run delete what was predicted, and does its rotation go on around a pin while it trains?"""

import os

import pytest
from typer.testing import CliRunner

from spike.actions.evidence.verify import verify
from spike.casefile import pinning
from spike.cli.app import app
from spike.domain.manifest import Guarantee
from spike.domain.verification import Integrity
from spike.readers.checkpoints import find_checkpoints, inspect_checkpoint, next_deleted
from tests.readers.checkpoints import stacks

pytestmark = [pytest.mark.stack, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def links_only(monkeypatch):
    """Pins are hard links, as for checkpoints of terabytes: the inode is shared with the run."""
    monkeypatch.setattr(pinning, "COPY_BELOW_BYTES", 0)
    monkeypatch.setattr(pinning, "can_clone", lambda *_: False)


class Observer:
    """Called after every save of a run: predicts the next deletion, and notes what is there now."""

    def __init__(self, run, pattern, freeze_at=None):
        self.run, self.freeze_at = run, freeze_at
        run.mkdir()
        (run / "spike.yaml").write_text(f"checkpoints: {pattern}\n")
        self.there = []
        self.predicted = []
        self.frozen = None

    def saved(self, step):
        found = find_checkpoints(self.run)
        self.there.append({os.path.basename(c.path) for c in found})
        self.predicted.append({os.path.basename(path) for r in next_deleted(found) for path in r.paths})
        if step == self.freeze_at:
            self.frozen = CliRunner().invoke(app, ["freeze", "--run", str(self.run), "--step", str(step)])

    def deleted(self):
        """What really went at each save after the first."""
        return [before - after for before, after in zip(self.there, self.there[1:], strict=False)]

    def case(self):
        assert self.frozen is not None
        assert self.frozen.exit_code == 0, self.frozen.output
        (case,) = [p for p in self.run.with_name(f"{self.run.name}.spike").iterdir() if (p / "case.yaml").is_file()]
        return case


def pins_survive(observer, gone):
    """The checkpoint that the run has deleted is in the case, linked, whole and verified."""
    from spike.casefile.case import open_case

    case = open_case(observer.case())
    pins = [case.facts.last_good, *case.facts.earlier, *case.facts.suspect]
    held = {os.path.basename(pin.original): pin for pin in pins if pin is not None}
    assert gone in held, held
    assert held[gone].guarantee == Guarantee.HARD_LINK
    assert not (observer.run / gone).exists(), "the run has deleted it meanwhile"
    assert verify(case.path).integrity is Integrity.INTACT
    assert inspect_checkpoint(case.path / held[gone].pinned).is_whole


def test_the_trainer_deletes_what_was_predicted_and_the_pin_stays(tmp_path):
    transformers = pytest.importorskip("transformers")
    observer = Observer(tmp_path / "out", "checkpoint-{step}", freeze_at=3)

    class Watch(transformers.TrainerCallback):
        def on_save(self, args, state, control, **_more):
            if state.global_step == 4:  # somebody touches the oldest: by time it is the youngest now
                os.utime(observer.run / "checkpoint-3", (2_000_000_000,) * 2)
            observer.saved(state.global_step)

    stacks.hf_trainer(tmp_path, steps=7, limit=2, callbacks=[Watch()])
    assert len(observer.there) == 7
    assert observer.deleted() == observer.predicted[:-1]
    assert sum(map(len, observer.deleted())) == 5
    pins_survive(observer, "checkpoint-2")
    assert "checkpoint-2 will be deleted in the run at its next save (save_total_limit=2" in observer.frozen.output


def test_lightning_deletes_the_worst_as_predicted_and_the_pin_stays(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    observer = Observer(tmp_path / "run", "epoch=0-step={step}.ckpt", freeze_at=4)

    class Watch(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if trainer.global_step:
                observer.saved(trainer.global_step)

    keep = {"save_top_k": 2, "monitor": "score", "mode": "min"}
    stacks.lightning(observer.run, steps=8, keep=keep, callbacks=[Watch()])
    observer.saved(8)
    assert len(observer.there) == 8
    deleted, predicted = observer.deleted(), observer.predicted[:-1]
    assert all(gone <= told for gone, told in zip(deleted, predicted, strict=True)), (deleted, predicted)
    assert sum(map(len, deleted)) == 4
    assert all(not gone or told for gone, told in zip(deleted, predicted, strict=True))
    assert all(len(told) <= 1 for told in predicted)
    (gone,) = deleted[4]
    pins_survive(observer, gone)


def test_lightning_without_a_monitor_deletes_the_one_before(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    observer = Observer(tmp_path / "run", "epoch=0-step={step}.ckpt")

    class Watch(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if trainer.global_step:
                observer.saved(trainer.global_step)

    stacks.lightning(observer.run, steps=4, keep={"save_top_k": 1}, callbacks=[Watch()])
    observer.saved(4)
    assert observer.deleted() == observer.predicted[:-1]
    assert sum(map(len, observer.deleted())) == 3
