"""Where do the ranks of a job part, told in a screenful whatever their number? By quantity, value and host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from spike.domain.measured import NotMeasured
from spike.domain.rank_sync import Parting, RankSync, ranges
from spike.report.text import plural, visible

MAX_GROUPS = 3
"""Values told of one parting; the others are counted."""
MAX_PARTINGS = 3
MAX_CHARS = 56
"""Of a list of ranks or hosts: what fits beside the value on 80 columns."""


def rank_lines(sync: RankSync) -> list[str]:
    """At most 20 lines, none of which grows with the number of ranks."""
    head = f"{plural(sync.num_ranks, 'rank')}{_on_hosts(sync.hosts)}, {plural(sync.num_steps, 'step')}"
    if isinstance(sync.agree, NotMeasured):
        return [f"ranks: not compared, because {sync.agree.not_measured}"]
    lines = [f"ranks: {head}: {_verdict(sync)}"]
    for parting in sync.partings[:MAX_PARTINGS]:
        lines += _parting_lines(parting, sync.hosts)
    if len(sync.partings) > MAX_PARTINGS:
        rest = ", ".join(f"{p.quantity} at {p.step}" for p in sync.partings[MAX_PARTINGS:])
        lines.append(f"   and {rest}")
    if sync.missing:
        lines.append(f"   missing: {_who(sync.missing, sync.hosts)}")
    for last, ranks in sync.late[:1]:
        more = sum(len(r) for _, r in sync.late[1:])
        others = f"; {plural(more, 'other rank')} before {sync.last_step}" if more else ""
        lines.append(f"   ends at step {last}, others at {sync.last_step}: {_who(ranks, sync.hosts)}{others}")
    return [*lines, *(f"   note: {visible(note)}" for note in sync.notes[:2])]


def rank_payload(sync: RankSync) -> dict[str, Any]:
    """The same for `--json`, complete; ranks are written as ranges."""
    measured = not isinstance(sync.agree, NotMeasured)
    return {
        "agree": sync.agree if measured else None,
        "reason": sync.agree.not_measured if isinstance(sync.agree, NotMeasured) else "",
        "ranks": sync.num_ranks,
        "steps": sync.num_steps,
        "compared": list(sync.compared),
        "partings": [
            {
                "quantity": p.quantity,
                "step": p.step,
                "steps": p.num_steps,
                "tie": p.is_tie,
                "minority": ranges(p.minority),
                "groups": [
                    {
                        "value": g.value,
                        "num_ranks": len(g.ranks),
                        "ranks": ranges(g.ranks),
                        "hosts": _hosts(g.ranks, sync.hosts),
                    }
                    for g in p.groups
                ],
            }
            for p in sync.partings
        ],
        "missing": ranges(sync.missing),
        "late": [{"last_step": last, "ranks": ranges(ranks)} for last, ranks in sync.late],
        "last_step": sync.last_step,
        "notes": list(sync.notes),
    }


def _verdict(sync: RankSync) -> str:
    if not sync.partings:
        return f"agree in {', '.join(sync.compared)}"
    first = sync.partings[0]
    return f"part at step {first.step}, in the {first.quantity}"


def _parting_lines(parting: Parting, hosts: Mapping[int, str]) -> list[str]:
    tie = "; as many as not, so counting cannot tell which is right" if parting.is_tie else ""
    lasting = "that step only" if parting.num_steps == 1 else f"{parting.num_steps:,} steps from there on"
    lines = [f"   {parting.quantity}, step {parting.step} ({lasting}{tie})"]
    for group in parting.groups[:MAX_GROUPS]:
        who = _who(group.ranks, hosts) if group is not parting.groups[0] or parting.is_tie else ""
        count = plural(len(group.ranks), "rank")
        lines.append(f"      {visible(group.value)[:40]}: {count}{f', {who}' if who else ''}")
    rest = parting.groups[MAX_GROUPS:]
    if rest:
        ranks = sum(len(group.ranks) for group in rest)
        lines[-1] += f"; and {plural(len(rest), 'other value')} on {plural(ranks, 'rank')}"
    return lines


def _who(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """The ranks, and the hosts that they are on where few."""
    listed = _cut(ranges(ranks))
    names = _hosts(ranks, hosts)
    if not names:
        return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"
    whole = _whole_hosts(ranks, hosts)
    on = f"all of {_cut(', '.join(whole))}" if len(whole) == len(names) else _cut(", ".join(names))
    return f"rank{'s' * (len(ranks) > 1)} {listed} on {visible(on)}"


def _hosts(ranks: Sequence[int], hosts: Mapping[int, str]) -> list[str]:
    return sorted({hosts[rank] for rank in ranks if rank in hosts})


def _whole_hosts(ranks: Sequence[int], hosts: Mapping[int, str]) -> list[str]:
    """Hosts all of whose ranks are among these: the machine, not the process, is what they have in common."""
    members: dict[str, int] = defaultdict(int)
    for host in hosts.values():
        members[host] += 1
    found: dict[str, int] = defaultdict(int)
    for rank in ranks:
        if rank in hosts:
            found[hosts[rank]] += 1
    return sorted(host for host, count in found.items() if count == members[host] and count > 1)


def _on_hosts(hosts: Mapping[int, str]) -> str:
    return f" on {plural(len(set(hosts.values())), 'host')}" if hosts else ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1].rpartition(',')[0]}, …"
