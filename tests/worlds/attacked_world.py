"""Rounds each of which has a device whose submission cannot be used, and too few others until one
more comes: no round is lost, every honest device sends once and counts once, and each attacker is
shut out after its third round."""

import json
import time
from pathlib import Path

ROUNDS, HONEST, DEVICES = 20, range(5), 12
*EARLY, LAST = HONEST
ATTACKERS = [len(HONEST) + round // 3 for round in range(ROUNDS)]
RULES = {"deadline_seconds": 4.0, "grace_seconds": 0.5, "min_fraction": 0.0}


def lines(logs, **wanted):
    """Lines of a service's log, or of several processes' logs, with these entries."""
    logs = [logs] if isinstance(logs, Path) else logs
    found = []
    for line in (line for log in logs for line in log.read_text().splitlines()):
        if line.startswith("{"):
            entry = json.loads(line)
            if wanted.items() <= entry.items():
                found.append(entry)
    return found


def reopened(logs, round):
    """Waits until the round is open again."""
    end = time.monotonic() + 600
    while not lines(logs, outcome="reopened", round=round):
        assert time.monotonic() < end, lines(logs)[-20:]
        time.sleep(0.05)


def check(status, logs):
    """What the server says of all of it."""
    assert [(one["round"], one["attempt"]) for one in status["rounds"]] == [
        (round, 0) for round in range(ROUNDS)
    ]
    assert {one["outcome"] for one in status["rounds"]} <= {"goal", "deadline"}
    assert [one["reported"] for one in status["rounds"]] == [len(HONEST) + 1] * ROUNDS
    assert len(lines(logs, outcome="reopened")) == ROUNDS, "one for each attacker's submission"
    for round, attacker in enumerate(ATTACKERS):
        told = [one["detail"] for one in lines(logs, event="round notice", round=round)]
        assert any(f"devices {attacker}" in one and "left out" in one for one in told)
    out = sorted({one for one in ATTACKERS if ATTACKERS.count(one) == 3})
    assert status["shut_out"] == out
