"""Program 1: the scheduler extender that kube-scheduler calls."""
