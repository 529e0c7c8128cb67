"""What every room knows: choices, ledger, interactions, reports, links, rankings."""
