"""OpenTelemetry: a job's account as spans and metrics, sent over OTLP/HTTP (docs/opentelemetry.md)."""
