"""The whole product on a real control plane: kube-scheduler asks, the simulator plays Longhorn."""
