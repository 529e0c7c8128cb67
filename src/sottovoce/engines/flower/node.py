"""What a gateway does when it is asked: its devices' state is in its own store, and everything that
leaves goes through the one door. No transport is known here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Cohort
from sottovoce.engines.flower.wire import NOTHING, Answer, Question, Task
from sottovoce.engines.versions import decode_model
from sottovoce.errors import ConsentError, MessageError, SottovoceError
from sottovoce.messages import ModelView
from sottovoce.parties.hosted import Hosted


def answer_question(hosted: Hosted, question: Question) -> Answer:
    """Who is willing now, if whoever runs the gateway has agreed to the terms. Learns how the last
    round went, and keeps the model if one came along."""
    try:
        hosted.meet(question.terms)
        hosted.require_agreed()
        _settle(hosted, question)
        if question.model:
            hosted.keep_model(_model(hosted, question))
        willing = _willing(hosted)
    except SottovoceError as error:
        return _trouble(hosted, question, error)
    return Answer(willing, _kept(hosted), question.round, question.attempt)


def answer_task(hosted: Hosted, task: Task) -> Answer:
    """One round of the asked devices. The sum is on disk before it is in the answer; the same task
    again gives the same bytes, also after a crash. No sum where none of them takes part."""
    try:
        hosted.meet(task.terms)
        hosted.require_agreed()
        _settle(hosted, task)
        view = _model(hosted, task)
        hosted.keep_model(view)
        message, devices = _report(hosted, view, task)
        willing = _willing(hosted)
    except SottovoceError as error:
        return _trouble(hosted, task, error)
    return Answer(willing, _kept(hosted), task.round, task.attempt, message, devices)


def _report(hosted: Hosted, view: ModelView, task: Task) -> tuple[bytes, int]:
    try:
        prepared = hosted.prepare(view, task.attempt, task.numbers, summed=True)
        if prepared is not None:
            hosted.leaving(prepared)
            return prepared.message, prepared.devices
    except ConsentError:
        pass  # a choice changed since: nothing more of this round leaves
    return b"", 0


def _model(hosted: Hosted, question: Question) -> ModelView:
    terms = question.terms
    view = decode_model(
        question.model, n_items=terms.n_rows, width=terms.width, have=hosted.model()
    )
    if view.round != question.round:
        raise MessageError(f"the model is of round {view.round}, the round is {question.round}")
    return view


def _settle(hosted: Hosted, question: Question) -> None:
    """What became of the last round. One that is open still is left alone."""
    last = hosted.unresolved()
    if last is None:
        return
    when = last.round, last.attempt
    if when == question.counted:
        hosted.arrived(*when)
    elif when < (question.round, question.attempt):
        hosted.refused(*when, "the round closed without it")


def _willing(hosted: Hosted) -> NDArray[np.int64]:
    """Numbers of the devices that take part and can learn."""
    store = hosted.store
    users = store.users
    cohort = Cohort(users, store.history(), store.choices(), np.zeros((len(users), 0), np.float32))
    terms = hosted.terms
    able = cohort.able() if terms is None else terms.build().device_able(cohort)
    return users[cohort.consent.takes_part & able]


def _kept(hosted: Hosted) -> int:
    view = hosted.model()
    return NOTHING if view is None else view.round


def _trouble(hosted: Hosted, question: Question, error: SottovoceError) -> Answer:
    """The sentence goes back; nothing else does."""
    nobody = np.zeros(0, np.int64)
    when = question.round, question.attempt
    return Answer(nobody, _kept(hosted), *when, problem=str(error))
