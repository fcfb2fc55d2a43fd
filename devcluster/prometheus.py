"""What Prometheus, where it is installed, is told: which processes to ask, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from devcluster.errors import ConfigError

PROGRAM: Final = "prometheus"
_INTERVAL: Final = "2s"  # a development cluster lives for minutes


def find(wanted: bool | None) -> Path | None:  # noqa: FBT001 # an option of the command line
    """The installed program; None if there is none, or if it is not wanted. `wanted` None: where it is installed.

    Raises:
        ConfigError: it is wanted and not installed
    """
    found = None if wanted is False else shutil.which(PROGRAM)
    if wanted and found is None:
        raise ConfigError(f"--prometheus: there is no program {PROGRAM} on PATH; install it, or leave the option out")
    return None if found is None else Path(found)


def configuration(job: str, targets: Mapping[str, str]) -> str:
    """A configuration file that scrapes these: from the label ``instance`` to ``host:port``."""
    static = [{"targets": [address], "labels": {"instance": name}} for name, address in targets.items()]
    scrape = {"job_name": job, "static_configs": static}
    timing = {"scrape_interval": _INTERVAL, "scrape_timeout": _INTERVAL}
    return yaml.safe_dump({"global": timing, "scrape_configs": [scrape]}, sort_keys=False)
