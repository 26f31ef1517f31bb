"""The log of one group on one node's disk.

Invariant: what is said to be synced is on stable storage, and damage is found, never passed over.

    journal.py         the log as a whole, as pysyncobj sees it; group commit
      views.py           entries that are read when they are asked for
      term_runs.py       the term of each entry
    segment.py         the format of an open segment, and all errors
    sealed.py          the format of a sealed segment
    segment_files.py   what is read, and found at a start      segment_writer.py   what is done, in which order
    manifest.py        which files are the log                 synced.py           how much of the open one is durable
    checkpoints.py     the state at an index                   hardstate.py        term, vote, standing
    housekeeping.py    when checkpoints are taken and space is given back
    compaction.py      how old segments are made smaller       space.py            whether there is room
    register.py        a few bytes that change, kept twice     twofold.py          bytes that do not, kept twice
"""
