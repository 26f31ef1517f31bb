"""The simulated world: time, disks, links, processes and client sockets."""
