"""Scores of candidates by language models, classifiers and regressions."""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig
from transformers import LlamaForCausalLM as Llama

from dpcanary import InputError, Secrets
from dpcanary.secrets import (
    CausalLanguageModel,
    MaskedLanguageModel,
    SecretFeature,
    SecretLabel,
    digits,
    words,
)

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "vocab_size": 128}


def characters(texts: list[str]) -> list[list[int]]:
    return [[*text.encode()] for text in texts]


class Pairs:
    """A tokenizer that joins pairs of digits that are equal, so that lengths differ."""

    mask_token_id = 127

    def __call__(self, texts):
        rows = []
        for text in texts:
            for digit in "0123456789":
                text = text.replace(digit * 2, chr(1 + int(digit)))
            rows.append([*text.encode()])
        return {"input_ids": rows}


def model_of(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    small = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 128}
    model = {
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**small, bos_token_id=None, eos_token_id=None)),
        "llama": lambda: Llama(LlamaConfig(**SIZES)),
        "bert": lambda: BertForMaskedLM(BertConfig(**SIZES)),
    }[kind]()
    for parameter in model.parameters():  # as drawn at first, all texts are about as likely
        torch.nn.init.normal_(parameter, std=0.3)
    return model


class WithoutCache(torch.nn.Module):
    """A model that ignores what it is told of earlier tokens."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        return self.model(input_ids=input_ids, use_cache=False)


@torch.no_grad()
def log_probabilities(model, tokens: list[int]) -> torch.Tensor:
    return model.eval()(input_ids=torch.tensor([tokens])).logits[0].double().log_softmax(-1)


def by_hand(model, tokens: list[int]) -> float:
    logs = log_probabilities(model, tokens)
    return sum(float(logs[place - 1, tokens[place]]) for place in range(1, len(tokens)))


LAWS = {
    "digits": (digits(2), "Code {secret}"),
    "digits inside": (digits(2), "Code {secret}, and no other"),
    "beginnings of others": (words(["a", "ab", "abc", "abd", "b", "bb c"]), "Say {secret}"),
    "a beginning after a branch": (words(["cat", "cats", "cats paw", "dog"]), "Say {secret}"),
    "a beginning of all": (words(["a", "ab", "abcde", "abcdf"]), "Say {secret}"),
    "two": (words(["yes", "no"]), "He said {secret}."),
    "one token begins others": (words(["11", "112", "1135"]), "{secret}"),
}


@pytest.mark.parametrize("tokenizer", [characters, Pairs()], ids=["characters", "pairs"])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_likelihoods_of_the_tree_are_those_of_whole_texts(kind, law, tokenizer):
    model, (drawn, template) = model_of(kind), LAWS[law]
    candidates = Secrets.draw(drawn, template=template, seed=0).candidates(0)
    rows = tokenizer(candidates.texts)
    rows = rows if isinstance(rows, list) else rows["input_ids"]
    some = [*range(0, len(rows), 1 if len(rows) < 9 else 19)]
    expected = [by_hand(model, rows[index]) for index in some]
    assert np.ptp(expected) > 0.5
    model.train()
    frozen = [*model.modules()][-1]  # by the user, with all else in training mode
    frozen.eval()
    by_text = {"shares_prefixes": False, "batch_size": 64}
    for options in ({}, {"batch_size": 1}, {"batch_size": 7}, by_text):
        scores = CausalLanguageModel(model, tokenizer, **options)(candidates)
        assert model.training
        assert not frozen.training
        assert scores[some] == pytest.approx(expected, abs=1e-3)
    bare = CausalLanguageModel(WithoutCache(model), tokenizer)(candidates)
    assert bare == pytest.approx(scores, abs=1e-3)


def test_a_tree_reads_shared_beginnings_once():
    model, read = model_of("gpt2"), []
    model.register_forward_pre_hook(
        lambda module, args, options: read.append(options["input_ids"].numel()), with_kwargs=True
    )
    candidates = Secrets.draw(digits(4), template="The code is {secret}", seed=0).candidates(0)
    for options in ({}, {"batch_size": 50}):
        read.clear()
        CausalLanguageModel(model, characters, **options)(candidates)
        assert sum(read) == len("The code is ") + 10 + 100 + 1000
        assert max(read) <= options.get("batch_size", 1024)


def test_a_reference_removes_what_is_likely_in_any_case():
    model, reference = model_of("gpt2"), model_of("llama")
    candidates = Secrets.draw(digits(2), template="Code {secret}", seed=0).candidates(0)
    both = CausalLanguageModel(model, characters, reference=reference)(candidates)
    alone = [CausalLanguageModel(network, characters)(candidates) for network in (model, reference)]
    assert both == pytest.approx(alone[0] - alone[1])
    assert not CausalLanguageModel(model, characters, reference=model)(candidates).any()


def test_texts_that_nothing_predicts_are_refused():
    model = model_of("gpt2")
    candidates = Secrets.draw(digits(2), template="{secret} is it", seed=0).candidates(0)
    with pytest.raises(InputError, match="put words before"):
        CausalLanguageModel(model, characters)(candidates)
    with pytest.raises(InputError, match="no token of a text"):
        CausalLanguageModel(model, lambda texts: [[] for _ in texts])(candidates)
    with pytest.raises(InputError, match="no mask token"):
        MaskedLanguageModel(model, characters)


@pytest.mark.parametrize("template", ["1{secret}1 is the code", "Code {secret}", "{secret}"])
def test_masked_models_score_the_tokens_that_differ(template):
    model = model_of("bert")
    tokenizer, law = Pairs(), words(["12", "22", "13", "221", "33", "4", "14"])
    candidates = Secrets.draw(law, template=template, seed=0).candidates(0)
    scores = MaskedLanguageModel(model, tokenizer)(candidates)
    rows = tokenizer(candidates.texts)["input_ids"]
    start = next(i for i in range(9) if len({row[i] for row in rows if len(row) > i}) > 1)
    after = template.partition("{secret}")[2]
    for row, score in zip(rows, scores, strict=True):
        end = len(row) - len(after)
        if after.startswith("1"):  # that 1 may be a part of a pair
            end += 1 if any(other[-len(after)] != ord("1") for other in rows) else 0
        masked = [127 if start <= place < end else token for place, token in enumerate(row)]
        logs = log_probabilities(model, masked)
        expected = sum(float(logs[place, row[place]]) for place in range(start, end))
        assert score == pytest.approx(expected, abs=1e-3)
    assert np.ptp(scores) > 0.5


@pytest.mark.parametrize("as_frame", [False, True])
def test_features_are_scored_by_what_a_model_predicts_with_them(as_frame):
    secrets = Secrets.draw(digits(2), 3, seed=0)
    table, column, rows = np.column_stack([np.arange(8.0), np.zeros(8)]), 1, secrets.rows(8)
    if as_frame:
        table, column = pd.DataFrame(table, columns=["age", "code"]), "code"
    filled = secrets.insert_into_table(table, column, as_type=float)
    records = filled.iloc[rows] if as_frame else filled[rows]
    truth = {float(row): float(value) for row, value in zip(rows, secrets.values, strict=True)}

    def chances(features):
        """A model that knows the codes by heart: class 1 for the right ones."""
        assert isinstance(features, pd.DataFrame) == as_frame
        right = np.array([truth[age] == code for age, code in np.asarray(features)])
        return np.column_stack([1 - right, right])

    # By chances, by numbers, and by numbers as a column.
    for predict, labels in (
        (chances, [1, 1, 0]),
        (lambda features: 5 * chances(features)[:, 1], [5.0, 4.0, 0.0]),
        (lambda features: 5 * chances(features)[:, 1:], [5.0, 4.0, 0.0]),
    ):
        score = SecretFeature(predict, records, labels, column, as_type=float)
        assert secrets.rank(score).ranks.tolist() == [1, 1, 100]
    with pytest.raises(InputError, match="3 records and"):
        SecretFeature(chances, records, [1, 1], column)
    with pytest.raises(InputError, match=r"no column 'cod'|give a column's index, not 'cod'"):
        SecretFeature(chances, records, [1, 1, 0], "cod")
    for label in (0.4, 2, -1):
        wrong = SecretFeature(chances, records, [label] * 3, column, as_type=float)
        with pytest.raises(InputError, match=f"the label of secret 0 is {label}.*2 columns"):
            secrets.rank(wrong)


def test_arrays_that_cut_or_round_secrets_are_refused():
    short, numbers = np.full((2, 2), "abc"), np.zeros((2, 2), np.float32)
    arms, codes, shares = (
        Secrets.of_values(values, words(values), seed=0)
        for values in (["treated", "control"], ["16777217", "12345678"], ["0.1", "0.2"])
    )
    for secrets, table, as_type, message in (
        (arms, short, str, "'treated' becomes 'tre'"),
        (codes, numbers, str, r"'16777217' becomes 16777216\.0"),
        (shares, numbers.astype(int), float, "0.1 becomes 0:"),
    ):
        with pytest.raises(InputError, match=message):
            secrets.insert_into_table(table, 1, as_type=as_type)
    with pytest.raises(InputError, match="'control' becomes 'con'"):
        arms.rank(SecretFeature(lambda table: np.zeros(2), short, [0.0, 0.0], 1))
    assert arms.insert_into_table(short.astype(object), 1)[1, 1] == "control"
    assert codes.insert_into_table(numbers.astype(float), 1)[0, 1] == 16777217
    assert shares.insert_into_table(numbers, 1)[1, 1] == pytest.approx(0.2)


def test_labels_are_scored_by_their_probability():
    secrets = Secrets.of_values([1, 0, 2], words(["0", "1", "2", "3"]), seed=0)
    table = np.arange(3.0)[:, None]
    chances = np.array([[0.2, 0.5, 0.3], [0.3, 0.3, 0.4], [0.0, 1.0, 0.0]])
    score = SecretLabel(lambda rows: chances[rows[:, 0].astype(int)], table, [0, 1, 2])
    # 0 and 1 tie in the second record; 3 is a class that the model has never seen.
    assert secrets.rank(score).ranks.tolist() == [1, 3, 4]
    with pytest.raises(InputError, match=r"no candidate of secret 0 is a class: classes are 0.0"):
        secrets.rank(SecretLabel(lambda rows: chances, table, [0.0, 1.0, 2.0]))
    short = Secrets.of_values([1, 0, 2, 2], words(["0", "1", "2"]), seed=0)
    with pytest.raises(InputError, match="there are 3 records, and a secret 3"):
        short.rank(score)
