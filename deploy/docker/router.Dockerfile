# The router: HTTP in, gRPC to the workers. No torch, no numpy, no Redis.
# Build from the root of the repository: docker build -f deploy/docker/router.Dockerfile .
#
# In a closed network give BASE_IMAGE (any image with Python 3.11 or newer as `python`) and pip's own
# variables PIP_INDEX_URL, PIP_TRUSTED_HOST and PIP_CERT (a file that is in BASE_IMAGE).
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS packages
ARG PIP_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
ARG EXTRAS=router
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY pyproject.toml deploy/docker/constraints.txt deploy/docker/requirements.py ./
# EXTRAS is a list, so it stands without quotes: `router observe` for one that sends traces.
# hadolint ignore=SC2086
RUN python -m venv --without-pip /venv \
    && python requirements.py ${EXTRAS} > requirements.txt \
    && python -m pip --python /venv/bin/python install -r requirements.txt -c constraints.txt

FROM packages AS sources
COPY README.md LICENSE ./
COPY lib lib
COPY proto/gen proto/gen
COPY cli cli
COPY services services
# What builds the wheel is pinned, too; it stays in this stage. The other services are left out.
RUN PIP_CONSTRAINT=/build/constraints.txt python -m pip install --no-deps --target /outrider . \
    && rm -r /outrider/bin /outrider/outrider_worker /outrider/outrider_planner /outrider/outrider_cli

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Outrider router" \
      org.opencontainers.image.description="The OpenAI API in front of Outrider's workers." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 outrider \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent outrider
COPY --from=packages /venv /venv
COPY --from=sources /outrider /outrider
ENV PATH=/venv/bin:$PATH \
    PYTHONPATH=/outrider \
    PYTHONUNBUFFERED=1
ENV OUTRIDER_ROUTER_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 \
  CMD ["/venv/bin/python", "-m", "outrider_runtime.probe", "http://127.0.0.1:8000/ready"]
ENTRYPOINT ["/venv/bin/python", "-m", "outrider_router"]
