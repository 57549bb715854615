"""When a request stays at home though another region was drawn, and what is told of that."""

from dataclasses import replace
from random import Random

from firstlight.shared.routing.choose import Cores, choose
from firstlight.shared.routing.cost import CoreState
from firstlight.shared.routing.rank import Wanted
from firstlight.shared.routing.spill import Row
from firstlight.shared.types import Load, Route

DRAWN = Wanted(home="lon", prompt_tokens=100, spill=Row((("par", 1.0),)))
AWAY = CoreState("away", "par", Load(sequences_max=10, prefill_ms_per_token=1.0), rtt_ms=9.0)
HERE = replace(AWAY, core="here", region="lon", rtt_ms=5.0)


def routed(*states: CoreState) -> Route:
    return choose(Cores.of(states), DRAWN, Random(1))


def test_what_is_drawn_away_goes_if_something_waits_at_the_best_core_here() -> None:
    waits = replace(HERE, load=replace(HERE.load, running=1, queued=1))
    idle = replace(HERE, core="idle", rtt_ms=300.0)
    assert routed(waits, idle).candidates[0].core == "here"
    assert routed(waits, idle, AWAY).candidates[0].core == "away"
    assert routed(HERE, idle, AWAY).candidates[0].core == "here"


def test_that_health_is_not_believed_is_told_of_what_stays_at_home_too() -> None:
    ejected = [replace(HERE, core=f"c{i}", ejected=True) for i in range(3)]
    route = routed(*ejected, HERE, AWAY)
    assert route.reason == "home region: nothing waits here, though par was drawn"
    assert route.panic
