"""Plain values, without rules: what the ledger keeps and what decisions are made of."""
