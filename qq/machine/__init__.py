"""The replicated state machine: queues and the catalog they live in. Pure: state and log in, state and effects out."""
