# syntax=docker/dockerfile:1
# Two stages: the first installs the locked dependencies and the wheel into a virtual environment, the second has Python,
# that environment and nothing else. It runs as an unprivileged user and writes nowhere (a read-only root is fine).
FROM python:3.13-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/extender && python -m venv /opt/build
COPY requirements/build.lock requirements/runtime.lock requirements/
RUN /opt/extender/bin/pip install --require-hashes --requirement requirements/runtime.lock \
 && /opt/build/bin/pip install --require-hashes --requirement requirements/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY scheduler_core scheduler_core
COPY app app
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /dist . \
 && /opt/extender/bin/pip install --no-deps /dist/*.whl \
 && /opt/extender/bin/python -m compileall -q /opt/extender/lib

FROM python:3.13-slim
LABEL org.opencontainers.image.title="longhorn-scheduler-extender" \
      org.opencontainers.image.description="A kube-scheduler extender that only offers a pod nodes whose Longhorn disks can hold all of its volumes" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/extender/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TZ=UTC
COPY --from=build /opt/extender /opt/extender
USER 65532:65532
EXPOSE 9504
ENTRYPOINT ["longhorn-extender"]
CMD ["serve", "--host", "0.0.0.0", "--snapshot", "/snapshot/snapshot.yaml"]
