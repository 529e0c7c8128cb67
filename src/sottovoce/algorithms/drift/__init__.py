"""DRIFT, data owners and an orchestrator."""
