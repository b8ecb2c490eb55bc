"""The first ledger: GPUs, slices, tickets, leases and every transition; course in each."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "gpus",
        sa.Column("uuid", sa.String, primary_key=True),
        sa.Column("idx", sa.Integer, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("memory_mib", sa.Integer, nullable=False),
        sa.Column("memory_slices", sa.Integer, nullable=False),
        sa.Column("sm_count", sa.Integer),
        sa.Column("mig", sa.Boolean),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("course", sa.String, nullable=False),
    )
    op.create_table(
        "slices",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("gpu", sa.String, sa.ForeignKey("gpus.uuid"), nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("profile", sa.String, nullable=False),
        sa.Column("start", sa.Integer, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("sm_count", sa.Integer, nullable=False),
        sa.Column("memory_mib", sa.Integer, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("gi_id", sa.Integer),
        sa.Column("ci_id", sa.Integer),
        sa.Column("uuid", sa.String),
        sa.Column("lease", sa.Integer),
        sa.Column("tried", sa.Boolean, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("retry_at", sa.Float, nullable=False),
        sa.Column("remake", sa.Boolean, nullable=False),
        sa.Column("lost", sa.Boolean, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("course", sa.String, nullable=False),
    )
    op.create_index("slices_state", "slices", ["state"])
    op.create_index("slices_generation", "slices", ["gpu", "generation"], unique=True)
    op.create_table(
        "tickets",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("course", sa.String, nullable=False),
        sa.Column("shape", sa.String, nullable=False),
        sa.Column("asked", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("attended_at", sa.Float, nullable=False),
        sa.Column("offered_at", sa.Float),
        sa.Column("lease", sa.Integer),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_index("tickets_state", "tickets", ["state"])
    op.create_table(
        "leases",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("ticket", sa.Integer, sa.ForeignKey("tickets.id")),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("course", sa.String, nullable=False),
        sa.Column("shape", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("granted_at", sa.Float, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
        sa.Column("taken_at", sa.Float),
        sa.Column("attached_at", sa.Float),
        sa.Column("releasing_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("ends_at", sa.Float),
        sa.Column("extensions", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_index("leases_state", "leases", ["state"])
    op.create_index("leases_user", "leases", ["user"])
    op.create_table(
        "lease_slices",
        sa.Column("lease", sa.Integer, sa.ForeignKey("leases.id"), primary_key=True),
        sa.Column("slice", sa.Integer, sa.ForeignKey("slices.id"), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
    )
    op.create_index("lease_slices_slice", "lease_slices", ["slice"])
    op.create_table(
        "transitions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("what", sa.String, nullable=False),
        sa.Column("thing", sa.String, nullable=False),
        sa.Column("from_state", sa.String, nullable=False),
        sa.Column("to_state", sa.String, nullable=False),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("course", sa.String, nullable=False),
    )
    op.create_index("transitions_thing", "transitions", ["what", "thing"])
    op.create_index("transitions_at", "transitions", ["at"])
