-- The logs of a bunqueue server, and who owns them.  Made by `bunqueue store init`.
create schema bunqueue;

create table bunqueue.store (
    only_row boolean primary key default true check (only_row),
    format   int     not null,               -- of these tables
    id       text    not null,               -- of this store; a data folder says which one it belongs to
    shards   int     not null,               -- how many there are, for ever
    gen      int     not null default 0,     -- the partition that is written to
    cluster  text    not null default '',    -- its name, if several hosts share the shards
    secret   text    not null,               -- by which hosts know each other
    replicates boolean not null,             -- its storage keeps copies, so no standby is asked for
    use      text    not null default ''     -- '': by servers; else by none: 'adopting' or 'left', ID, WHERE
);

create table bunqueue.shards (
    id           int primary key,
    epoch        bigint not null default 0,  -- raised by every claim; appends check it
    owner        text   not null default '', -- its token: the id of its data folder, "/", and of its process
    beat         bigint not null default 0,  -- changes while the owner lives, with each append
    position     bigint not null default 0,  -- of the last record
    snapshot_seq bigint not null default 0,  -- the newest snapshot holds all up to this position
    schema       int    not null default 0,  -- that its records are written for: an older host cannot own it
    -- Of a cluster of hosts: who is to own it.
    home         text   not null default '', -- the id of a host; '': nobody has said so yet
    wanted       text   not null default ''  -- the host that an operator moves it to
) with (fillfactor = 50);                    -- rows that change each second stay where they are

-- The hosts of a cluster.
create table bunqueue.hosts (
    id        text primary key,              -- of its data folder
    name      text     not null unique,      -- for people
    number    smallint not null unique check (number between 1 and 31),  -- in its connections' numbers
    link      text     not null,             -- where other hosts reach it
    certificate text   not null,             -- that it shows there, PEM
    clients   text     not null,             -- where clients reach it, for people
    version   text     not null,             -- of its program
    schema    int      not null,             -- the newest that it knows
    link_versions int4range not null,        -- of the protocol between hosts
    beat      bigint   not null default 0,   -- changes while it lives
    draining  boolean  not null default false,
    joined_at timestamptz not null default now()
) with (fillfactor = 50);

-- Who keeps copies of a shard that are up to date, and how far these are.
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
    primary key (shard, seq, gen)            -- in this order, as the tail of one shard is what is read
) partition by list (gen);
alter table bunqueue.log alter column body set storage external;

create table bunqueue.log_0 partition of bunqueue.log for values in (0);
alter table bunqueue.log_0 alter column body set storage external;

create table bunqueue.snapshots (
    shard   int         not null,
    seq     bigint      not null,            -- it holds all up to this position
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
