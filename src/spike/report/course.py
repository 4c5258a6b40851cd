"""When did what happen, when was it noticed, and what did it cost?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from spike.domain.errors import ExitCode
from spike.domain.incident import Incident
from spike.domain.measured import NotMeasured
from spike.domain.signals import LOSS
from spike.domain.timeline import Act, first_word, last_logged_step, moments, seconds_between
from spike.report.document import Block, Figure, Section, Words, bullets, code, fixed, inline, link, paragraph, table
from spike.report.facts import CASE, JOURNAL, SIGNALS, PostmortemFacts
from spike.report.phrases import limit_value, signal_words, usual_value
from spike.report.signal_figure import drawn_series
from spike.report.sources import prose, sources
from spike.report.text import device_hours, duration, name, number, plural, sentence, visible, when

Row: TypeAlias = tuple[Words, Words, Words]

ENDINGS = {
    ExitCode.PASSED: "passed",
    ExitCode.ANSWER_NO: "the answer is no",
    ExitCode.USAGE: "not possible as typed",
    ExitCode.UNREADABLE: "input unreadable",
    ExitCode.INCONCLUSIVE: "inconclusive",
    ExitCode.BUG: "failed inside spike",
}


def impact_section(facts: PostmortemFacts) -> Section:
    """The cost; what cannot be counted says which fact is missing."""
    return Section("impact", "Impact", (table(("What", "How much", "How it is known"), _costs(facts)),))


def _costs(facts: PostmortemFacts) -> Iterator[Row]:
    impact, prices = facts.impact, facts.case.run.prices
    timed = inline(f"{impact.step_time.how}, ", code(impact.step_time.source, impact.step_time.source))
    devices = f"wall time on {plural(facts.case.run.devices, 'device')}"
    price = f"{number(prices.gpu_hour)} {visible(prices.currency)} for a GPU-hour"
    steps = link_steps(facts)
    yield _cost("steps to train again", impact.steps, lambda v: plural(int(v), "step"), steps, SIGNALS)
    yield _cost("their wall time", impact.hours, lambda v: duration(v * 3600), timed, impact.step_time.source)
    yield _cost("GPU-hours lost", impact.device_hours, device_hours, inline(devices), CASE)
    yield _cost("their price", impact.price, lambda v: f"{v:,.2f} {visible(prices.currency)}", inline(price), CASE)
    if facts.trials:
        spent = f"{plural(len(facts.trials), 'trial')}, {duration(impact.trial_hours * 3600)} of wall time"
        yield _cost("GPU-hours of the investigation", impact.trial_device_hours, device_hours, inline(spent), "")


def link_steps(facts: PostmortemFacts) -> Words:
    """From which checkpoint to which logged step the lost steps run."""
    good, last = facts.case.last_good, last_logged_step(facts.signals)
    if good is None or last is None:
        return "–"
    return inline("from the last good checkpoint, ", link(f"step {good.step:,}", good.pinned), f", to step {last:,}")


def _cost(what: str, value: float | NotMeasured, write: Callable[[float], str], how: Words, path: str) -> Row:
    if isinstance(value, NotMeasured):
        return what, "not measured", sentence(value.not_measured)
    return what, link(write(value), path), how


def timeline_section(facts: PostmortemFacts) -> Section:
    """The run by step, the investigation by UTC."""
    run = [
        (f"{m.step:,}", visible(m.what), code(name(m.source), m.source))
        for m in moments(facts.case, last_logged_step(facts.signals))
    ]
    blocks: list[Block] = []
    if run:
        blocks.append(table(("Step", "In the run", "Source"), run, numeric=(0,)))
    if facts.acts:
        blocks.append(table(("Time (UTC)", "Who", "Command", "Result", "Source"), _act_rows(facts)))
        blocks.append(paragraph(_elapsed_words(facts)))
    return Section("timeline", "Timeline", tuple(blocks))


def _act_rows(facts: PostmortemFacts) -> Iterator[tuple[Words, ...]]:
    for group in _grouped(facts.acts):
        first = group[0]
        command = "trial" if len(group) > 1 else first.command
        result = _result_words(group, facts)
        source = code(f"journal:{first.line}", JOURNAL)
        yield fixed(when(first.time)), name(first.operator), code(name(command)), result, source


def _result_words(group: Sequence[Act], facts: PostmortemFacts) -> Words:
    if len(group) == 1:
        act = group[0]
        ending = "" if act.exit_code == ExitCode.PASSED else f" ({ending_words(act.exit_code)})"
        return inline(prose(act.summary, facts), ending)
    ids = [act.command.split()[-1] for act in group]
    return inline("judged, each told below: ", sources(ids, facts))


def _grouped(done: Sequence[Act]) -> Iterator[tuple[Act, ...]]:
    """Acts, with trials that one operator judged in a row together; a trial that is judged again is not repeated."""
    judged: set[str] = set()
    for (is_trial, _who), group in groupby(done, key=lambda a: (first_word(a.command) == "trial", a.operator)):
        acts = [act for act in group if not is_trial or act.command not in judged]
        judged |= {act.command for act in acts if is_trial}
        if is_trial and acts:
            yield tuple(acts)
        elif not is_trial:
            yield from ((act,) for act in acts)


def ending_words(exit_code: int) -> str:
    """What an exit code of the one table means."""
    known = {int(code_): words for code_, words in ENDINGS.items()}
    return f"exit {exit_code}, {known.get(exit_code, 'ended from outside')}"


def _elapsed_words(facts: PostmortemFacts) -> str:
    first, last = facts.acts[0], facts.acts[-1]
    try:
        seconds = seconds_between(first.time, last.time)
    except ValueError:
        return "The times in the journal cannot be read."
    people = dict.fromkeys(name(a.operator) for a in facts.acts)
    return f"From the first to the last command: {duration(seconds)}, by {', '.join(people)}."


def detection_section(facts: PostmortemFacts) -> Section:
    """Which signal moved first, by how much, and how long the run went on after it."""
    incident = facts.case.incident
    if incident is None:
        text = "No signal left its baseline, or the case was opened without one."
        return Section("detection", "Detection", (paragraph(text),))
    blocks: list[Block] = [paragraph(_lead_words(incident), " ", _lag_words(facts))]
    if drawn_series(facts):
        bars = "Bars: the steps that the trials replayed. " if facts.trials else ""
        blocks.append(
            Figure(
                "signals",
                f"Signals around step {incident.onset_step}",
                inline(FIGURE_WORDS, bars, code(SIGNALS, SIGNALS)),
            )
        )
    blocks.append(_signature_table(incident))
    if incident.hints:
        blocks.append(bullets(sentence(h) for h in incident.hints))
    return Section("detection", "Detection", tuple(blocks))


FIGURE_WORDS = "The record around the onset. Grey band: from the usual value to the limit of the signature. "


def _lead_words(incident: Incident) -> str:
    first, lead = signal_words(incident.first_signal), incident.lead_steps
    if incident.first_signal == LOSS:
        peak = f"peaked {plural(lead, 'step')} later" if lead > 0 else "peaked at once"
        return f"The loss itself moved first and {peak}: no other signal gave a warning."
    if lead > 0:
        return f"{first[0].upper()}{first[1:]} led the peak of the loss by {plural(lead, 'step')}."
    return f"{first[0].upper()}{first[1:]} moved first, without a lead over the loss."


def _lag_words(facts: PostmortemFacts) -> str:
    after, step_time = facts.impact.steps_after_onset, facts.impact.step_time.seconds
    if isinstance(after, NotMeasured):
        return f"How long the run went on is not measured: {visible(after.not_measured)}."
    if after == 0:
        return "The record ends at the onset."
    lasted = "" if isinstance(step_time, NotMeasured) else f", {duration(after * step_time)}"
    return f"The record goes on for {plural(after, 'step')} after the onset{lasted}: the detection lag."


def _signature_table(incident: Incident) -> Block:
    rows = [
        (
            code(name(s.signal), SIGNALS),
            s.kind.value,
            f"{s.onset_step:,}",
            number(usual_value(s)),
            f"{'above' if s.direction > 0 else 'below'} {number(limit_value(s))}",
            f"{number(s.peak_value)} at {s.peak_step:,}",
            f"{s.last_step:,}",
        )
        for s in incident.signatures
    ]
    header = ("Signal", "Shape", "Onset", "Usual", "Counts when", "Peak", "Last seen")
    return table(header, rows, "The signature: what every trial is held against.", numeric=(2, 3, 6))
