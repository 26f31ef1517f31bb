"""Publish one message, and get it."""

import os

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/")

connection = pika.BlockingConnection(pika.URLParameters(URL))
channel = connection.channel()
channel.queue_declare("first", durable=True, arguments={"x-queue-type": "quorum"})
channel.confirm_delivery()
channel.basic_publish("", "first", b"hello")  # returns when a majority has it on disk
method, properties, body = channel.basic_get("first", auto_ack=True)
print(body.decode())
connection.close()
