"""Time, timers, randomness and the disk: ports that the cluster uses, and asyncio and files behind them."""
