"""The test harness that hurts a cluster and decides whether a promise was broken."""
