# PostgreSQL under Patroni, and etcd, from Debian's packages: compose.yaml runs three of each from this image.
FROM debian:bookworm-slim
# The package must not create a database: Patroni creates its own.
RUN mkdir --parents /etc/postgresql-common \
    && echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf \
    && apt-get update \
    && apt-get install --yes --no-install-recommends postgresql-15 patroni etcd-server etcd-client \
    && rm -rf /var/lib/apt/lists/*
COPY --chmod=0644 patroni.yml /etc/patroni/bunqueue.yml
COPY --chmod=0755 make-database /etc/patroni/make-database
USER postgres
VOLUME /var/lib/postgresql
CMD ["patroni", "/etc/patroni/bunqueue.yml"]
