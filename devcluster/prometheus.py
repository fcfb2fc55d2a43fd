"""Finds an installed Prometheus, and writes its configuration: the targets to scrape, and nothing else."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from devcluster.errors import ConfigError

PROGRAM = "prometheus"
_SCRAPE_INTERVAL = "2s"  # a development cluster lives for minutes


def find(wanted: bool | None) -> Path | None:  # noqa: FBT001 # an option of the command line
    """The installed program, None if there is none.

    Args:
        wanted: False: none is wanted; None: it is wanted if it is installed
    """
    program = None if wanted is False else shutil.which(PROGRAM)
    if wanted and program is None:
        raise ConfigError(f"--prometheus: there is no program {PROGRAM} on PATH; install it, or leave the option out")
    return None if program is None else Path(program)


def configuration(job: str, targets: Mapping[str, str]) -> str:
    """A configuration file for targets: ``host:port`` by the label ``instance``."""
    static = [{"targets": [address], "labels": {"instance": name}} for name, address in targets.items()]
    scrape = {"job_name": job, "static_configs": static}
    timing = {"scrape_interval": _SCRAPE_INTERVAL, "scrape_timeout": _SCRAPE_INTERVAL}
    return yaml.safe_dump({"global": timing, "scrape_configs": [scrape]}, sort_keys=False)
