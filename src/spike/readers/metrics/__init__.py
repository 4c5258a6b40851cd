"""What did the run's own logs record? Metric files of every stack -> `Signals`."""

from spike.readers.metrics.find import find_metric_files
from spike.readers.metrics.follow import Follower, open_follower
from spike.readers.metrics.read import read_signals

__all__ = ["Follower", "find_metric_files", "open_follower", "read_signals"]
