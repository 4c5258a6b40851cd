"""Are the files that the real packages write read with every step, every digit, and every NaN and infinity?"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from spike.cli.app import app
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, SKIPPED, Signals
from spike.lab.staging import probe_environment, stage_probe
from spike.readers.metrics import read_signals

from .written import DEEPSPEED, INF_AT, MINUS_AT, MLFLOW, NAN_AT, PROBED, STEPS, WANDB, course, program

pytestmark = pytest.mark.stack

LOSSES, NORMS = course()
FLOAT32 = 2.0**-23


def quiet_torch() -> Any:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch


def run(body: str, directory: Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """A package in a process of its own; what it printed."""
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **(environment or {})}
    command = [sys.executable, "-c", program(body), *arguments]
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def assert_same(found: NDArray[np.float64], expected: list[float], within: float) -> None:
    """The same values; what is not finite is the same kind of it."""
    wanted = np.asarray(expected)
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=within, atol=0.0)
    np.testing.assert_array_equal(found[~finite], wanted[~finite])


def assert_course(directory: Path, *, first: int, within: float | None = None, losses: list[float] = LOSSES) -> Signals:
    """Loss and gradient norm are the course, row for row, from step `first` on; `spike detect` tells of its NaN.

    `within`: relative error that the format's own numbers have; None: half a unit of the last digit that it keeps.
    """
    signals = read_signals([directory], base=directory)
    for name, wanted in ((LOSS, losses), (GRAD_NORM, NORMS)):
        series = signals.get(name)
        assert series is not None, signals.names()
        assert series.steps.tolist() == list(range(first, first + STEPS))
        assert_same(series.values, wanted, within if within is not None else 5 * 10.0**-series.digits)
    told = CliRunner().invoke(app, ["detect", str(directory)])
    assert told.exit_code == 1, told.output
    assert f"non-finite values at step {first + NAN_AT}" in told.output
    assert "damaged" not in told.output
    return signals


@pytest.mark.parametrize("new_style", [False, True])
def test_tensorboard_by_the_writer_of_torch(tmp_path: Path, new_style: bool) -> None:
    pytest.importorskip("tensorboard")
    quiet_torch()
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step, (loss, norm) in enumerate(zip(LOSSES, NORMS, strict=True)):
            writer.add_scalar("train/loss", loss, step, new_style=new_style)
            writer.add_scalar("train/grad_norm", norm, step, new_style=new_style)
    assert_course(tmp_path, first=0, within=FLOAT32)


def test_wandb_offline_whose_service_is_gone_afterwards(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    own = {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }
    run(WANDB, tmp_path, environment=own)
    signals = assert_course(tmp_path, first=0, within=0.0)
    assert [s.format for s in signals.sources] == ["wandb"]
    assert services_of(tmp_path) == []


def services_of(directory: Path) -> list[int]:
    """Processes that this run started and left behind, told by its directory in their environment."""
    for _ in range(50):
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"WANDB_DIR={directory}".encode() in (place / "environ").read_bytes():
                    found.append(int(place.name))
        if not found:
            return []
        time.sleep(0.1)
    return found


def test_the_database_and_the_file_store_of_mlflow(tmp_path: Path) -> None:
    for needed in ("mlflow", "sqlalchemy", "alembic"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    database, files = tmp_path / "database", tmp_path / "files"
    database.mkdir()
    own = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    both = MLFLOW.replace("sys.argv[1]", "uri").replace("\n", "\n    ")
    body = "import mlflow\nfor uri in sys.argv[1:]:" + both.replace("import mlflow", "pass")
    run(body, tmp_path, f"sqlite:///{database / 'mlflow.db'}", (files / "mlruns").as_uri(), environment=own)
    signals = assert_course(database, first=0, within=0.0)
    assert [s.format for s in signals.sources] == ["mlflow-sqlite"]
    signals = assert_course(files, first=0, within=0.0)
    assert {s.format for s in signals.sources} == {"mlflow-files"}


def test_the_state_and_the_console_of_the_trainer_of_transformers(tmp_path: Path) -> None:
    torch = quiet_torch()
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(()))
            self.seen = -1

        def forward(self, x: Any) -> dict[str, Any]:
            self.seen += 1
            return {"loss": LOSSES[self.seen] + (self.w - self.w.detach()) * NORMS[self.seen] + 0 * x.sum()}

    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "state"),
            max_steps=STEPS,
            per_device_train_batch_size=1,
            logging_steps=1,
            logging_nan_inf_filter=False,
            max_grad_norm=1e9,
            save_steps=STEPS,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        rows = [{"x": torch.zeros(1)} for _ in range(STEPS)]
        transformers.Trainer(model=Model(), args=arguments, train_dataset=rows).train()
    console = tmp_path / "console" / "train.log"
    console.parent.mkdir()
    console.write_text(printed.getvalue())
    # Its running sum is set back by subtracting it from itself: after one NaN every logged loss is NaN.
    poisoned = LOSSES[:NAN_AT] + [math.nan] * (STEPS - NAN_AT)
    state = assert_course(tmp_path / "state", first=1, within=1e-6, losses=poisoned)
    assert [s.format for s in state.sources] == ["hf-trainer-state"]
    said = assert_course(console.parent, first=1, losses=poisoned)
    assert [s.format for s in said.sources] == ["console"]
    rates = state.get(LEARNING_RATE)
    assert rates is not None
    np.testing.assert_allclose(rates.values, 5e-5 * (1 - np.arange(STEPS) / STEPS), rtol=1e-6)


@pytest.mark.parametrize("logger", ["csv", "tensorboard"])
def test_the_loggers_of_lightning(tmp_path: Path, logger: str) -> None:
    torch = quiet_torch()
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch import loggers

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(()))

        def training_step(self, _batch: Any, index: int) -> Any:
            loss = LOSSES[index] + (self.w - self.w.detach()) * NORMS[index]
            self.log("train/loss", loss)
            self.log("grad_norm", NORMS[index])
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    chosen = {"csv": loggers.CSVLogger, "tensorboard": loggers.TensorBoardLogger}[logger](str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=1,
            logger=chosen,
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            accelerator="cpu",
        )
        loader = torch.utils.data.DataLoader(torch.zeros(STEPS, 1), batch_size=1)
        trainer.fit(Module(), loader)
    chosen.finalize("success")
    signals = assert_course(tmp_path, first=0, within=FLOAT32)
    assert {s.format for s in signals.sources} == {logger}


def test_the_console_and_the_monitor_of_deepspeed_with_a_real_overflow(tmp_path: Path) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29537"}
    printed = run(DEEPSPEED, tmp_path, str(tmp_path / "monitor"), environment={**alone, "DS_ACCELERATOR": "cpu"})
    console = tmp_path / "console" / "train.log"
    console.parent.mkdir()
    console.write_text(printed)
    assert printed.count("OVERFLOW!") == 1, printed[-2000:]
    signals = read_signals([console.parent], base=console.parent)
    rate, skipped, scale = (signals.get(name) for name in (LEARNING_RATE, SKIPPED, LOSS_SCALE))
    assert rate is not None
    assert skipped is not None
    assert scale is not None
    assert rate.steps.tolist() == list(range(31))
    assert rate.values.tolist() == [0.001] * 31
    assert skipped.at(21) == 1.0
    assert scale.at(21) == 2.0**11
    told = CliRunner().invoke(app, ["detect", str(console.parent)])
    assert told.exit_code == 0, told.output
    monitored = read_signals([tmp_path / "monitor"], base=tmp_path).get(LOSS_SCALE)
    assert monitored is not None
    assert monitored.values.tolist() == [2.0**12] * 20 + [2.0**11] * 10


def test_the_trace_of_the_probe(tmp_path: Path) -> None:
    quiet_torch()
    plan = tmp_path / "plan.json"
    out = tmp_path / "out"
    plan.write_text(f'{{"schema": "spike.plan/1", "trial": "record", "out": "{out}", "first_step": 0}}')
    own = probe_environment(stage_probe(tmp_path / "stage"), plan, {})
    run(PROBED, tmp_path, environment=own)
    signals = assert_course(out, first=1, within=FLOAT32)
    assert [s.format for s in signals.sources] == ["spike-trace"]
    assert signals.get(LEARNING_RATE).values.tolist() == [0.5] * STEPS  # type: ignore[union-attr]


def test_the_ranks_of_torchtitan(tmp_path: Path) -> None:
    logging = pytest.importorskip("torchtitan.observability.structured_logger")
    logging.init_structured_logger(source="training", output_dir=str(tmp_path))
    for step, (loss, norm) in enumerate(zip(LOSSES, NORMS, strict=True), start=1):
        logging.set_step(step)
        with logging.log_trace_span("fwd_bwd"):
            pass
        logging.log_trace_scalar({"loss": loss, "grad_norm": norm})
    assert_course(tmp_path, first=1)


def test_the_course_holds_what_no_number_can() -> None:
    assert math.isnan(LOSSES[NAN_AT])
    assert (LOSSES[INF_AT], LOSSES[MINUS_AT]) == (math.inf, -math.inf)
    assert sum(not math.isfinite(loss) for loss in LOSSES) == 3
