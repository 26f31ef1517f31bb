"""The log of a replicated group on a node's disk: segments, manifest, checkpoints, term and vote.

Invariant: entries that are reported as synced are on stable storage, and damage is detected, never passed over.

    journal.py         the log as a whole, in the form that pysyncobj expects; group commit
      lazy_entries.py    entries whose payload is read from the disk on demand
      term_runs.py       the term of each entry
      entry.py           the format of an entry
    segment.py         the format of an open segment, and all errors
    sealed_segment.py  the format of a sealed segment
    segment_reader.py  loading the log at a start, reading records
    segment_writer.py  the operations on files, and their order
    manifest.py        the list of segment files that make up the log
    sync_mark.py       how much of the open segment is durable
    checkpoints.py     files with the state at an index
    hardstate.py       term, vote, voter status
    housekeeping.py    when to take checkpoints and to free space
    compaction.py      rewriting old segments as smaller files
    free_space.py      free space on the disk
    register.py        a few bytes that change, stored in two files
    mirrored_file.py   bytes that do not change, stored twice in the same file
"""
