"""What a gateway does when it is asked: its devices' state is in its own store, and everything that
leaves goes through the one door. No transport is known here."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.core.messages import ModelView
from sottovoce.errors import ConsentError, MessageError, SottovoceError
from sottovoce.parties.leaving import Leaving, body_of
from sottovoce.stores.prepared import Nothing
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.cohort_rounds import NOTHING, CohortAnswer, CohortQuestion, CohortTask, Content
from sottovoce.wire.fields import unpack_numbers
from sottovoce.wire.versions import decode_model


@dataclass(frozen=True, slots=True, repr=False)
class Outgoing:
    """An answer on its way out of a gateway. Whatever it says of devices, the door has let go; the
    rest is the protocol's and the gateway's own."""

    kept: int
    round: int
    attempt: int
    willing: Leaving | None = None
    sum: Leaving | None = None
    problem: str = ""

    def __repr__(self) -> str:
        return f"<Outgoing round={self.round}, redacted>"

    def to_content(self) -> Content:
        """The fields of an `Answer`, for the transport."""
        willing = b"" if self.willing is None else body_of(self.willing)
        message, devices = b"", 0
        if self.sum is not None:
            message, devices = body_of(self.sum), len(self.sum.booked.who)
        when = self.round, self.attempt
        numbers = unpack_numbers(willing)
        return CohortAnswer(numbers, self.kept, *when, message, devices, self.problem).to_content()


def answer_question(hosted: DeviceSession, question: CohortQuestion) -> Outgoing:
    """Answer which users are willing now, if whoever runs the gateway has agreed to the terms.
    Learns how the last round went, and keeps the model if one came along."""
    try:
        hosted.meet(question.terms)
        hosted.require_agreed()
        _settle(hosted, question)
        if question.model:
            _keep(hosted, question, _model(hosted, question))
        willing = hosted.willing()
    except SottovoceError as error:
        return _trouble(hosted, question, error)
    return Outgoing(_kept(hosted), question.round, question.attempt, willing)


def answer_task(hosted: DeviceSession, task: CohortTask) -> Outgoing:
    """One round of the asked devices. The sum is on disk before it is in the answer; the same task
    again gives the same bytes, also after a crash. No sum where none of them takes part."""
    try:
        hosted.meet(task.terms)
        hosted.require_agreed()
        _settle(hosted, task)
        view = _model(hosted, task)
        _keep(hosted, task, view)
        report = _report(hosted, view, task)
        willing = hosted.willing()
    except SottovoceError as error:
        return _trouble(hosted, task, error)
    return Outgoing(_kept(hosted), task.round, task.attempt, willing, report)


def _report(hosted: DeviceSession, view: ModelView, task: CohortTask) -> Leaving | None:
    try:
        prepared = hosted.prepare(view, task.attempt, task.numbers, summed=True)
        return None if isinstance(prepared, Nothing) else hosted.leaving(prepared)
    except ConsentError:
        return None  # a choice changed since: nothing more of this round leaves


def _model(hosted: DeviceSession, question: CohortQuestion) -> ModelView:
    terms = question.terms
    view = decode_model(
        question.model, n_items=terms.n_rows, width=terms.width, have=hosted.model()
    )
    if view.round != question.round:
        raise MessageError(f"the model is of round {view.round}, the round is {question.round}")
    return view


def _keep(hosted: DeviceSession, question: CohortQuestion, view: ModelView) -> None:
    """Keep the model to recommend by: the one to learn from, unless there is another."""
    if question.published:
        terms = question.terms
        view = decode_model(question.published, n_items=terms.n_rows, width=terms.width, have=None)
    hosted.keep_model(view)


def _settle(hosted: DeviceSession, question: CohortQuestion) -> None:
    """What became of the last round. One that is open still is left alone."""
    last = hosted.unresolved()
    if last is None:
        return
    when = last.round, last.attempt
    if when == question.counted:
        hosted.arrived(*when)
    elif when < (question.round, question.attempt):
        hosted.refused(*when, "the round closed without it")


def _kept(hosted: DeviceSession) -> int:
    view = hosted.model()
    return NOTHING if view is None else view.round


def _trouble(hosted: DeviceSession, question: CohortQuestion, error: SottovoceError) -> Outgoing:
    """The sentence goes back; nothing else does."""
    return Outgoing(_kept(hosted), question.round, question.attempt, problem=str(error))
