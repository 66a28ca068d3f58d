"""The collector: event logs over HTTP into the job store, and the store as Prometheus counters (docs/collector.md).

ett sync (agent.py) -> POST /v1/events (server.py) -> the store -> counters (counter_book.py) -> GET /metrics
"""
