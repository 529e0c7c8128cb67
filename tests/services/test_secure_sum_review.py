"""What a review of the secure sum and of the caps found. A mark goes when its fault is gone."""

import secrets

import numpy as np
import pytest
from secure_sum_world import (
    MODEL,
    NOISY,
    TOKEN,
    SeedKeeper,
    _devices,
    masker_folder,
    summed_terms,
)
from server_world import SEED, USERS, quick_rules, terms

from sottovoce.core.messages import ModelView
from sottovoce.errors import ServiceError, SottovoceError
from sottovoce.parties.defence import Defence
from sottovoce.rng import Streams
from sottovoce.services.helper import Answering
from sottovoce.stores import server as records
from sottovoce.stores import server as roster
from sottovoce.stores.coordinator import Coordinator, Plan
from sottovoce.stores.database import Database
from sottovoce.stores.helper_folder import HelperIntroduction, create_helper
from sottovoce.wire.masked import encode_question
from sottovoce.wire.refusals import Refused
from sottovoce.wire.reports import encode_report


def test_a_second_introduction_does_not_make_a_proxy_forget_what_it_told(tmp_path):
    """From both answers together one device's mask follows, without noise."""
    folder = masker_folder(tmp_path / "masker", **NOISY)
    kept = folder.introduction.terms
    records_of = [SeedKeeper().record(kept, 0) for _ in range(6)]
    Answering(folder).answer(encode_question(kept, 0, 0, MODEL, records_of))
    (folder.path / "introduction.json").unlink()
    with pytest.raises((SottovoceError, Refused)):
        _asked_again(folder.path, kept, records_of[:5])


def _asked_again(path, kept, fewer):
    again = create_helper(path, HelperIntroduction(kept, TOKEN))
    Answering(again).answer(encode_question(kept, 0, 0, MODEL, fewer))


def _guarded(path, monkeypatch, *, fails):
    """The model after a round, of which the first try to write it may fail."""
    database = Database.sqlite(path)
    database.create()
    plan = Plan(terms(), "all", 3, Streams.from_seed(SEED).key, quick_rules(), Defence(burst=0.2))
    coordinator, devices = Coordinator(plan, lambda: 1000.0), _devices(summed_terms())
    tokens = [secrets.token_bytes(32) for _ in range(USERS)]
    with database.writing() as link:
        coordinator.start(link)
        roster.invite(link, range(USERS), tokens)
        for token in tokens:
            roster.enrol(link, token, secrets.token_bytes(32))
    with database.leading() as leader:
        coordinator.step(leader)
        with database.reading() as link:
            view = ModelView(0, records.model(link, 0, 5)[0])
        sent = [encode_report(devices.report(view, np.array([n]))) for n in range(USERS)]
        with database.writing() as link:
            records.accept(
                link,
                [
                    records.Submission(0, 0, n, records.mark_of(b"", body), body)
                    for n, body in enumerate(sent)
                ],
            )
        if fails:
            with monkeypatch.context() as patch:
                patch.setattr(records, "save_model", _full)
                with pytest.raises(ServiceError):
                    coordinator.step(leader)
        coordinator.step(leader)
        with database.reading() as link:
            found = records.model(link, 1, 5)[0]
    database.close()
    return found


def _full(*_, **__):
    raise ServiceError("the disk is full")


def test_a_close_that_is_done_again_gives_the_same_model(tmp_path, monkeypatch):
    plain = _guarded(tmp_path / "a.db", monkeypatch, fails=False)
    again = _guarded(tmp_path / "b.db", monkeypatch, fails=True)
    assert np.array_equal(plain, again)
