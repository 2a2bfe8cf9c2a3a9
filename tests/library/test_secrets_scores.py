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

ENDS = {"bos_token_id": None, "eos_token_id": None}


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


def causal(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=128, **sizes, **ENDS))
    else:
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
        config = LlamaConfig(vocab_size=128, num_attention_heads=2, **sizes, **ENDS)
        model = Llama(config)
    for parameter in model.parameters():  # as drawn at first, all texts are about as likely
        torch.nn.init.normal_(parameter, std=0.3)
    return model


class WithoutCache(torch.nn.Module):
    """A model that ignores what it is told of earlier tokens."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        output = self.model(input_ids=input_ids, use_cache=False)
        assert output.past_key_values is None
        return output


@torch.no_grad()
def by_hand(model, tokens: list[int]) -> float:
    model.eval()
    logs = model(input_ids=torch.tensor([tokens])).logits[0].double().log_softmax(-1)
    return sum(float(logs[place - 1, tokens[place]]) for place in range(1, len(tokens)))


LAWS = {
    "digits": (digits(2), "Code {secret}"),
    "digits inside": (digits(2), "Code {secret}, and no other"),
    "beginnings of others": (words(["a", "ab", "abc", "abd", "b", "bb c"]), "Say {secret}"),
    "a beginning after a branch": (words(["cat", "cats", "cats paw", "dog"]), "Say {secret}"),
    "a beginning of all": (words(["a", "ab", "abcde", "abcdf"]), "Say {secret}"),
    "two": (words(["yes", "no"]), "He said {secret}."),
}


@pytest.mark.parametrize("tokenizer", [characters, Pairs()], ids=["characters", "pairs"])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_likelihoods_of_the_tree_are_those_of_whole_texts(kind, law, tokenizer):
    model, (drawn, template) = causal(kind), LAWS[law]
    candidates = Secrets.draw(drawn, template=template, seed=0).candidates(0)
    rows = tokenizer(candidates.texts)
    rows = rows if isinstance(rows, list) else rows["input_ids"]
    model.train()
    frozen = [*model.modules()][-1]  # by the user, with all else in training mode
    frozen.eval()
    for options in (
        {},
        {"batch_size": 1},
        {"batch_size": 7},
        {"shares_prefixes": False, "batch_size": 64},
    ):
        scores = CausalLanguageModel(model, tokenizer, **options)(candidates)
        assert model.training
        assert not frozen.training
        some = range(0, len(rows), 1 if len(rows) < 9 else 19)
        expected = [by_hand(model, rows[index]) for index in some]
        model.train()
        frozen.eval()
        assert np.ptp(expected) > 0.5
        assert scores[[*some]] == pytest.approx(expected, abs=1e-3)
    bare = CausalLanguageModel(WithoutCache(model), tokenizer)(candidates)
    assert bare == pytest.approx(scores, abs=1e-3)


def test_a_text_of_one_token_begins_others():
    """Nothing predicts it, and its likelihood is 1."""
    model = causal("gpt2")
    candidates = Secrets.draw(words(["11", "112", "1135"]), template="{secret}", seed=0)
    scores = CausalLanguageModel(model, Pairs())(candidates.candidates(0))
    rows = Pairs()(["11", "112", "1135"])["input_ids"]
    assert scores == pytest.approx([by_hand(model, row) for row in rows], abs=1e-3)
    assert scores[0] == 0 > scores[1] > scores[2]


def test_a_tree_reads_shared_beginnings_once():
    model, read = causal("gpt2"), []
    model.register_forward_pre_hook(
        lambda module, args, options: read.append(options["input_ids"].numel()), with_kwargs=True
    )
    secrets = Secrets.draw(digits(4), template="The code is {secret}", seed=0)
    CausalLanguageModel(model, characters)(secrets.candidates(0))
    assert sum(read) == len("The code is ") + 10 + 100 + 1000
    read.clear()
    CausalLanguageModel(model, characters, batch_size=50)(secrets.candidates(0))
    assert sum(read) == len("The code is ") + 10 + 100 + 1000
    assert max(read) <= 50


def test_a_reference_removes_what_is_likely_in_any_case():
    model, reference = causal("gpt2"), causal("llama")
    candidates = Secrets.draw(digits(2), template="Code {secret}", seed=0).candidates(0)
    both = CausalLanguageModel(model, characters, reference=reference)(candidates)
    alone = [CausalLanguageModel(one, characters)(candidates) for one in (model, reference)]
    assert both == pytest.approx(alone[0] - alone[1])
    assert not CausalLanguageModel(model, characters, reference=model)(candidates).any()


def test_texts_that_nothing_predicts_are_refused():
    model = causal("gpt2")
    candidates = Secrets.draw(digits(2), template="{secret} is it", seed=0).candidates(0)
    with pytest.raises(InputError, match="put words before"):
        CausalLanguageModel(model, characters)(candidates)
    with pytest.raises(InputError, match="no token of a text"):
        CausalLanguageModel(model, lambda texts: [[] for _ in texts])(candidates)


@torch.no_grad()
@pytest.mark.parametrize("template", ["1{secret}1 is the code", "Code {secret}", "{secret}"])
def test_masked_models_score_the_tokens_that_differ(template):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    model = BertForMaskedLM(BertConfig(vocab_size=128, num_attention_heads=2, **sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokenizer, law = Pairs(), words(["12", "22", "13", "221", "33", "4", "14"])
    candidates = Secrets.draw(law, template=template, seed=0).candidates(0)
    scores = MaskedLanguageModel(model, tokenizer)(candidates)
    rows = tokenizer(candidates.texts)["input_ids"]
    start = next(i for i in range(9) if len({row[i] for row in rows if len(row) > i}) > 1)
    after = template.partition("{secret}")[2]
    model.eval()
    for row, score in zip(rows, scores, strict=True):
        end = len(row) - len(after)
        if after.startswith("1"):  # that 1 may be a part of a pair
            end += 1 if any(other[-len(after)] != ord("1") for other in rows) else 0
        masked = [127 if start <= place < end else token for place, token in enumerate(row)]
        logs = model(input_ids=torch.tensor([masked])).logits[0].log_softmax(-1)
        expected = sum(float(logs[place, row[place]]) for place in range(start, end))
        assert score == pytest.approx(expected, abs=1e-3)
    assert np.ptp(scores) > 0.5


def test_a_masked_model_needs_a_mask():
    with pytest.raises(InputError, match="no mask token"):
        MaskedLanguageModel(causal("gpt2"), characters)


def test_a_memorised_code_is_ranked_first():
    """A model that has read nothing but the record for many steps."""
    torch.manual_seed(0)
    secrets = Secrets.draw(digits(3), template="The code is {secret}", seed=1)
    model, tokens = causal("gpt2"), torch.tensor(characters(secrets.records()))
    before = secrets.rank(CausalLanguageModel(model, characters))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    after = secrets.rank(CausalLanguageModel(model, characters))
    assert before.ranks[0] > 1 == after.ranks[0]
    assert after.estimate(delta=1e-9).epsilon_lower == pytest.approx(3.96, abs=0.01)


@pytest.mark.parametrize("as_frame", [False, True])
def test_features_are_scored_by_what_a_model_predicts_with_them(as_frame):
    secrets = Secrets.draw(digits(2), 3, seed=0)
    array = np.column_stack([np.arange(8.0), np.zeros(8)])
    table = pd.DataFrame(array, columns=["age", "code"]) if as_frame else array
    column = "code" if as_frame else 1
    filled = secrets.insert_into_table(table, column, as_type=float)
    rows = secrets.rows(8)
    records = filled.iloc[rows] if as_frame else filled[rows]
    truth = {float(row): float(value) for row, value in zip(rows, secrets.values, strict=True)}

    def chances(features):
        """A model that knows the codes by heart: class 1 for the right ones."""
        assert isinstance(features, pd.DataFrame) == as_frame
        features = np.asarray(features)
        right = np.array([truth[age] == code for age, code in features])
        return np.column_stack([1 - right, right])

    score = SecretFeature(chances, records, [1, 1, 0], column, as_type=float)
    assert secrets.rank(score).ranks.tolist() == [1, 1, 100]
    numbers = SecretFeature(
        lambda features: 5 * chances(features)[:, 1], records, [5.0, 4.0, 0.0], column,
        as_type=float,
    )  # fmt: skip
    assert secrets.rank(numbers).ranks.tolist() == [1, 1, 100]
    # A column of numbers is one of numbers.
    as_column = SecretFeature(
        lambda features: 5 * chances(features)[:, 1:], records, [5.0, 4.0, 0.0], column,
        as_type=float,
    )  # fmt: skip
    assert secrets.rank(as_column).ranks.tolist() == [1, 1, 100]
    with pytest.raises(InputError, match="3 records and"):
        SecretFeature(chances, records, [1, 1], column)
    for label in (0.4, 2, -1):
        wrong = SecretFeature(chances, records, [label] * 3, column, as_type=float)
        with pytest.raises(InputError, match=f"the label of secret 0 is {label}.*2 columns"):
            secrets.rank(wrong)


def test_arrays_that_cut_or_round_secrets_are_refused():
    arms = Secrets.of_values(["treated", "control"], words(["treated", "control"]), seed=0)
    short, numbers = np.full((2, 2), "abc"), np.zeros((2, 2), np.float32)
    with pytest.raises(InputError, match="'treated' becomes 'tre'"):
        arms.insert_into_table(short, 1)
    with pytest.raises(InputError, match="'control' becomes 'con'"):
        arms.rank(SecretFeature(lambda table: np.zeros(2), short, [0.0, 0.0], 1))
    assert arms.insert_into_table(short.astype(object), 1)[1, 1] == "control"
    codes = Secrets.of_values(["16777217", "12345678"], digits(8), seed=0)
    with pytest.raises(InputError, match=r"'16777217' becomes 16777216\.0"):
        codes.insert_into_table(numbers, 1)
    assert codes.insert_into_table(numbers.astype(float), 1)[0, 1] == 16777217
    shares = Secrets.of_values(["0.1", "0.2"], words(["0.1", "0.2"]), seed=0)
    assert shares.insert_into_table(numbers, 1)[1, 1] == pytest.approx(0.2)
    with pytest.raises(InputError, match=r"0.1 becomes 0:"):
        shares.insert_into_table(numbers.astype(int), 1, as_type=float)


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
