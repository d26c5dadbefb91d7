# The broker in a container: docker build -t token-broker .
# The development provider:  docker build -t token-broker-provider --target provider .
#
# The broker runs as a user without a name or a capability, and with a read-only root file system: all that it ever
# writes is under /var/lib/token-broker, the embedded store or, with TOKEN_BROKER_DATABASE_URL, the journal.
# Deploy/compose.yaml and Deploy/kubernetes/ run it so, in several replicas; alone it is
#
#     docker run --read-only --cap-drop=ALL --security-opt=no-new-privileges -p 127.0.0.1:8080:8080 \
#         -e TOKEN_BROKER_PUBLIC_BASE_URL=http://127.0.0.1:8080 -v token-broker-data:/var/lib/token-broker token-broker

# The images that it begins with. A tag moves with each update of Debian or Swift; a digest does not. To build from the same
# images again, keep what `docker buildx imagetools inspect --format '{{.Manifest.Digest}}' IMAGE` prints of each, and build
# with --build-arg SWIFT_IMAGE=swift:6.3-bookworm@sha256:… --build-arg DEBIAN_IMAGE=debian:bookworm-slim@sha256:…
ARG SWIFT_IMAGE=swift:6.3-bookworm
ARG DEBIAN_IMAGE=debian:bookworm-slim

FROM ${SWIFT_IMAGE} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends libssl-dev libpq-dev pkg-config \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# What `token-broker version` names: --build-arg TOKEN_BROKER_COMMIT=$(git rev-parse --short=12 HEAD)
ARG TOKEN_BROKER_COMMIT=
RUN Deploy/build token-broker token-broker-provider \
    && install --strip -t / "$(Deploy/build)/token-broker" "$(Deploy/build)/token-broker-provider" \
    && Deploy/sbom /token-broker >/token-broker.cdx.json

FROM ${DEBIAN_IMAGE} AS runtime
# Swift's library and C++'s are inside the programs; what is left are OpenSSL, the C runtime, and libpq, which the broker
# loads where it is given a database. The user goes by number, so that an orchestrator can see that it is not root
# (runAsNonRoot).
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libpq5 libssl3 \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001
WORKDIR /
STOPSIGNAL SIGTERM

# For development: it lets anyone in by name. It says nothing to hosts outside unless it is told to listen there.
FROM runtime AS provider
COPY --from=build /token-broker-provider /usr/local/bin/token-broker-provider
EXPOSE 8181
ENTRYPOINT ["/usr/local/bin/token-broker-provider"]

FROM runtime AS broker
COPY --from=build /token-broker /usr/local/bin/token-broker
# What it is made of, in CycloneDX.
COPY --from=build /token-broker.cdx.json /usr/share/doc/token-broker/
USER root
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/token-broker
USER 10001:10001
ENV TOKEN_BROKER_LISTEN=0.0.0.0:8080
# Where the embedded store, or the journal, lies unless told otherwise.
VOLUME /var/lib/token-broker
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 CMD ["/usr/local/bin/token-broker", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/token-broker"]
