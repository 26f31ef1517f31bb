"""The replicated state machine: queues, and the catalog that holds them. Pure: it turns log entries into effects."""
