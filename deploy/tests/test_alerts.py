"""Each alert fires for its own fault, and a healthy fleet fires none."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support import ROOT, check, run

RULES = ROOT / "deploy/prometheus/alerts.yaml"
# Minutes with a sample each: HitRateFell compares with yesterday.
DAY, HOUR = 1450, 70
FAULT = 80

# The values of a series, for a number of minutes before the fault.
Values = Callable[[int], str]


def flat(value: float) -> Values:
    """A series that has one value."""
    return lambda healthy: f"{value}x{healthy + FAULT}"


def steady(step: float) -> Values:
    """A series that rises by a step each minute."""
    return lambda healthy: f"0+{step}x{healthy + FAULT}"


def then(before: float, after: float) -> Values:
    """A series with another value during the fault."""
    return lambda healthy: f"{before}x{healthy} {after}x{FAULT}"


def slower(before: float, after: float) -> Values:
    """A series that rises by another step during the fault."""
    return lambda healthy: f"0+{before}x{healthy} {before * healthy}+{after}x{FAULT}"


RISES = slower(0, 1)
HEALTHY = {
    "up{}": flat(1),
    'listeners{status="connected", trust="exact"}': flat(100),
    'listeners{status="connected", trust="degraded"}': flat(9),
    "lost_messages_total{}": flat(0),
    'replays_total{outcome="complete"}': steady(1),
    'replays_total{outcome="truncated"}': flat(0),
    'replays_total{outcome="given_up"}': flat(0),
    'rejected_total{reason="bad_frames"}': flat(0),
    'limit_reached_total{limit="queue"}': flat(0),
    'limit_reached_total{limit="connections"}': steady(1),
    'event_lag_seconds_bucket{le="0.1"}': steady(100),
    'event_lag_seconds_bucket{le="1"}': steady(100),
    'event_lag_seconds_bucket{le="10"}': steady(100),
    'event_lag_seconds_bucket{le="+Inf"}': steady(100),
    "engine_clock_lead_seconds{}": flat(0.5),
    "batches_from_the_future_total{}": steady(1),
    "engine_restarts_total{}": steady(0.02),
    'thread_panics_total{thread="writer"}': flat(0),
    "stalled_threads{}": flat(0),
    "listener_restarts_total{}": flat(0),
    'peer_checks_total{outcome="equal"}': steady(10),
    'peer_checks_total{outcome="dispute"}': flat(0),
    'peer_checks_total{outcome="unreachable"}': flat(2),
    'recoveries_total{outcome="unreachable"}': flat(1),
    'recoveries_total{outcome="broken_dump"}': flat(0),
    'snapshots_total{outcome="written"}': steady(1),
    'snapshots_total{outcome="failed"}': flat(0),
    'snapshots_total{outcome="damaged"}': flat(0),
    "process_start_time_seconds{}": lambda healthy: flat(60 * (healthy + FAULT) - 600)(healthy),
    'discovery_last_success_timestamp_seconds{source="file:e.json"}': steady(60),
    'discovery_targets{source="file:e.json", state="registered"}': flat(100),
    'discovery_targets{source="file:e.json", state="refused"}': flat(0),
    "store_connected{}": flat(1),
    'reload_failures_total{file="tokens"}': flat(0),
    'errors_total{endpoint="/query", status_class="4xx"}': steady(1),
    'errors_total{endpoint="/query", status_class="5xx"}': flat(0),
    'errors_total{endpoint="/ready", status_class="5xx"}': steady(1),
    "found_blocks_total{}": steady(80),
    "queried_blocks_total{}": steady(100),
}
FAULTS = {
    "IndexerDown": {"up{}": then(1, 0)},
    "IndexerMissing": {"up{}": lambda healthy: f"1x{healthy} stale"},
    "EngineNotConnected": {'listeners{status="connecting", trust="cold"}': then(0, 1)},
    "AnswersDegraded": {'listeners{status="connected", trust="degraded"}': then(9, 12)},
    "MessagesLost": {"lost_messages_total{}": RISES},
    "ReplaysFail": {'replays_total{outcome="given_up"}': RISES},
    "EventsRejected": {'rejected_total{reason="bad_frames"}': RISES},
    "MessagesDropped": {'limit_reached_total{limit="queue"}': RISES},
    "EventsLate": {
        'event_lag_seconds_bucket{le="1"}': slower(100, 90),
        'event_lag_seconds_bucket{le="0.1"}': slower(100, 90),
    },
    "ClocksDiffer": {"engine_clock_lead_seconds{}": flat(2)},
    "EnginesCrash": {"engine_restarts_total{}": slower(0, 0.1)},
    "ThreadPanics": {'thread_panics_total{thread="writer"}': RISES},
    "ThreadStalled": {"stalled_threads{}": then(0, 1)},
    "ListenerFaults": {"listener_restarts_total{}": RISES},
    "ReplicasDisagree": {'peer_checks_total{outcome="dispute"}': RISES},
    "PeerUnreachable": {'peer_checks_total{outcome="unreachable"}': RISES},
    "RecoveryFailed": {'recoveries_total{outcome="broken_dump"}': flat(1)},
    "SnapshotDamaged": {'snapshots_total{outcome="damaged"}': flat(1)},
    "SnapshotsFail": {'snapshots_total{outcome="failed"}': RISES},
    "DiscoveryFails": {'discovery_last_success_timestamp_seconds{source="file:e.json"}': slower(60, 0)},
    "EnginesNotTaken": {'discovery_targets{source="file:e.json", state="refused"}': then(0, 1)},
    "StoreUnavailable": {"store_connected{}": then(1, 0)},
    "FileNotReloaded": {'reload_failures_total{file="tokens"}': RISES},
    "QueriesRefused": {'errors_total{endpoint="/query", status_class="5xx"}': RISES},
    "HitRateFell": {"found_blocks_total{}": slower(80, 30)},
}


def series(name: str) -> str:
    """The whole name of a series of one replica."""
    metric, _, labels = name.partition("{")
    prefix = "" if metric == "up" or metric.startswith("process_") else "flash_indexer_"
    return f'{prefix}{metric}{{job="flash-indexer", instance="a", {labels}'


def firing(values: dict[str, Values], alerts: list[str], folder: Path, healthy: int = HOUR) -> None:
    """Asserts which alerts fire at the end."""
    case = {
        "interval": "1m",
        "input_series": [{"series": series(name), "values": of(healthy)} for name, of in values.items()],
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{healthy + FAULT}m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}))
    result = run("promtool", "test", "rules", file)
    assert result.returncode == 0, result.stdout + result.stderr


def test_rules_are_well_formed() -> None:
    assert "SUCCESS" in check("promtool", "check", "rules", RULES)
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == list(FAULTS), "each alert has a fault here"
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_a_healthy_fleet_fires_nothing(tmp_path: Path) -> None:
    firing(HEALTHY, [], tmp_path, DAY)


@pytest.mark.parametrize("alert", FAULTS)
def test_a_fault_fires_its_alert_only(alert: str, tmp_path: Path) -> None:
    firing({**HEALTHY, **FAULTS[alert]}, [alert], tmp_path, DAY if alert == "HitRateFell" else HOUR)
