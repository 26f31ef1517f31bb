"""An AMQP channel: turns methods into commands, and effects into answers.

channel.py      the channel: dispatches to its parts core.py         shared by the parts: requests to the log, answers,
order of methods publishing.py   basic.publish and confirms          declaring.py     queues, exchanges, bindings
consuming.py    consumers, deliveries, settling     transacting.py   class tx; transaction.py: an open transaction
"""
