"""The command line as a tree of commands: types of their options, examples, and the names that RabbitMQ gives them."""
