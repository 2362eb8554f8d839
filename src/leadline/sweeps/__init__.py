"""The only code that runs many things: sweeps of runs, answered by an engine and kept in a store.

- `store`: a folder of immutable Parquet parts, read back as `Runs`
- `lock`: one writer at a time
- `runner`: wanted - stored = todo; group, run, record, repeat
- `engines`, `worker`, `backends`: how and where a group is answered
- `definition`, `estimate`, `listing`, `progress`: what the command line needs
"""
