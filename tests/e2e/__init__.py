"""The whole product on a real control plane, with a simulated Longhorn."""
