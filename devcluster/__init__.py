"""A real Kubernetes control plane on this machine, for development and end-to-end tests (docs/architecture.md). etcd,
kube-apiserver, kube-controller-manager and kube-scheduler are the real ones, built once; kwok plays the kubelets.
"""
