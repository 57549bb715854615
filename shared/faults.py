"""What a node does to itself when a laboratory asks it to fail: a value, and the commands for it.

    {"do": "hang"}      {"do": "hang", "on": false}      {"do": "clock", "shift_s": -3600}

Only what nobody can do to a node from outside is here: see `infra.lab.faults` for the others. The
node looks at the value where it would fail; `door` is how commands come. Sans-IO.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

from firstlight.shared.errors import ConfigError

SWITCHES = ("hang", "refuse", "silent")
"""What is on or off; a core's."""
CLOCK = "clock"
SHIFT_S_MAX = 10 * 365 * 86400.0


def _unheard(shift_s: float) -> None:
    del shift_s


@dataclass(slots=True)
class Failing:
    """How a node fails now. Read from any thread, changed by one."""

    can: tuple[str, ...] = (CLOCK,)
    """What this kind of node can do to itself."""
    on_shift: Callable[[float], None] = _unheard
    """Called with how much the wall clock shall be wrong."""
    hang: bool = False
    """Its engine ends no step; all else goes on."""
    refuse: bool = False
    """It takes no request."""
    silent: bool = False
    """It takes requests and never answers them."""
    shift_s: float = 0.0

    def command(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a laboratory says. Raises `ConfigError` for what cannot be done."""
        do = said.get("do")
        if do not in self.can:
            raise ConfigError(f"do: {do!r:.40}, expected one of {', '.join(self.can)}")
        value = "shift_s" if do == CLOCK else "on"
        if unknown := set(said) - {"do", value}:
            raise ConfigError(f"{min(unknown)!s:.40}: unknown key, expected do and {value}")
        if do == CLOCK:
            self._shift(said.get(value))
        else:
            self._switch(str(do), said.get(value, True))
        return {}

    def _switch(self, name: str, on: object) -> None:
        if not isinstance(on, bool):
            raise ConfigError(f"on: {on!r:.40}, expected true or false")
        setattr(self, name, on)

    def _shift(self, said: object) -> None:
        number = said if isinstance(said, int | float) and not isinstance(said, bool) else nan
        if not abs(number) <= SHIFT_S_MAX:  # before it is a float: some integers have none
            raise ConfigError(
                f"shift_s: {said!r:.40}, expected seconds, {SHIFT_S_MAX:.0f} at most either way"
            )
        self.shift_s = float(number)
        self.on_shift(self.shift_s)

    def end(self) -> None:
        """Fail no more: the laboratory is gone, or the node ends."""
        self.hang = self.refuse = self.silent = False
        if self.shift_s:
            self.shift_s = 0.0
            self.on_shift(0.0)
