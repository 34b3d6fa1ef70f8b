# Prometheus from the packages of a distribution, where no image of it can be pulled.
ARG BASE_IMAGE=debian:trixie-slim
FROM ${BASE_IMAGE}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=65534 --group=65534 /prometheus
USER 65534:65534
EXPOSE 9090
ENTRYPOINT ["prometheus"]
