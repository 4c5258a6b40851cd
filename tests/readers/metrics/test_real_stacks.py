"""Do the files that real stacks write read as what really happened?"""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spike.domain.detect import detect
from spike.domain.incident import Kind, Severity
from spike.readers.metrics import read_signals

pytestmark = pytest.mark.stack

BAD_STEP = 24
STEPS = 30


def quiet_torch() -> Any:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="module")
def trainer_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A transformers run whose parameters become NaN at BAD_STEP, and what it printed."""
    torch = quiet_torch()
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("trainer")

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 1)
            self.seen = 0

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            self.seen += 1
            loss = ((self.linear(x).squeeze(-1) - labels) ** 2).mean() + 1.0
            return {"loss": loss * (float("nan") if self.seen >= BAD_STEP else 1.0)}

    rows = [{"x": torch.randn(8), "labels": torch.randn(())} for _ in range(4 * STEPS)]
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        arguments = transformers.TrainingArguments(
            output_dir=str(directory),
            per_device_train_batch_size=4,
            max_steps=STEPS,
            logging_steps=1,
            save_steps=STEPS,
            learning_rate=1e-3,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        transformers.Trainer(model=Model(), args=arguments, train_dataset=rows).train()
    return directory, printed.getvalue()


def test_the_nan_that_the_trainer_hides_is_an_incident_at_its_step(trainer_run: tuple[Path, str]) -> None:
    directory, _ = trainer_run
    signals = read_signals([directory], base=directory)
    loss = signals.get("loss")
    assert loss is not None
    assert np.isfinite(loss.values).all()
    assert loss.at(BAD_STEP) == 0.0
    (incident,) = detect(signals).incidents
    assert (incident.kind, incident.severity, incident.onset_step) == (Kind.NON_FINITE, Severity.FATAL, BAD_STEP)


def test_the_console_of_the_trainer_says_the_same(trainer_run: tuple[Path, str], tmp_path: Path) -> None:
    _, printed = trainer_run
    log = tmp_path / "console.log"
    log.write_text(printed)
    signals = read_signals([log], base=tmp_path)
    (incident,) = detect(signals).incidents
    assert (incident.kind, incident.onset_step) == (Kind.NON_FINITE, BAD_STEP)
    loss = signals.get("loss")
    assert loss is not None
    assert loss.steps.tolist() == list(range(1, STEPS + 1))


def test_the_csv_of_lightning_keeps_training_and_validation_apart(tmp_path: Path) -> None:
    torch = quiet_torch()
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _index: int) -> Any:
            loss = self.linear(batch[0]).pow(2).mean()
            self.log("train/loss", loss)
            return loss

        def validation_step(self, batch: Any, _index: int) -> None:
            self.log("val/loss", self.linear(batch[0]).pow(2).mean() + 100.0)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=2,
            logger=CSVLogger(str(tmp_path)),
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            accelerator="cpu",
        )
        trainer.fit(Module(), loader, loader)
    signals = read_signals([tmp_path], base=tmp_path)
    loss, held_out = signals.get("loss"), signals.get("eval_loss")
    assert loss is not None
    assert held_out is not None
    assert loss.steps.tolist() == list(range(20))
    assert loss.values.max() < 100.0 < held_out.values.min()


def test_the_events_of_a_real_writer_are_read(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    quiet_torch()
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    for step in range(20):
        writer.add_scalar("train/loss", float("nan") if step == 7 else 3.0 - step / 10, step)
    writer.close()
    loss = read_signals([tmp_path], base=tmp_path).get("loss")
    assert loss is not None
    assert loss.steps.tolist() == list(range(20))
    assert np.flatnonzero(np.isnan(loss.values)).tolist() == [7]
