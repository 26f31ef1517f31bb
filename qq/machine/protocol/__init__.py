"""The contract of the state machine: commands, effects and refusals, and how commands are encoded."""
