"""Do the arrows of the architecture hold? Read from the imports, by ast."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
EDGES = ("readers", "casefile", "lab", "knowledge", "report")
MAY_IMPORT = {
    "cli": {"cli", "actions", "domain", *EDGES},
    "actions": {"actions", "domain", *EDGES},
    **{edge: {edge, "domain"} for edge in EDGES},
    "domain": {"domain"},
}
PURE_STDLIB = frozenset(sys.stdlib_module_names) - {
    "os",
    "pathlib",
    "time",
    "subprocess",
    "socket",
    "shutil",
}


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    for path in sorted((SRC / "spike").rglob("*.py")):
        parts = path.relative_to(SRC / "spike").parts
        if len(parts) > 1:
            yield parts[0], "/".join(parts), ast.parse(path.read_text())


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_every_import_follows_the_arrows() -> None:
    wrong, seen = [], 0
    for layer, name, tree in modules():
        for target in imports(tree):
            if target.startswith("spike.") and layer in MAY_IMPORT:
                seen += 1
                if target.split(".")[1] not in MAY_IMPORT[layer]:
                    wrong.append(f"{name} imports {target}")
            if target.startswith("spike_probe"):
                wrong.append(f"{name} imports the probe")
    assert seen > 200
    assert wrong == []


def test_the_domain_knows_no_file_clock_torch_yaml_or_git() -> None:
    wrong = [
        f"{name} imports {target}"
        for layer, name, tree in modules()
        if layer == "domain"
        for target in imports(tree)
        if target.split(".")[0] not in PURE_STDLIB | {"spike", "numpy"}
    ]
    assert wrong == []


def test_the_domain_never_asks_the_clock() -> None:
    texts = {name: ast.unparse(tree) for layer, name, tree in modules() if layer == "domain"}
    assert len(texts) > 20
    assert [name for name, text in texts.items() if ".now(" in text or ".utcnow(" in text or ".today(" in text] == []


def test_neither_domain_nor_actions_print() -> None:
    calls = [
        name
        for layer, name, tree in modules()
        if layer in ("domain", "actions")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "input", "open")
    ]
    assert calls == []


def test_the_probe_stands_on_the_standard_library_and_torch_alone() -> None:
    wrong = []
    for path in (SRC / "spike_probe").rglob("*.py"):
        for target in imports(ast.parse(path.read_text())):
            if target.split(".")[0] not in {*sys.stdlib_module_names, "torch", "spike_probe", "numpy", "sitecustomize"}:
                wrong.append(f"{path.name} imports {target}")
    assert wrong == []


def test_no_hypothesis_is_named_in_the_source() -> None:
    ids = [
        p.relative_to(SRC.parent / "playbooks").with_suffix("").as_posix()
        for p in SRC.parent.glob("playbooks/*/*.yaml")
    ]
    assert len(ids) >= 12
    texts = {p: p.read_text() for p in (SRC / "spike").rglob("*.py")}
    named = [
        (p.name, i)
        for p, text in texts.items()
        for i in ids
        if f'"{i}"' in text and '"""' not in text[: text.index(i)][-400:]
    ]
    assert named == []


@pytest.mark.parametrize("module", ["torch", "numpy", "duckdb", "altair", "git", "pydantic", "rich"])
def test_the_command_line_starts_without(module: str) -> None:
    code = f"import sys, spike.cli.app; sys.exit({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"import spike.cli.app imports {module}"
