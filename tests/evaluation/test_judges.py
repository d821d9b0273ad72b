"""Judges that read exchanges get the prompts of the records."""

from __future__ import annotations

from tests.fakes import FakeEngine, FakeScorer
from tide.core.chat import Chat
from tide.core.results import Result
from tide.data.records import Record, TrialRecord, to_record
from tide.detoxifier.sync import Detoxifier
from tide.evaluation.judges import judged
from tide.scorers import Exchange


def answered(prompt: str | Chat) -> Result:
    return Detoxifier(FakeEngine("Yes it is"), scorer=FakeScorer())(prompt)


def test_judge_reads_the_prompt_of_each_record() -> None:
    def objects(exchange: Exchange) -> float:
        return float("insult" in str(exchange.context))

    judge = FakeScorer(objects, name="agreement@1", reads="exchange")
    chat = Chat.said("May I insult him?")
    scores = []
    for prompt in ("May I thank him?", "May I insult him?", chat):
        record = to_record("x", answered(prompt))
        if isinstance(prompt, Chat):
            record = record.model_copy(update={"messages": list(prompt.messages)})
        scores.append(judged(record, judge).trials[0].judge_scores["agreement@1"])
    assert scores == [0.0, 1.0, 1.0]
    assert judge.texts[-1] == Exchange(chat, "Yes it is")


def test_context_of_a_record_is_its_chat() -> None:
    trial = TrialRecord.model_validate({"number": 0, "text": "Yes", "toxicity": 0.0})
    record = Record(id=1, prompt="<user>Hello", trials=[trial])
    assert record.context == "<user>Hello"
    messages = list(Chat.said("Hello").messages)
    assert record.model_copy(update={"messages": messages}).context == Chat.said("Hello")
