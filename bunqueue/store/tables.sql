-- The logs of a bunqueue server, and who owns them.  Made by `bunqueue store init`.
create schema bunqueue;

create table bunqueue.store (
    only_row boolean primary key default true check (only_row),
    format   int     not null,               -- of these tables
    id       text    not null,               -- of this store; a data folder says which one it belongs to
    shards   int     not null,               -- how many there are, for ever
    gen      int     not null default 0,     -- the partition that is written to
    replicates boolean not null,             -- its storage keeps copies, so no standby is asked for
    use      text    not null default ''     -- '': by servers; 'adopting FOLDER', 'left FOLDER': by none
);

create table bunqueue.shards (
    id           int primary key,
    epoch        bigint not null default 0,  -- raised by every claim; appends check it
    owner        text   not null default '', -- its token
    snapshot_seq bigint not null default 0   -- the newest snapshot holds all up to this position
);

create table bunqueue.hosts (
    id   text primary key,                   -- an owner's token
    beat bigint not null                     -- changes while it lives
);

-- Insert only.  A partition is dropped as a whole when all its records are in snapshots.
create table bunqueue.log (
    gen   int    not null,
    shard int    not null,
    seq   bigint not null,                   -- the position: 1, 2, 3 ... within a shard
    epoch bigint not null,
    body  bytea  not null,                   -- a record: see shardproc/replication/record.py
    primary key (gen, shard, seq)
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
