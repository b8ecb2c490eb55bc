"""How GPUs are to be cut: layouts, always or at some times."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "layouts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("course", sa.String, nullable=False),
        sa.Column("cuts", sa.Text, nullable=False),
        sa.Column("times", sa.Text, nullable=False),
        sa.Column("made_by", sa.String, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_index("layouts_state", "layouts", ["state"])
