"""Is only what the trial itself logged collected?"""

from __future__ import annotations

from pathlib import Path

from spike.lab.guards.collect import is_wanted, written_files
from spike.lab.logged import collect_logs


def _collect(tmp_path: Path, name: str, real: str | None, written: str) -> Path:
    run, view = tmp_path / "run", tmp_path / "view"
    for directory in (run, view):
        directory.mkdir()
    if real is not None:
        (run / name).write_text(real)
    (view / name).write_text(written)
    collect_logs([(view / name, str(run / name))], str(run), tmp_path / "metrics")
    return tmp_path / "metrics" / name


def test_of_an_appended_log_only_the_new_lines_are_kept(tmp_path: Path) -> None:
    assert _collect(tmp_path, "log.jsonl", "1\n2\n", "1\n2\n3\n").read_text() == "3\n"


def test_an_appended_table_keeps_its_header(tmp_path: Path) -> None:
    assert _collect(tmp_path, "m.csv", "step,loss\n1,2\n", "step,loss\n1,2\n3,4\n").read_text() == "step,loss\n3,4\n"


def test_a_rewritten_log_is_kept_whole(tmp_path: Path) -> None:
    assert _collect(tmp_path, "log.jsonl", "1\n2\n", "9\n2\n3\n").read_text() == "9\n2\n3\n"


def test_a_shortened_log_is_kept_whole(tmp_path: Path) -> None:
    assert _collect(tmp_path, "log.jsonl", "1\n2\n", "1\n").read_text() == "1\n"


def test_an_untouched_log_is_not_kept(tmp_path: Path) -> None:
    assert not _collect(tmp_path, "log.jsonl", "1\n", "1\n").exists()


def test_a_log_beside_the_run_does_not_collide_with_one_inside(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "written"
    file.write_text("x\n")
    pairs = [(file, str(run / "a.log")), (file, "/elsewhere/a.log"), (file, str(run / "stdout.log"))]
    collect_logs(pairs, str(run), tmp_path / "metrics")
    kept = sorted(str(p.relative_to(tmp_path / "metrics")) for p in (tmp_path / "metrics").rglob("*.log"))
    assert kept == ["a.log", "outside/elsewhere/a.log", "run-stdout.log"]


def test_metric_files_are_known_by_name_or_by_place(tmp_path: Path) -> None:
    assert is_wanted("/run/x/events.out.tfevents.17.host", ("*tfevents*",), ())
    assert is_wanted("/run/logs/deep/anything.bin", (), ("/run/logs",))
    assert not is_wanted("/run/logs-old/anything.bin", (), ("/run/logs",))
    for name in ("a.jsonl", "b.bin", "logs/c.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    found = [real for _, real in written_files(tmp_path, "/run", ("*.jsonl",), ("/run/logs",))]
    assert found == ["/run/a.jsonl", "/run/logs/c.bin"]
    assert [real for _, real in written_files(tmp_path, "/", ("*.jsonl",), ())] == ["/a.jsonl"]
