"""When a ticket's present period began: of waiting, of being served, or aside."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("tickets", sa.Column("since", sa.Float))
