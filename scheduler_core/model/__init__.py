"""The objects a decision reads, as frozen values: `kube`, `longhorn`, and `snapshot` which holds them all."""
