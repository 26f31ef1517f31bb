"""The options of queues: their declarations, the checks of arguments and policies, and the settings that follow."""
