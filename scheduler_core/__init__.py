"""The pure half: decides where pods and replicas can go. No I/O, no clock, no Kubernetes client."""
