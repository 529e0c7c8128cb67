"""How an operator hears of requests that are refused: by reason, and not for every request."""

from app_world import HeardLines

from sottovoce.services.kit.serving import RefusalLines


def test_the_first_is_said_at_once_and_what_follows_once_in_a_while():
    log, later = HeardLines(), []
    lines = RefusalLines(log, lambda seconds, work: later.append((seconds, work)))
    for _ in range(1000):
        lines.count("too_few")
    lines.count("late")
    assert log.lines == [{"event": "refused", "too_few": 1}]
    ((seconds, work),) = later
    assert seconds == 60.0
    work()
    assert log.lines[1:] == [{"event": "refused", "late": 1, "too_few": 999}]
    assert len(later) == 2
    later[1][1]()  # nothing came meanwhile: it rests no longer, and nobody wakes it
    assert (len(log.lines), len(later)) == (2, 2)
    lines.count("late")
    assert log.lines[2:] == [{"event": "refused", "late": 1}]
    assert len(later) == 3


def test_at_the_end_the_rest_is_said_once():
    log = HeardLines()
    lines = RefusalLines(log, lambda seconds, work: None)
    for _ in range(3):
        lines.count("malformed")
    lines.say()
    lines.say()
    assert [line["malformed"] for line in log.lines] == [1, 2]
