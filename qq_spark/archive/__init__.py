"""An archive of queues in Parquet files: written once per message, replayed, and analysed.

    DIR/_archive.json                                    format, and virtual host
    DIR/_replay-ID.json                                  plan and progress of a replay
    DIR/queue=Q/_queue.json                              name of the queue, and its present series
    DIR/queue=Q/date=D/SERIES-LEASE-PART.parquet         messages
    DIR/queue=Q/date=D/_manifest-SERIES-LEASE.json       files of a lease, with their counts and hashes

A *series* is a group of the queue that this archive has opened, with a name that no other group has. Each lease of it
becomes files, and then a manifest. A message is in the archive if its lease has a manifest; other files do not count.

The functions that need Spark import it when they are called. The package uses pyarrow for files, also of object stores.
"""
