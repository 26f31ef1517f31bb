"""One AMQP channel: methods in, commands out; effects in, answers out.

channel.py      the channel: which part carries out what
core.py         what the parts share: asking the log, answering, one method after the other
publishing.py   basic.publish and confirms          declaring.py     queues, exchanges, bindings
consuming.py    consumers, deliveries, settling     transacting.py   class tx, and what a transaction holds
"""
