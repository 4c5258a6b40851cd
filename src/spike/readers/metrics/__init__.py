"""What did the run's own logs record? Metric files of every stack -> `Signals`."""

from spike.readers.metrics.find import find_metric_files
from spike.readers.metrics.read import read_signals

__all__ = ["find_metric_files", "read_signals"]
