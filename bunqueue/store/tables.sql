-- The logs of a bunqueue server, and who owns them.  Made by `bunqueue store init`.
create schema bunqueue;

create table bunqueue.store (
    only_row boolean primary key default true check (only_row),
    format   int     not null,               -- of these tables
    id       text    not null,               -- of this store; a data folder says which one it belongs to
    shards   int     not null,               -- number of shards; never changes
    gen      int     not null default 0,     -- the partition that is written to
    cluster  text    not null default '',    -- the cluster's name, if several hosts share the shards
    secret   text    not null,               -- by which hosts authenticate each other
    replicates boolean not null,             -- the storage keeps copies, so no standby is required
    use      text    not null default ''     -- '': servers may use it; else: 'adopting'/'left' ID WHERE
);

create table bunqueue.shards (
    id           int primary key,
    epoch        bigint not null default 0,  -- raised by every claim; appends check it
    owner        text   not null default '', -- its token: id of the data folder, "/", id of the process
    beat         bigint not null default 0,  -- heartbeat: changes while the owner is alive, with each append
    position     bigint not null default 0,  -- of the last record
    snapshot_seq bigint not null default 0,  -- the newest snapshot has every record up to this position
    schema       int    not null default 0,  -- the schema of its records: an older host cannot own the shard
    -- In a cluster: the host that should own the shard.
    home         text   not null default '', -- the id of a host; '': not assigned yet
    wanted       text   not null default ''  -- the host to which an operator has moved it
) with (fillfactor = 50);                    -- so that rows that change every second are updated in place

-- The hosts of a cluster.
create table bunqueue.hosts (
    id        text primary key,              -- of its data folder
    name      text     not null unique,      -- for people
    number    smallint not null unique check (number between 1 and 31),  -- part of its connections' numbers
    link      text     not null,             -- the address for other hosts
    certificate text   not null,             -- the certificate at that address, PEM
    clients   text     not null,             -- the address for clients, as a text for people
    version   text     not null,             -- of its program
    schema    int      not null,             -- the newest schema that it knows
    link_versions int4range not null,        -- versions of the protocol between hosts
    beat      bigint   not null default 0,   -- heartbeat: changes while the host is alive
    draining  boolean  not null default false,
    joined_at timestamptz not null default now()
) with (fillfactor = 50);

-- The hosts that keep up-to-date copies of a shard, and the position of each copy.
create table bunqueue.followers (
    shard int    not null,
    host  text   not null references bunqueue.hosts (id) on delete cascade,
    seq   bigint not null,
    primary key (shard, host)
) with (fillfactor = 50);

-- Insert only.  A partition is dropped as a whole when all its records are in snapshots.
create table bunqueue.log (
    gen   int    not null,
    shard int    not null,
    seq   bigint not null,                   -- the position: 1, 2, 3 ... within a shard
    epoch bigint not null,
    body  bytea  not null,                   -- a record: see shardproc/replication/record.py
    primary key (shard, seq, gen)            -- in this order, because reads want the tail of one shard
) partition by list (gen);
alter table bunqueue.log alter column body set storage external;

create table bunqueue.log_0 partition of bunqueue.log for values in (0);
alter table bunqueue.log_0 alter column body set storage external;

create table bunqueue.snapshots (
    shard   int         not null,
    seq     bigint      not null,            -- the snapshot has every record up to this position
    place   text        not null,            -- '' for the chunks below, or a URL
    bytes   bigint      not null,            -- as stored
    made_at timestamptz not null default now(),
    primary key (shard, seq)
);

create table bunqueue.snapshot_chunks (
    shard  int    not null,
    seq    bigint not null,
    number int    not null,
    body   bytea  not null,
    primary key (shard, seq, number)
);
alter table bunqueue.snapshot_chunks alter column body set storage external;
