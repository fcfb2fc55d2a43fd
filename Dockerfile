# syntax=docker/dockerfile:1
# The image is made in two stages: `build` installs the locked dependencies and the wheel into a virtual environment, the last
# one has Python, that environment and nothing else. It runs as an unprivileged user and writes nowhere (a read-only root is
# fine). `controlplane` and `devcluster` are a local cluster for developers (compose.yaml), built only when asked for.
FROM python:3.13-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/extender && python -m venv /opt/build
COPY .ci/requirements/build.lock .ci/requirements/runtime.lock .ci/requirements/
RUN /opt/extender/bin/pip install --require-hashes --requirement .ci/requirements/runtime.lock \
 && /opt/build/bin/pip install --require-hashes --requirement .ci/requirements/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY scheduler_core scheduler_core
COPY app app
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /dist . \
 && /opt/extender/bin/pip install --no-deps /dist/*.whl \
 && /opt/extender/bin/python -m compileall -q /opt/extender/lib

# kube-apiserver, etcd and the others, from source: about five minutes once, then from the cache mounts.
FROM golang:1.26.8 AS go
FROM build AS controlplane
ENV PATH=/usr/local/go/bin:/opt/extender/bin:$PATH DEVCLUSTER_CACHE=/opt/devcluster \
    GOCACHE=/var/cache/go-build GOMODCACHE=/var/cache/go-mod
COPY --from=go /usr/local/go /usr/local/go
COPY .ci/requirements/dev.lock .ci/requirements/
RUN /opt/extender/bin/pip install --require-hashes --requirement .ci/requirements/dev.lock
COPY devcluster devcluster
RUN --mount=type=cache,target=/var/cache/go-build --mount=type=cache,target=/var/cache/go-mod \
    ln -s "$(python -m devcluster build)" /opt/controlplane

FROM python:3.13-slim AS devcluster
ENV PATH=/opt/extender/bin:/opt/controlplane:$PATH DEVCLUSTER_CACHE=/opt/devcluster \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TZ=UTC HOME=/tmp KUBECONFIG=/run/cluster/kubeconfig
COPY --from=prom/prometheus:v3.5.0 /bin/prometheus /usr/local/bin/prometheus
COPY --from=controlplane /opt /opt
COPY --from=controlplane /src /src
WORKDIR /src
COPY simulator simulator
COPY manifests manifests
COPY kube-scheduler-config kube-scheduler-config
COPY examples examples
USER 65532:65532
ENTRYPOINT ["python", "-m", "devcluster"]
CMD ["up", "--directory", "/run/cluster"]

FROM python:3.13-slim
LABEL org.opencontainers.image.title="longhorn-scheduler-extender" \
      org.opencontainers.image.description="A kube-scheduler extender that only offers a pod nodes whose Longhorn disks can hold all of its volumes" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/extender/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TZ=UTC
COPY --from=build /opt/extender /opt/extender
USER 65532:65532
EXPOSE 9504
ENTRYPOINT ["longhorn-extender"]
CMD ["serve", "--host", "::", "--snapshot", "/snapshot/snapshot.yaml"]
