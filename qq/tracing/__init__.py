"""Traces of messages by OpenTelemetry: spans, and their export to a collector.

tracer.py     decides which messages are traced, and makes their spans
exporting.py  sends spans to the collector

Invariant: tracing never waits. Spans that the collector does not accept in time are dropped and counted. The libraries
are an extra (`tracing`), and are imported only if traces are configured.
"""
