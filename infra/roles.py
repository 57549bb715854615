"""Runs one role as this process: its settings, then its `main` under `lifecycle.run`.

Each role is imported only when it is the one to run, so that a load balancer never loads torch, and
`--print-config` loads no more than the settings.
"""

from functools import partial
from pathlib import Path

from firstlight.shared import lifecycle
from firstlight.shared.config import load_settings, print_settings


def run_edge(config: Path | None, *, print_config: bool, with_parent: bool) -> int:
    """Run an edge until it is told to stop; returns the exit code."""
    from firstlight.edge_node.config import EdgeSettings

    settings = load_settings(EdgeSettings, config)
    if print_config:
        print(print_settings(settings), end="")
        return 0
    from firstlight.edge_node.app import main

    return lifecycle.run(
        partial(main, settings), log_level=settings.log_level, until_stdin_closes=with_parent
    )


def run_core(config: Path | None, *, print_config: bool, with_parent: bool) -> int:
    """Run a core until it is told to stop; returns the exit code."""
    from firstlight.core_node.config import CoreSettings

    settings = load_settings(CoreSettings, config)
    if print_config:
        print(print_settings(settings), end="")
        return 0
    from firstlight.core_node.app import main

    return lifecycle.run(
        partial(main, settings), log_level=settings.log_level, until_stdin_closes=with_parent
    )


def run_lb(config: Path | None, *, print_config: bool, with_parent: bool) -> int:
    """Run a load balancer until it is told to stop; returns the exit code."""
    from firstlight.global_lb.config import LbSettings

    settings = load_settings(LbSettings, config)
    if print_config:
        print(print_settings(settings), end="")
        return 0
    from firstlight.global_lb.app import main

    return lifecycle.run(
        partial(main, settings), log_level=settings.log_level, until_stdin_closes=with_parent
    )


def run_dns(config: Path | None, *, print_config: bool, with_parent: bool) -> int:
    """Run the backend of a name server until it is told to stop; returns the exit code."""
    from firstlight.global_lb.dns_config import DnsSettings

    settings = load_settings(DnsSettings, config)
    if print_config:
        print(print_settings(settings), end="")
        return 0
    from firstlight.global_lb.dns_app import main

    return lifecycle.run(
        partial(main, settings), log_level=settings.log_level, until_stdin_closes=with_parent
    )
