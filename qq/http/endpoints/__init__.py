"""Handlers for the paths of RabbitMQ's management API, and for those of qq."""
