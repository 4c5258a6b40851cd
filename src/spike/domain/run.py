"""What does spike know about the operator's run? What `spike.yaml` says, with every path absolute."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one trial, so that a hanging command cannot hold an incident."""

    trial_minutes: float = 60.0
    """Wall-clock limit of one trial; it is ended (whole process group) and `untestable` after that."""
    repeats: int = 2
    """How often the unchanged trial is repeated to measure the noise floor."""
    max_trials: int = 24
    """A bisect stops, undetermined, after this many trials."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What an hour costs, for the impact section of the postmortem."""

    gpu_hour: float = 0.0
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Run:
    """One training job as the operator described it. Paths are absolute, POSIX, already resolved."""

    directory: str
    """Where spike.yaml lies; the directory that no trial may change."""
    launch: str = ""
    """The training command, with {checkpoint}, {step} and {workdir}; empty where only logs are known."""
    checkpoints: str = ""
    """Pattern relative to `directory` with {step}, or an address (`s3://bucket/step-{step}`); empty: by layout."""
    metrics: tuple[str, ...] = ()
    """Files or directories relative to `directory`, or addresses; empty: found by themselves."""
    code: str = ""
    """The directory of the training code (a git work tree where there is one); empty: `directory`."""
    cwd: str = ""
    """Where the launch command is started; empty: `directory`."""
    cases: str = ""
    """Where cases are kept; empty: `<directory>.spike`."""
    holdout: str = ""
    """Command that prints one held-out number for {checkpoint}; empty: not measured."""
    devices: int = 1
    """World size of the run; 0 where unknown."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables added to the environment of the launch command."""
    knobs: tuple[tuple[str, str], ...] = ()
    """Extra arguments by intervention name; `{value}` is filled in."""
    columns: tuple[tuple[str, str], ...] = ()
    """Names of metric columns that spike cannot guess: canonical name -> column."""
    detect: tuple[tuple[str, float], ...] = ()
    """Changed detector constants, by name."""
    hardware: tuple[str, ...] = ()
    """Files with hardware events (dmesg, nvidia-smi -q -x, sacct), relative to `directory`."""
    playbooks: str = ""
    """An operator's own directory of playbooks, read in addition to the shipped ones."""
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=Prices)

    def knob(self, intervention: str, factor: str = "") -> str | None:
        """The command's own way to make this change, if the operator named one.

        A knob is named for the intervention ("full-precision") or for the factor that it changes ("learning-rate").
        """
        named = dict(self.knobs)
        return named.get(intervention) or named.get(factor.replace(" ", "-"))
