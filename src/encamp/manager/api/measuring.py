"""What Prometheus is told. Names and meanings are in docs/api.md."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from encamp import __version__
from encamp.model.host import Presence
from encamp.model.request import REQUEST_OVER, RequestState

if TYPE_CHECKING:
    from encamp.manager.api.limits import Limits
    from encamp.manager.daemon import Manager
    from encamp.model.trigger import TriggerView

METHODS = frozenset({"GET", "POST", "DELETE"})
"""Others are counted together: who calls chooses them."""
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

Metric = GaugeMetricFamily | CounterMetricFamily


class Meters:
    """What is counted while it happens."""

    def __init__(self) -> None:
        # When each number was first counted is of use to nobody, and doubles what is told.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "encamp_http_requests",
            "Calls that were answered, streams when they have ended.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "encamp_http_request_duration_seconds",
            "How long calls took, streams until they ended.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self._refused = Counter(
            "encamp_http_refused",
            "Calls that were turned away before they were looked at.",
            ("status",),
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)

    def call(self, method: str, route: str, status: int, seconds: float) -> None:
        known = method if method in METHODS else "other"
        self._calls.labels(known, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def told(self) -> bytes:
        return generate_latest(self.registry)


class SiteCollector(Collector):
    """What is looked up when somebody asks."""

    def __init__(self, manager: Manager, limits: Limits) -> None:
        self._manager = manager
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        manager = self._manager
        yield _labelled(
            "encamp_manager_info",
            "Which manager this is: always 1.",
            ("site", "version"),
            {(manager.site.name, __version__): 1},
        )
        yield _gauge(
            "encamp_manager_start_time_seconds", "When the manager started.", manager.started
        )
        yield from self._hosts()
        yield from self._requests()
        yield _gauge(
            "encamp_commands_under_way",
            "Commands that are not over.",
            len(manager.dispatcher.commands.records),
        )
        yield _gauge("encamp_triggers", "Triggers that are watched.", len(_triggers(manager)))
        fired = CounterMetricFamily(
            "encamp_trigger_fired", "How often each trigger has fired.", labels=("trigger",)
        )
        for view in _triggers(manager):
            fired.add_metric((view.name,), view.fired)
        yield fired
        yield _count(
            "encamp_bus_messages", "Messages taken from agents.", manager.listener.messages
        )
        yield _gauge(
            "encamp_store_in_trouble",
            "1 while the store cannot be written to.",
            1 if manager.store.trouble else 0,
        )
        yield _count(
            "encamp_store_dropped",
            "Events and log entries that could not be kept.",
            manager.store.dropped,
        )
        yield _gauge("encamp_http_streams", "Streams that are open.", self._limits.streams)
        yield _gauge("encamp_tokens", "Tokens that are valid.", len(manager.tokens.all()))

    def _hosts(self) -> Iterator[Metric]:
        present: Tally[tuple[str, ...]] = Tally({(presence.value,): 0 for presence in Presence})
        machines: Tally[tuple[str, ...]] = Tally()
        for state in self._manager.core.picture.hosts.values():
            present[(state.record.presence.value,)] += 1
            for machine in state.machines.values():
                machines[machine.environment, machine.state.value] += 1
        yield _labelled("encamp_hosts", "Hosts of the site.", ("presence",), dict(present))
        yield _labelled(
            "encamp_machines", "Machines on hosts.", ("environment", "state"), dict(machines)
        )

    def _requests(self) -> Iterator[Metric]:
        # Counted as they come and go: there may be very many.
        counts = self._manager.desk.requests.standing.counts()
        states: dict[tuple[str, ...], int] = {
            (state.value,): counts.get(state.value, 0)
            for state in RequestState
            if state not in REQUEST_OVER
        }
        placement = self._manager.core.placement
        waiting: dict[tuple[str, ...], int] = {
            (cause.value or "none",): count for cause, count in placement.waiting().items()
        }
        now = time.time()
        oldest = placement.oldest()
        yield _labelled("encamp_requests", "Requests that are not over.", ("state",), states)
        yield _labelled(
            "encamp_requests_waiting",
            "Requests in the queue, by what they wait for.",
            ("cause",),
            waiting,
        )
        yield _gauge(
            "encamp_requests_oldest_waiting_seconds",
            "How long the oldest request in the queue has waited.",
            0.0 if oldest is None else max(0.0, now - oldest),
        )


def _triggers(manager: Manager) -> list[TriggerView]:
    return list(manager.core.engine.views())


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=value)


def _count(name: str, about: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, about, value=value)


def _labelled(
    name: str, about: str, labels: tuple[str, ...], values: dict[tuple[str, ...], int]
) -> GaugeMetricFamily:
    made = GaugeMetricFamily(name, about, labels=labels)
    for key, value in values.items():
        made.add_metric(key, value)
    return made
