"""Exchanges: which queues a message goes to. Pure; knows names, not queues."""
