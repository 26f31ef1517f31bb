"""The paths of RabbitMQ's management API, and those of qq."""
