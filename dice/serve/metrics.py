"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dice.serve.scheduler import Scheduler

SECONDS = (0.01, 0.03, 0.06, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


@dataclass(eq=False)
class Metrics:
    """The engine's own numbers are read when they are asked for."""

    scheduler: Scheduler
    slots: int
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        disable_created_metrics()
        of = self.registry
        self.requests = Counter("dice_requests", "Requests answered", ["route", "status"], registry=of)
        self.seconds = Histogram("dice_request_seconds", "Until their end", ["route"], buckets=SECONDS, registry=of)
        self.first = Histogram("dice_first_text_seconds", "Until the first text", buckets=SECONDS, registry=of)
        self.tokens = Counter("dice_tokens", "Tokens of texts that were written to their end", ["kind"], registry=of)
        self.verdicts = Counter("dice_verdicts", "Verifications", ["outcome"], registry=of)
        of.register(self)

    def collect(self) -> Iterator[Metric]:
        """The engine's, as they are now."""
        scheduler, held = self.scheduler, self.scheduler.occupation
        gauges = {
            "dice_engine_alive": ("Whether the engine runs", int(scheduler.alive)),
            "dice_texts_open": ("Texts that clients wait for", scheduler.open),
            "dice_slots": ("Texts that can be written at once", self.slots),
            "dice_slots_used": ("Texts in slots of the engine", held.residents),
            "dice_texts_waiting": ("Texts that wait for a slot", held.waiting),
            "dice_cache_pages": ("Pages of keys and values", held.pages),
            "dice_cache_pages_free": ("Pages that no text holds", held.pages_free),
        }
        for name, (what, value) in gauges.items():
            yield GaugeMetricFamily(name, what, value=value)
        yield CounterMetricFamily("dice_forwards", "Forwards of the engine", value=held.forwards)
        yield CounterMetricFamily("dice_engine_failures", "Engines that failed", value=len(scheduler.failures))

    def text(self) -> bytes:
        return generate_latest(self.registry)
