"""`ett bench faults`: faults injected into the writer, the commit and the restore, each followed by a restore."""
