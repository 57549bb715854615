"""A scenario: what is done to a mesh in a laboratory, and what it must keep meanwhile.

    title: A far user
    topology: two_regions.yaml        # beside this file, or the topology itself
    phases:
      - name: later
        links: [{between: [user, edge-eu], rtt_ms: 10}]
        load:
          - {name: "100 tokens", at: user, edges: [edge-eu], prompt_tokens: 100, count: 100,
             bound: {row: "beside, 100 tokens", plus: 150},
             keep: {ttft_p50_ms: {at_most: {plus: 10}}}}
        faults:
          - {at_s: 2, fault: {do: kill, node: core-us, for_s: 5}}

Phases follow each other; the loads of one run together, and its faults beside them. A phase ends
when its loads have, and what its faults did is taken back then. `each` repeats a phase for every
combination of some values, or for some that belong together (a list of them), which stand as
`$name` in it. Sans-IO: `scenario_file` reads it.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from random import Random
from string import Template
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from firstlight.infra.lab.fault_plan import Fault, check
from firstlight.infra.lab.topology import LinkRule, Topology
from firstlight.infra.scenario.figures import FIGURES
from firstlight.infra.scenario.hints_model import HintsModel
from firstlight.shared.errors import ConfigError

LIMIT_S = 360.0
"""A whole run, unless the file says otherwise."""
PHASES_MAX, LOADS_MAX, FAULTS_MAX = 200, 32, 1000
COUNT_MAX, TOGETHER_MAX = 100_000, 1024
PROMPT_TOKENS_MAX = 20_000_000
"""Of all prompts of a row, which are made before its clock runs."""
_MODEL = ConfigDict(extra="forbid", frozen=True)

Seconds = Annotated[float, Field(ge=0, le=3600)]
Number = Annotated[float, Field(ge=-1e12, le=1e12)]
_Positive = Annotated[float, Field(ge=0)]
Drawn = _Positive | tuple[_Positive, _Positive]
"""A number, or the ends between which the seed draws one; none is below 0."""
ITS_CORE, ITS_EDGE = "its core", "its edge"
"""In a fault at a token: the nodes that serve the stream then."""
FigureName = Literal[FIGURES]  # type: ignore[valid-type]


class Bound(BaseModel):
    """What a row's figures are held against: another row's figure, or what a model says."""

    model_config = _MODEL

    row: str | None = None
    """A row of this or an earlier phase."""
    of: FigureName = "ttft_p50_ms"
    """Which of its figures."""
    hints: HintsModel | None = None
    """Tokens a second as the model of hints has them."""
    times: Number = 1.0
    plus: Number = 0.0

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.row is None) == (self.hints is None):
            raise ValueError("a bound is taken from row or from hints, expected one of them")
        return self


class Beyond(BaseModel):
    """A limit that is told from the row's bound, or from another row's figure."""

    model_config = _MODEL

    row: str | None = None
    """A row of this or an earlier phase, whose same figure is meant; null: the bound."""
    times: Number = 1.0
    plus: Number = 0.0


class Limit(BaseModel):
    """What a figure must keep."""

    model_config = _MODEL

    at_most: float | Beyond | None = None
    at_least: float | Beyond | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.at_most is None and self.at_least is None:
            raise ValueError("a limit without at_most and at_least limits nothing")
        return self

    @property
    def told_from(self) -> Iterator[str | None]:
        """The rows that it needs; None: the bound."""
        for edge in (self.at_most, self.at_least):
            if isinstance(edge, Beyond):
                yield edge.row


class LoadSpec(BaseModel):
    """Requests of one kind from one place: a row of the table."""

    model_config = _MODEL

    name: str
    at: str
    """A client of the topology, or a node in whose place clients shall stand."""
    edges: Annotated[tuple[str, ...], Field(min_length=1)]
    """The first is asked; where a connection is lost, the rest is asked for at the next."""
    http: Literal["1", "2", "3"] = "3"
    connection: Literal["warm", "cold"] = "warm"
    """`cold`: each request opens one. `warm`: it stands before the first."""
    model: str = "auto"
    prompt: str | None = None
    """A label: rows with the same one ask the same questions. Null: the row's own."""
    prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    hints: bool = True
    count: Annotated[int, Field(ge=1, le=COUNT_MAX)] = 1
    together: Annotated[int, Field(ge=1, le=TOGETHER_MAX)] = 1
    """Requests that are out at the same time; the next goes out when one has ended."""
    per_s: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """Instead: so many a second, whatever becomes of them."""
    idle_s: Seconds = 0.0
    """Quiet before each."""
    limit_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """For one answer."""
    shown: bool = True
    """Whether the table has it: not if it only brings about what others need."""
    bound: Bound | None = None
    keep: dict[FigureName, Limit | tuple[Limit, ...]] = {}
    """What the row's figures must keep. Success is always all, unless it stands here."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        told_from = [row for _, limit in self.limits for row in limit.told_from]
        if self.bound is None and None in told_from:
            raise ValueError("keep is told from a bound, and there is none")
        if self.per_s is not None and (self.idle_s or self.together > 1):
            raise ValueError("per_s stands beside together or idle_s, expected one of them")
        if self.count * self.prompt_tokens > PROMPT_TOKENS_MAX:
            tokens = self.count * self.prompt_tokens
            raise ValueError(f"count x prompt_tokens is {tokens}, at most {PROMPT_TOKENS_MAX}")
        return self

    @property
    def limits(self) -> list[tuple[str, Limit]]:
        """All of them, each with its figure."""
        kept = {"success": Limit(at_least=1.0), **self.keep}
        return [
            (name, limit)
            for name, some in kept.items()
            for limit in (some if isinstance(some, tuple) else (some,))
        ]

    @property
    def rows(self) -> set[str]:
        """Other rows that it is told from."""
        bound = {self.bound.row} if self.bound is not None else set()
        named = {row for _, limit in self.limits for row in limit.told_from}
        return {row for row in bound | named if row is not None}


class FaultSpec(BaseModel):
    """A fault, and when it comes."""

    model_config = _MODEL

    fault: Fault
    at_s: Drawn | None = None
    """After the phase's begin."""
    at_token: Drawn | None = None
    """When a stream has so many ids."""
    load: str | None = None
    """That stream's row; null: the phase's first."""
    stream: Annotated[int, Field(ge=0)] = 0
    """Its number in the row, from 0."""

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if (self.at_s is None) == (self.at_token is None):
            raise ValueError("a fault comes at_s or at_token, expected one of them")
        return self


class Phase(BaseModel):
    """A part of a scenario."""

    model_config = _MODEL

    name: str
    links: tuple[LinkRule, ...] = ()
    """How links are changed first; they stay so."""
    settle_s: Seconds = 0.0
    """Quiet after the links have changed."""
    load: Annotated[tuple[LoadSpec, ...], Field(min_length=1, max_length=LOADS_MAX)]
    faults: Annotated[tuple[FaultSpec, ...], Field(max_length=FAULTS_MAX)] = ()


class Scenario(BaseModel):
    """A whole file."""

    model_config = _MODEL

    title: str
    about: str = ""
    """What is asked, for people."""
    topology: Topology
    seed: int = 1
    columns: tuple[FigureName, ...] = ("answered", "failed", "ttft_p50_ms", "ttft_p95_ms")
    """What the table shows of each row."""
    histories: bool = True
    """Whether nodes note what happens, and a judge reads it."""
    limit_s: Annotated[float, Field(gt=0, le=36_000)] = LIMIT_S
    phases: Annotated[tuple[Phase, ...], Field(min_length=1, max_length=PHASES_MAX)]

    def problems(self) -> list[str]:
        """What one field alone does not show, each with the path of the wrong field."""
        return [*self.topology.problems(), *self._problems()]

    def _problems(self) -> Iterator[str]:
        rows: set[str] = set()
        for number, phase in enumerate(self.phases):
            where = f"phases.{number}"
            for place, rule in enumerate(phase.links):
                yield from self.topology.problems_of(rule, f"{where}.links.{place}")
            for place, load in enumerate(phase.load):
                here = f"{where}.load.{place}"
                if load.name in rows:
                    yield f"{here}.name: another row is called {load.name!r} too"
                rows.add(load.name)
                yield from self._problems_of(load, here)
            for place, load in enumerate(phase.load):
                for name in sorted(load.rows - rows):
                    known = ", ".join(sorted(rows))
                    yield f"{where}.load.{place}: row {name!r}, known are {known}"
            for place, fault in enumerate(phase.faults):
                yield from self._problems_of_fault(fault, phase, f"{where}.faults.{place}")

    def _problems_of(self, load: LoadSpec, where: str) -> Iterator[str]:
        if load.at not in self.topology.nodes:
            yield f"{where}.at: no node is called {load.at!r}"
        edges = self.topology.of_role("edge")
        for name in load.edges:
            if name not in edges:
                yield f"{where}.edges: {name!r}, expected some of {', '.join(edges)}"

    def _problems_of_fault(self, spec: FaultSpec, phase: Phase, where: str) -> Iterator[str]:
        rows = {load.name: load for load in phase.load}
        row = rows.get(spec.load or phase.load[0].name)
        if row is None:
            yield f"{where}.load: {spec.load!r}, expected one of {', '.join(rows)}"
        elif spec.stream >= row.count:
            yield f"{where}.stream: {spec.stream}, and the row has {row.count}, counted from 0"
        elif spec.at_token is not None and drawn_most(spec.at_token) > row.max_tokens:
            yield f"{where}.at_token: {spec.at_token}, and answers have {row.max_tokens}"
        its = [name for name in places(spec.fault).values() if name in (ITS_CORE, ITS_EDGE)]
        if its and spec.at_token is None:
            yield f"{where}.fault: {its[0]!r} is known at a token only"
            return
        try:
            check(self._with_anyone(spec.fault), self.topology)
        except ConfigError as error:
            yield f"{where}.fault: {error.message}"

    def _with_anyone(self, fault: Fault) -> Fault:
        """With some core and edge of the topology for those that serve a stream."""
        anyone = {ITS_CORE: self.topology.of_role("core"), ITS_EDGE: self.topology.of_role("edge")}
        found = {name: anyone.get(node or "") for name, node in places(fault).items()}
        return fault.model_copy(update={name: one[0] for name, one in found.items() if one})


def places(fault: Fault) -> dict[str, str | None]:
    """Whom it names, by its fields."""
    return {"node": fault.node, "source": fault.source, "target": fault.target}


def expanded(phases: object) -> object:
    """Phases with `each` written out, as the file has them. Raises `ValueError`."""
    if not isinstance(phases, list):
        return phases
    written: list[object] = []
    for phase in phases:
        each = phase.get("each") if isinstance(phase, Mapping) else None
        if each is None:
            written.append(phase)
            continue
        body = {name: value for name, value in phase.items() if name != "each"}
        for values in _combinations(each):
            written.append(_filled(body, values))
            if len(written) > PHASES_MAX:
                raise ValueError(f"each: more than {PHASES_MAX} phases")
    return written


def _combinations(each: object) -> Iterator[Mapping[str, object]]:
    """Values by name, for each repetition."""
    if isinstance(each, list) and each and all(isinstance(one, Mapping) for one in each):
        yield from each
    elif isinstance(each, Mapping) and all(isinstance(one, list) for one in each.values()):
        for values in product(*each.values()):
            yield dict(zip(map(str, each), values, strict=True))
    else:
        raise ValueError(f"each: {each!r:.60}, expected lists by name, or a list of values by name")


def _filled(part: object, values: Mapping[str, object]) -> object:
    """A document with `$name` replaced: by the value itself where nothing else stands."""
    if isinstance(part, Mapping):
        return {name: _filled(value, values) for name, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if not isinstance(part, str):
        return part
    if part.startswith("$") and part[1:] in values:
        return values[part[1:]]
    return Template(part).safe_substitute(cast("Mapping[str, Any]", values))


def drawn_most(value: Drawn) -> float:
    """The most that `drawn` gives."""
    return max(value) if isinstance(value, tuple) else value


def drawn(value: Drawn, random: Random) -> float:
    """The number itself, or one between the two."""
    return random.uniform(*value) if isinstance(value, tuple) else value
