"""The errors of this package. Their texts are for the person at the command line."""


class DevClusterError(Exception):
    """The base class; one line names problem, place and remedy."""


class BuildError(DevClusterError):
    """The programs of the control plane cannot be built."""


class ProcessError(DevClusterError):
    """A process did not start, was not ready, or ended unexpectedly."""


class ConfigError(DevClusterError):
    """A file or an option for the cluster is invalid."""


class KubectlError(DevClusterError):
    """kubectl failed; the text is its error message."""
