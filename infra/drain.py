"""`firstlight drain NODE`: have a node drained, or no longer, by the load balancer of a mesh."""

import json

import httpx

from firstlight.infra.running import read_running
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError, PeerError

ANSWER_S = 5.0


def run_drain(node: str, *, undo: bool, at: str | None, as_json: bool) -> int:
    """Ask, and print who is to drain then. Raises `ConfigError` or `PeerError`.

    `at`: host:port where a load balancer answers its operator; None: that of the local mesh.
    """
    where = at or read_running(state_dir()).lb_admin
    if not where:
        raise ConfigError("the load balancer of the local mesh has no admin listener; give --at")
    try:
        answer = httpx.post(
            f"http://{where}/v1/drain",
            json={"node": node, "drain": not undo},
            timeout=ANSWER_S,
            trust_env=False,
        )
        told = answer.json()
    except httpx.InvalidURL:
        raise ConfigError(f"--at {where!r}, expected HOST:PORT") from None
    except httpx.HTTPError as error:
        raise PeerError(f"{where}: no answer: {error}") from None
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise PeerError(f"{where} did not answer as a load balancer's admin listener does")
    if answer.status_code != 200:
        raise PeerError(f"{where}: {told.get('error', {}).get('message', answer.status_code)}")
    if as_json:
        print(json.dumps(told))
        return 0
    print(f"to drain: {', '.join(told['draining']) or 'nobody'}")
    if told["kept"] == "memory":
        print("kept in that load balancer's memory alone: it is forgotten when it ends")
    return 0
