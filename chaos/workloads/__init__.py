"""What clients do to a cluster while it is hurt, and write down: one module a workload."""
