"""The ledger's tables as SQLAlchemy sees them today.  `migrations/` says how they came to be."""

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData()

gpus = Table(
    "gpus",
    metadata,
    Column("uuid", String, primary_key=True),
    Column("idx", Integer, nullable=False),
    Column("name", String, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("memory_slices", Integer, nullable=False),
    Column("sm_count", Integer),
    Column("mig", Boolean),
    Column("state", String, nullable=False),
    Column("why", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("course", String, nullable=False),
)

slices = Table(
    "slices",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("gpu", String, ForeignKey("gpus.uuid"), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("profile", String, nullable=False),
    Column("start", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("sm_count", Integer, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("gi_id", Integer),
    Column("ci_id", Integer),
    Column("uuid", String),
    Column("lease", Integer),
    Column("tried", Boolean, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("retry_at", Float, nullable=False),
    Column("remake", Boolean, nullable=False),
    Column("lost", Boolean, nullable=False),
    Column("why", Text, nullable=False),
    Column("course", String, nullable=False),
    Index("slices_state", "state"),
    Index("slices_generation", "gpu", "generation", unique=True),
)

tickets = Table(
    "tickets",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("user", String, nullable=False),
    Column("server", String, nullable=False),
    Column("course", String, nullable=False),
    Column("shape", String, nullable=False),
    Column("asked", String, nullable=False),
    Column("state", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("attended_at", Float, nullable=False),
    Column("offered_at", Float),
    Column("lease", Integer),
    Column("reason", String, nullable=False),
    Column("message", Text, nullable=False),
    Index("tickets_state", "state"),
)

leases = Table(
    "leases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("ticket", Integer, ForeignKey("tickets.id")),
    Column("generation", Integer, nullable=False),
    Column("user", String, nullable=False),
    Column("server", String, nullable=False),
    Column("course", String, nullable=False),
    Column("shape", String, nullable=False),
    Column("state", String, nullable=False),
    Column("granted_at", Float, nullable=False),
    Column("holder", String, nullable=False),
    Column("taken_at", Float),
    Column("attached_at", Float),
    Column("releasing_at", Float),
    Column("ended_at", Float),
    Column("ends_at", Float),
    Column("extensions", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Index("leases_state", "state"),
    Index("leases_user", "user"),
)

lease_slices = Table(
    "lease_slices",
    metadata,
    Column("lease", Integer, ForeignKey("leases.id"), primary_key=True),
    Column("slice", Integer, ForeignKey("slices.id"), primary_key=True),
    Column("position", Integer, nullable=False),
    Index("lease_slices_slice", "slice"),
)

transitions = Table(
    "transitions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("what", String, nullable=False),
    Column("thing", String, nullable=False),
    Column("from_state", String, nullable=False),
    Column("to_state", String, nullable=False),
    Column("by", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("course", String, nullable=False),
    Index("transitions_thing", "what", "thing"),
    Index("transitions_at", "at"),
)

desk = Table(
    "desk",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("paused", Text, nullable=False),
)
