-- The log of a bunqueue server, and who owns it.  Made by `bunqueue store init`.
create schema bunqueue;

create table bunqueue.store (
    only_row boolean primary key default true check (only_row),
    format   int  not null,            -- of these tables
    shards   int  not null,            -- how many there are, for ever
    gen      int  not null default 0   -- the partition that is written to
);

create table bunqueue.shards (
    id           int primary key,
    epoch        bigint not null default 0,   -- raised by every claim; appends check it
    owner        text   not null default '',
    snapshot_seq bigint not null default 0    -- the newest snapshot has all up to this position
);

create table bunqueue.hosts (
    id   text primary key,   -- an owner
    beat bigint not null     -- changes while it lives
);

create table bunqueue.log (
    gen   int    not null,
    shard int    not null,
    seq   bigint not null,   -- the position: 1, 2, 3 ... within a shard
    epoch bigint not null,
    body  bytea  not null,   -- a record: see shardproc/replication/record.py
    primary key (gen, shard, seq)
) partition by list (gen);
alter table bunqueue.log alter column body set storage external;

create table bunqueue.log_0 partition of bunqueue.log for values in (0);
alter table bunqueue.log_0 alter column body set storage external;
