# Valkey (or Redis) from the packages of a distribution, where no image of it can be pulled.
# Debian 13 has valkey-server; for Debian 12 give STORE_PACKAGE=redis-server.
ARG BASE_IMAGE=debian:trixie-slim
FROM ${BASE_IMAGE}
ARG STORE_PACKAGE=valkey-server
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends "${STORE_PACKAGE}" \
    && rm -rf /var/lib/apt/lists/* \
    && if [ ! -e /usr/bin/valkey-server ]; then \
         ln -s redis-server /usr/bin/valkey-server && ln -s redis-cli /usr/bin/valkey-cli; \
       fi
USER 10001:10001
EXPOSE 6379
HEALTHCHECK --interval=5s --timeout=3s --retries=3 CMD ["valkey-cli", "ping"]
CMD ["valkey-server"]
