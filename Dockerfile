# An image of the bunqueue server and its commands, for a server alone or for a host of a cluster (config/cluster).
#
#   docker build --tag bunqueue .
#   docker run --publish 6789:6789 --publish 6790:6790 --volume jobs:/var/lib/bunqueue \
#       --env BUNQUEUE_AUTH_TOKEN="$TOKEN" --env BUNQUEUE_PLAINTEXT=true bunqueue
#
# BUNQUEUE_PLAINTEXT is for networks that you trust; else mount a certificate: BUNQUEUE_TLS_CERT, BUNQUEUE_TLS_KEY.
# All settings are variables: config/bunqueue.toml lists them.

FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv
RUN python3 -m venv /opt/bunqueue
COPY requirements/build.txt requirements/image.txt /src/requirements/
RUN /opt/bunqueue/bin/pip install --no-cache-dir --require-hashes \
    --requirement /src/requirements/build.txt --requirement /src/requirements/image.txt
COPY pyproject.toml setup.py pyspark_bunqueue.py README.md LICENSE /src/
COPY scripts/unasync.py /src/scripts/
COPY bunqueue /src/bunqueue
COPY router /src/router
COPY shardproc /src/shardproc
RUN /opt/bunqueue/bin/pip install --no-cache-dir --no-deps --no-build-isolation /src \
    && /opt/bunqueue/bin/pip uninstall --yes setuptools pip

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 tzdata ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --user-group --uid 6789 --no-create-home bunqueue \
    && install --directory --owner bunqueue --group bunqueue --mode 0700 /var/lib/bunqueue
COPY --from=build /opt/bunqueue /opt/bunqueue
# busy_poll spends processor time that a container is charged for.
ENV PATH=/opt/bunqueue/bin:$PATH \
    BUNQUEUE_HOST=0.0.0.0 \
    BUNQUEUE_DATA_DIR=/var/lib/bunqueue \
    BUNQUEUE_BUSY_POLL=0
USER bunqueue
WORKDIR /var/lib/bunqueue
VOLUME /var/lib/bunqueue
EXPOSE 6789 6790
ENTRYPOINT ["bunqueue"]
CMD ["start"]
