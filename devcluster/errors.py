"""What can go wrong here, always worded for the person who typed the command."""

from __future__ import annotations


class DevClusterError(Exception):
    """The base of all: one line saying what went wrong, where, and what to do about it."""


class BuildError(DevClusterError):
    """The programs of the control plane cannot be built here."""


class ProcessError(DevClusterError):
    """A process did not start, did not become ready, or ended when it should not."""


class ConfigError(DevClusterError):
    """A file or an option given to the cluster makes no sense."""


class KubectlError(DevClusterError):
    """kubectl refused; the text is what it said."""
