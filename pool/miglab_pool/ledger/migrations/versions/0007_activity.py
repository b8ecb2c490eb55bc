"""How much of each lease was work, by day: for reports of usage."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "activity",
        sa.Column("lease", sa.Integer, sa.ForeignKey("leases.id"), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("active_s", sa.Float, nullable=False),
        sa.Column("idle_s", sa.Float, nullable=False),
        sa.Column("unknown_s", sa.Float, nullable=False),
    )
    op.create_index("activity_day", "activity", ["day"])
