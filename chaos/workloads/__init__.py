"""The clients of a chaos run: each module is a workload that records a history while the cluster is hurt."""
