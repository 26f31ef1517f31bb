"""The simulated world: time, disks, links, processes and the sockets of clients."""
