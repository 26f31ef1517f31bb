"""Traces of messages, by OpenTelemetry: spans, and their way to a collector.

tracer.py     which messages are traced, and what their spans say
exporting.py  the way to the collector

Invariant: nothing here waits. What the collector does not take in time is dropped and counted. The libraries are an
extra (`tracing`), and are loaded only where traces are configured.
"""
