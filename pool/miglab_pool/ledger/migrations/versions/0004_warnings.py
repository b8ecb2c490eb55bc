"""Leases that are warned before they are reclaimed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for column in (
        sa.Column("warned_at", sa.Float),
        sa.Column("reclaim_at", sa.Float),
        sa.Column("warn_kind", sa.String, nullable=False, server_default=""),
        sa.Column("warn_why", sa.Text, nullable=False, server_default=""),
        sa.Column("stays", sa.Integer, nullable=False, server_default="0"),
        sa.Column("stay_until", sa.Float),
    ):
        op.add_column("leases", column)
