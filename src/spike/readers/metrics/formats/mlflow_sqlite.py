"""What does an MLflow database say? The metrics of its newest run, with NaN and infinities put back.

MLflow stores a NaN as 0.0 with is_nan 1, and infinities as the largest double.
"""

from __future__ import annotations

import math
import sqlite3
import sys
from pathlib import Path

from spike.readers.metrics.contract import Parsed, Table
from spike.readers.metrics.numbers import as_step

_MAGIC = b"SQLite format 3\0"


class MlflowDatabase:
    """mlflow.db, opened read-only."""

    format = "mlflow-sqlite"
    order = 14

    def sniff(self, path: Path, head: bytes) -> bool:
        """A SQLite file with MLflow's metrics table."""
        if not head.startswith(_MAGIC):
            return False
        try:
            with _opened(path) as connection:
                names = {row[1] for row in connection.execute("PRAGMA table_info(metrics)")}
        except sqlite3.Error:
            return False
        return {"key", "value", "run_uuid", "step", "is_nan"} <= names

    def read(self, path: Path) -> Parsed:
        """The run that logged last; other runs in the database are named in a note."""
        table = Table(self.format)
        try:
            with _opened(path) as connection:
                self._fill(table, connection)
        except sqlite3.Error as error:
            table.damage(0, 0, f"the database cannot be read: {error}")
        return table.parsed()

    def _fill(self, table: Table, connection: sqlite3.Connection) -> None:
        runs = connection.execute(
            "SELECT run_uuid, max(timestamp) FROM metrics GROUP BY run_uuid ORDER BY 2 DESC"
        ).fetchall()
        if not runs:
            table.damage(0, 0, "an MLflow database without metrics: nothing was logged", benign=True)
            return
        newest = runs[0][0]
        if len(runs) > 1:
            table.notes.append(("other-runs", f"{len(runs) - 1} other runs are in the database; read was {newest}"))
        rows = connection.execute(
            "SELECT key, value, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step", (newest,)
        )
        for key, value, step, is_nan in rows:
            count = as_step(step)
            if count is None:
                table.damage(0, 0, f"a value of {str(key)[:40]!r} whose step is {step!r:.40}: it is not read")
            else:
                table.add(count, {str(key): _value(float(value), bool(is_nan))})


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _value(value: float, is_nan: bool) -> float:
    if is_nan:
        return math.nan
    if abs(value) >= sys.float_info.max:
        return math.copysign(math.inf, value)
    return value


READER = MlflowDatabase()
