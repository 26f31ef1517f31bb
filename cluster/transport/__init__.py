"""Links between nodes: handshake, frames, outgoing messages that wait for a sync, and who may connect."""
