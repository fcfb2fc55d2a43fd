"""What every long-running program needs: leader election, server, probes, work queue, logs and metrics."""
