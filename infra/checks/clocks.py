"""Clocks: certificates are judged by the wall clock, everything else by the monotonic one."""

import http.client
import ssl
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from firstlight.global_lb.config import LbHttp, LbSettings
from firstlight.infra.checks.certificates import dates, paths
from firstlight.infra.checks.finding import Finding, bad, ok, unseen, warn
from firstlight.infra.checks.subject import Subject
from firstlight.infra.running import read_running
from firstlight.shared.clock import monotonic_s, sleep_s, unix_s
from firstlight.shared.errors import ConfigError
from firstlight.shared.rpc import split_address

SKEW_S_MAX = 5.0
ASK_S = 1.5
WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)
"""Nobody ran this before; a clock that says so begins at 1970, or at its battery's last day."""


def look_own(subject: Subject) -> list[Finding]:
    """Both clocks of this machine."""
    begun, before = monotonic_s(), unix_s()
    sleep_s(0.05)
    ran_s, wall_ran_s = monotonic_s() - begun, unix_s() - before
    starts = []
    for path in paths(subject):
        try:
            starts += [span.first for span in dates(path)]
        except ConfigError:  # told of by the check of certificates
            continue
    now = datetime.fromtimestamp(unix_s(), UTC)
    return [judge_running(ran_s, wall_ran_s), judge_wall(now, starts)]


def judge_running(ran_s: float, wall_ran_s: float) -> Finding:
    """Both clocks over the same short sleep of 50 ms."""
    if ran_s <= 0:
        return bad(
            "monotonic clock", f"ran {ran_s:.3f} s", "restart this machine: its timer stands"
        )
    if abs(ran_s - wall_ran_s) > 1.0:
        seen = f"the wall clock ran {wall_ran_s:.3f} s in {ran_s:.3f} s"
        return warn(
            "monotonic clock", seen, "let one service alone set the clock (NTP, hypervisor)"
        )
    return ok("monotonic clock", "runs")


def judge_wall(now: datetime, starts: Sequence[datetime]) -> Finding:
    """`starts`: when the certificates here begin; on a clock that is right, all before now."""
    floor = max([WRITTEN, *starts])
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < floor:
        seen = f"{shown}, but a certificate here, or this program, is of {floor:%Y-%m-%d %H:%M}"
        return bad("wall clock", seen, "set the clock and keep it set (timedatectl set-ntp true)")
    return ok("wall clock", shown)


def balancer_urls(subject: Subject) -> list[str]:
    """Where load balancers answer over HTTP, as far as it can be known.

    A node is only told control addresses; on the same hosts the default HTTP port is tried.
    """
    _, default_port = split_address(LbHttp().listen)
    urls = []
    for _, settings in subject.nodes:
        if isinstance(settings, LbSettings):
            continue
        for address in settings.load_balancers:
            try:
                host, _ = split_address(address)
            except ConfigError:  # told of by the check of load balancers
                continue
            urls.append(f"https://{f'[{host}]' if ':' in host else host}:{default_port}")
    with suppress(ConfigError):  # no mesh runs here
        urls.append(read_running(subject.state).lb)
    return list(dict.fromkeys(urls))


def compare(url: str) -> list[Finding]:
    """This clock beside a load balancer's, which stamps every answer with a `Date`."""
    name = f"clock of {urlsplit(url).netloc}"
    try:
        skew_s = _skew_s(url)
    except TimeoutError:
        return [unseen(name, f"it does not answer in {ASK_S} s")]
    except (OSError, http.client.HTTPException, ValueError) as error:
        return [unseen(name, f"it does not say its time: {error}")]
    return [judge_skew(name, skew_s)]


def judge_skew(name: str, skew_s: float) -> Finding:
    """`skew_s`: how far the other clock is ahead of this one."""
    ahead = "ahead" if skew_s > 0 else "behind"
    if abs(skew_s) > SKEW_S_MAX:
        do = "turn NTP on at both ends: a certificate made there may not be valid here yet"
        return warn(name, f"{abs(skew_s):.0f} s {ahead} of this one", do)
    return ok(name, f"within {SKEW_S_MAX:.0f} s of this one")


def _skew_s(url: str) -> float:
    """Asks without checking the certificate: a wrong clock is what would make it invalid.

    The stamp has whole seconds, so that half of one is added.
    """
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    parts = urlsplit(url)
    asked = http.client.HTTPSConnection(
        str(parts.hostname), parts.port, timeout=ASK_S, context=unchecked
    )
    with closing(asked):
        begun = unix_s()
        asked.request("GET", "/livez")
        stamp = asked.getresponse().headers["Date"]
        middle = (begun + unix_s()) / 2
    if stamp is None:
        raise ValueError("no Date in its answer")
    return (parsedate_to_datetime(stamp) + timedelta(seconds=0.5)).timestamp() - middle
