"""What a core tells of itself, for tests of those who keep such reports."""

from firstlight.shared.types import Load, NodeInfo, Report, Role


def report(
    node: str = "c1",
    incarnation: int = 1,
    seq: int = 1,
    *,
    leaving: bool = False,
    region: str = "lon",
    load: Load | None = None,
) -> Report:
    """A core's report. Unless given, its load runs `seq` requests, so that reports differ."""
    info = NodeInfo(node, Role.CORE, incarnation, region, f"{node}:1")
    return Report(info, seq, load or Load(running=seq), leaving=leaving)
