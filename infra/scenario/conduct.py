"""Runs a scenario: a laboratory, its phases, and what every row came to.

All faults are done by the runner's thread, which sleeps until one is due or a client has seen the
token that one waits for. Clients have a thread for each place that they stand at, since a thread is
in one network namespace; they are not held up by a fault that takes a while to do.
"""

import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random

from firstlight.infra.bench.load.prompts import Vocabulary
from firstlight.infra.judge.run_file import RunRecord
from firstlight.infra.lab.fault_door import serving
from firstlight.infra.lab.fault_plan import Fault
from firstlight.infra.lab.faults import Faults, Injected
from firstlight.infra.lab.lab import Lab
from firstlight.infra.lab.topology import LinkRule
from firstlight.infra.reply import Reply
from firstlight.infra.scenario.conducted import Conducted
from firstlight.infra.scenario.crowd import Asking, Crowd
from firstlight.infra.scenario.figures import Answers, Row
from firstlight.infra.scenario.limits import judged
from firstlight.infra.scenario.loads import Watch, questions_of
from firstlight.infra.scenario.scenario import Phase, Scenario
from firstlight.infra.scenario.schedule import Schedule, Seen
from firstlight.shared.clock import monotonic_s, sleep_s
from firstlight.shared.errors import FirstlightError
from firstlight.shared.history_file import History, history_of
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import load_tokenizer

TICK_S = 0.02
BACK_S = 60.0
"""What a phase broke has to serve again so soon."""
ERRORS_SHOWN_MAX = 3
JOIN_S = 10.0
"""For clients that were told to stop."""

Say = Callable[[str], None]


class Conductor:
    """One run of a scenario in a laboratory that has been started."""

    def __init__(
        self, scenario: Scenario, lab: Lab, record: RunRecord | None, seed: int, say: Say
    ) -> None:
        self._scenario, self._lab, self._seed, self._say = scenario, lab, seed, say
        self._faults = Faults(lab, record, Random(f"{seed}/faults"))
        self._vocabulary = Vocabulary(load_tokenizer(default_model_path()))
        self._answers = Answers()
        self._links: list[LinkRule] = []
        """How phases have changed them so far; the last one of several holds."""
        self._seen: SimpleQueue[Seen] = SimpleQueue()
        """What clients saw that may bring a fault."""
        self._active: list[tuple[float, Injected]] = []
        """Faults that are not taken back yet, and when they shall be."""
        self.found = Conducted()
        for phase in scenario.phases:
            planned = Schedule(phase, seed).planned
            self.found.schedule += [f"{phase.name}: {one}" for one in planned]

    def run(self, histories: Path | None) -> Conducted:
        """All phases, or as far as the laboratory holds. Raises `ConfigError` if none can begin."""
        deadline_s = monotonic_s() + self._scenario.limit_s
        places = {load.at for phase in self._scenario.phases for load in phase.load}
        with ExitStack() as stack:
            stack.callback(self._faults.close)
            told = {
                place: stack.enter_context(history_of(histories, place, "client"))
                for place in sorted(places)
            }
            stack.enter_context(serving(self._faults, self._lab.run))
            begun_s, used_s = monotonic_s(), _cpu_s()
            for phase in self._scenario.phases:
                self._say(f"— {phase.name}")
                try:
                    in_time = self._run_phase(phase, told, deadline_s)
                except FirstlightError as error:  # what came before it is told all the same
                    self.found.problems.append(f"{phase.name}: {error.message}")
                    break
                if not in_time:
                    break
            self.found.shares["clients"] = (_cpu_s() - used_s) / (monotonic_s() - begun_s)
            with suppress(OSError):  # it has ended, which is a problem of its own
                self.found.shares["router"] = self._lab.router_share()
        return self.found

    def _run_phase(
        self, phase: Phase, told: Mapping[str, History | None], deadline_s: float
    ) -> bool:
        """One phase; whether there is time for the next."""
        self._links += phase.links
        self._change_links(phase.links)
        sleep_s(max(0.0, min(phase.settle_s, deadline_s - monotonic_s())))
        asked = self._questions(phase)
        schedule = Schedule(phase, self._seed)
        crowds = [
            Crowd(self._lab, place, asked[place], told[place], self._watch(schedule))
            for place in asked
        ]
        begun_s = monotonic_s()
        for crowd in crowds:
            crowd.start()
        try:
            in_time = self._wait(crowds, schedule, begun_s, deadline_s)
        finally:  # nobody asks on while the laboratory, and what they note, is closed
            for crowd in crowds:
                crowd.end(JOIN_S)
        for crowd in crowds:
            self.found.problems += crowd.problems
            self.found.rows |= crowd.rows
        self._take_back(phase)
        if not in_time:
            self.found.problems.append(
                f"{phase.name}: cut short, all of it may take {self._scenario.limit_s:g} s"
            )
        self.found.problems += [f"{phase.name}: it never came: {one}" for one in schedule.left]
        self._judge(phase)
        return in_time

    def _questions(self, phase: Phase) -> dict[str, list[Asking]]:
        """By the place where they are asked."""
        asked: dict[str, list[Asking]] = {}
        for load in phase.load:
            questions = questions_of(load, self._vocabulary, self._seed)
            asked.setdefault(load.at, []).append((load, questions))
        return asked

    def _change_links(self, rules: Sequence[LinkRule]) -> None:
        with self._lab.network.control() as control:
            for rule in rules:
                source, target = rule.between or (rule.source, rule.target)
                assert source is not None
                assert target is not None
                one_way = rule.between is None
                control.change("set", source, target, one_way=one_way, link=rule.said())

    def _wait(
        self, crowds: Sequence[Crowd], schedule: Schedule, begun_s: float, deadline_s: float
    ) -> bool:
        """Until all clients have ended, doing what is due meanwhile; False beyond the deadline."""
        while any(crowd.alive for crowd in crowds):
            now = monotonic_s()
            if now > deadline_s:
                return False
            for fault in schedule.due(now - begun_s):
                self._inject(fault)
            self._end_until(now)
            self._look_after_nodes()
            with suppress(Empty):
                seen = self._seen.get(timeout=TICK_S)
                for fault in schedule.reached(seen):
                    self._inject(fault)
        return True

    def _watch(self, schedule: Schedule) -> Watch:
        def watch(load: str, stream: int, reply: Reply) -> None:
            if schedule.waits_for(load, stream):
                core, edge = str(reply.details.get("core")), str(reply.details.get("edge"))
                self._seen.put(Seen(load, stream, len(reply.token_ids), core, edge))

        return watch

    def _inject(self, fault: Fault) -> None:
        try:
            injected = self._faults.inject(fault)
        except FirstlightError as error:
            self.found.problems.append(f"{fault.what}: {error.message}")
            return
        until_s = inf if fault.for_s is None else monotonic_s() + fault.for_s
        self._active.append((until_s, injected))
        self._say(f"   {fault.what}")

    def _end_until(self, now: float) -> None:
        """Take back what is due; what cannot be is tried again when the phase has ended."""
        for until_s, injected in [one for one in self._active if one[0] <= now]:
            self._active.remove((until_s, injected))
            try:
                self._faults.end(injected)
            except FirstlightError as error:
                self._active.append((inf, injected))
                what = f"not taken back: {injected.fault.what}: {error.message}"
                self.found.problems.append(what)
                continue
            if injected.fault.do == "link":  # links are as the topology says again
                self._change_links(self._links)
            self._say(f"   taken back: {injected.fault.what}")

    def _look_after_nodes(self) -> None:
        for name in self._lab.ended():
            word = f"{name} has ended by itself"
            if word not in self.found.problems:
                self.found.problems.append(word)

    def _take_back(self, phase: Phase) -> None:
        """Everything that the phase broke."""
        self._end_until(inf)
        try:
            self._faults.wait_back(BACK_S)
        except FirstlightError as error:
            self.found.problems.append(f"{phase.name}: not back: {error.message}")

    def _judge(self, phase: Phase) -> None:
        for load in phase.load:
            row = self.found.rows.setdefault(load.name, Row())
            self._answers.compare(load.prompt or load.name, row)
        for load in phase.load:
            one = judged(load, self.found.rows)
            self.found.judged.append(one)
            for miss in one.missed:
                self._say(f"   {load.name}: {miss}")
            errors = {outcome.error for outcome in one.row.outcomes if outcome.error}
            for error in sorted(errors)[:ERRORS_SHOWN_MAX]:
                self._say(f"   {load.name}: {error}")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
