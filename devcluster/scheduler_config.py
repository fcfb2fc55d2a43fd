"""Adapts a KubeSchedulerConfiguration, as users write it, to this machine; everything else stays as it is."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from devcluster.errors import ConfigError

KIND = "KubeSchedulerConfiguration"
DEFAULT = f"apiVersion: kubescheduler.config.k8s.io/v1\nkind: {KIND}\n"


def rewrite(text: str, kubeconfig: Path, url_prefix: str | None = None, source: str = "the file") -> str:
    """A configuration with this cluster's kubeconfig and addresses.

    Leader election is off.

    Args:
        text: the configuration as YAML
        kubeconfig: the scheduler's credentials
        url_prefix: the ``host:port`` of extenders; scheme and path of each urlPrefix stay. None: as in the file
        source: the name of the text in an error

    Raises:
        ConfigError: the text is no KubeSchedulerConfiguration, or the address is no ``host:port``
    """
    config = _parse(text, source)
    config["clientConnection"] = {**(config.get("clientConnection") or {}), "kubeconfig": str(kubeconfig)}
    config["leaderElection"] = {**(config.get("leaderElection") or {}), "leaderElect": False}
    for extender in config.get("extenders") or ():
        if url_prefix is not None:
            extender["urlPrefix"] = _replace_address(str(extender.get("urlPrefix", "")), url_prefix, source)
    return yaml.safe_dump(config, sort_keys=False)


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or config.get("kind") != KIND:
        raise ConfigError(f"{source} is no {KIND}")
    return config


def _replace_address(prefix: str, address: str, source: str) -> str:
    parts = urlsplit(prefix)
    if not parts.netloc:
        raise ConfigError(f"{source}: the extender's urlPrefix {prefix!r} is no URL")
    if "/" in address or not address.rpartition(":")[2].isdigit():
        raise ConfigError(f"{address!r} is not where an extender can be: write host:port")
    return parts._replace(netloc=address).geturl()
