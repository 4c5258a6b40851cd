"""What did a run run on? Facts about machine, libraries and the variables that steer them."""

from __future__ import annotations

from dataclasses import dataclass

from spike.domain.measured import NotMeasured


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, as nvidia-smi prints it."""

    index: str
    name: str
    uuid: str
    driver: str
    memory_mib: str
    uncorrected_ecc: str
    """Uncorrected ECC errors since the driver was loaded, or "[N/A]"."""


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """The machine that froze the evidence; on a cluster, one of them."""

    host: str
    platform: str
    kernel: str
    cpu: str
    cpu_flags: tuple[str, ...]
    num_cpus: int
    memory_bytes: int
    driver: str | NotMeasured
    devices: tuple[Device, ...] | NotMeasured
    interpreter: str
    """Path of the Python that the packages belong to, and whose it is where that is not the run's."""
    python: str
    packages: tuple[tuple[str, str], ...] | NotMeasured
    variables: tuple[tuple[str, str], ...]
    """Allow-listed environment variables only."""
