"""The judge of histories: which promises a run has kept, and which it has broken.

`scan` parses rows and puts those of a message into the same bucket. `messages` judges each message by its life (`life`,
`rules`), and collects facts for the judgements beyond a message: by slices of time (`streams`, `suspects`), by
transaction (`transactions`), and of the whole run (`timeline`). `verdict` is the result. Each of these steps judges a
part of the history, so chaos/pipeline spreads them over Spark; `memory` takes them in turn for a small history.
"""
