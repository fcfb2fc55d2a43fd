# syntax=docker/dockerfile:1
# The image is made in two stages: `build` installs the locked dependencies and the wheel into a virtual environment, `extender`
# has Python, that environment and nothing else. It runs as an unprivileged user and writes nowhere (a read-only root is fine).
# `controlplane` and `devcluster` are a local cluster for developers (compose.yaml), built only when asked for.
#
# It needs BuildKit (docker's default) or buildah: both read only what is copied, so there is no .dockerignore.
#
# Base images are named by tag. `.ci/image/pin` adds the digests of today, in your copy; a mirror is named by --build-arg.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim
# The same Python, with strip(1).
ARG BUILD_IMAGE=docker.io/library/python:3.13
ARG GO_IMAGE=docker.io/library/golang:1.26.8

FROM ${BUILD_IMAGE} AS build
# A mirror of the package index; pip reads it from the environment.
ARG PIP_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
# The program's environment has no pip: the one of /opt/build installs into it.
RUN python -m venv --without-pip /opt/extender && python -m venv /opt/build
COPY .ci/requirements/build.lock .ci/requirements/runtime.lock .ci/requirements/image.lock .ci/requirements/
RUN /opt/build/bin/pip --python /opt/extender install --no-compile --require-hashes --requirement .ci/requirements/runtime.lock \
 && /opt/build/bin/pip install --no-compile --require-hashes --requirement .ci/requirements/build.lock --requirement .ci/requirements/image.lock
COPY pyproject.toml README.md LICENSE ./
COPY scheduler_core scheduler_core
COPY app app
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /dist . \
 && /opt/build/bin/pip --python /opt/extender install --no-compile --no-deps /dist/*.whl
# What is not needed to run goes: most of the Kubernetes client, and symbols for debuggers. Byte code is compiled now, because a
# read-only root can keep none; it is never compared with its source, so the time of the build is not in it.
COPY .ci/image/prune.py /usr/local/lib/prune.py
RUN /opt/extender/bin/python /usr/local/lib/prune.py /opt/extender/lib/python3.*/site-packages app scheduler_core \
 && find /opt/extender/lib -name '*.so' -exec strip --strip-unneeded {} + \
 && mkdir -p /opt/extender/share/sbom \
 && /opt/build/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
        --output-file /opt/extender/share/sbom/longhorn-scheduler-extender.cdx.json /opt/extender/bin/python \
 && /opt/extender/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/extender/lib

FROM ${PYTHON_IMAGE} AS extender
ARG PYTHON_IMAGE
# What the image was made from, such as REVISION=$(git rev-parse HEAD); "" if the builder does not say.
ARG REVISION=""
LABEL org.opencontainers.image.title="longhorn-scheduler-extender" \
      org.opencontainers.image.description="A kube-scheduler extender that only offers a pod nodes whose Longhorn disks can hold all of its volumes" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
ENV PATH=/opt/extender/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TZ=UTC
COPY --from=build /opt/extender /opt/extender
USER 65532:65532
EXPOSE 9504
ENTRYPOINT ["longhorn-extender"]
CMD ["serve", "--host", "::", "--snapshot", "/snapshot/snapshot.yaml"]

# kube-apiserver, etcd and the others, from source: about five minutes once, then from the cache mounts.
FROM ${GO_IMAGE} AS go
FROM build AS controlplane
ENV PATH=/usr/local/go/bin:/opt/extender/bin:$PATH DEVCLUSTER_CACHE=/opt/devcluster \
    GOCACHE=/var/cache/go-build GOMODCACHE=/var/cache/go-mod
COPY --from=go /usr/local/go /usr/local/go
COPY .ci/requirements/dev.lock .ci/requirements/
RUN /opt/build/bin/pip --python /opt/extender install --require-hashes --requirement .ci/requirements/dev.lock
COPY devcluster devcluster
RUN --mount=type=cache,target=/var/cache/go-build --mount=type=cache,target=/var/cache/go-mod \
    ln -s "$(python -m devcluster build)" /opt/controlplane

FROM ${PYTHON_IMAGE} AS devcluster
ENV PATH=/opt/extender/bin:/opt/controlplane:$PATH DEVCLUSTER_CACHE=/opt/devcluster \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TZ=UTC HOME=/tmp KUBECONFIG=/run/cluster/kubeconfig
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

# The product is what a build without --target makes.
FROM extender
