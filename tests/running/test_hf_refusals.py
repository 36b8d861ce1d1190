"""Checkpoints of transformers that cannot be measured are refused by name, mostly before weights are read."""

import hf_models
import pytest
import torch
import transformers
from fake_runs import edit_json

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError
from posenc.evaluation.models.causality import TOKENS, effect_of_later_tokens
from posenc.evaluation.models.transformers import TransformersModel
from posenc.running import plan_hf, subject_hf
from posenc.running.hf_checkpoint import load_hf_model, read_hf_checkpoint
from posenc.running.jobs import plan_job

T = hf_models.T
BERT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 8 * T,
}
DRY_RUN = pytest.mark.parametrize("only_estimate", [False, True], ids=["run", "dry run"])


def config_of(architecture, **changes):
    """Return the configuration of a tiny model."""
    return transformers.AutoConfig.for_model(architecture, **(hf_models.SIZES | changes))


@pytest.fixture
def llama(tmp_path):
    """The folder of a tiny Llama."""
    return hf_models.save(hf_models.random_model("llama", **hf_models.LLAMA), tmp_path / "llama")


@pytest.fixture
def plan(corpus, working_folder):
    """Return a function that plans an evaluation of a checkpoint."""

    def planned(path, *overrides, only_estimate=False):
        fixed = ["subject=hf", f"subject.path={path}", "data=files", f"data.paths={corpus}", "device=cpu"]
        (composed,) = compose_jobs("eval", parse([*fixed, *overrides])).jobs
        return plan_job(composed.settings, only_estimate=only_estimate)

    return planned


@pytest.fixture
def refusal(plan, monkeypatch):
    """Return a function that plans an evaluation and returns its refusal; reading weights is an error."""

    def too_early(*_, **__):
        raise AssertionError("weights are read")

    def refused(path, *overrides, only_estimate=False):
        with monkeypatch.context() as patch:
            patch.setattr(subject_hf, "load_hf_model", too_early)
            patch.setattr(plan_hf, "id_of_weights", too_early)
            with pytest.raises(UserError) as caught:
                plan(path, *overrides, only_estimate=only_estimate)
        return caught.value.text()

    return refused


# --- models that see later tokens
def test_an_encoder_is_refused(refusal, tmp_path):
    model = transformers.BertForMaskedLM(config_of("bert", **BERT))
    text = refusal(hf_models.save(model, tmp_path / "bert"))
    assert "is no causal language model: its config.json says architectures=[BertForMaskedLM]" in text
    assert "allowed: a model that predicts the next token" in text


def test_an_encoder_that_was_saved_as_a_language_model_is_refused(refusal, tmp_path):
    model = transformers.BertLMHeadModel(config_of("bert", **BERT))
    assert "is an encoder (bert), which sees later tokens" in refusal(
        hf_models.save(model, tmp_path / "bert")
    )


def effect_on(model):
    """Return the effect of later tokens on a model of transformers."""
    return effect_of_later_tokens(TransformersModel(model, T), TOKENS, torch.device("cpu"))


def test_a_decoder_of_the_same_class_is_no_encoder(tmp_path):
    model = transformers.BertLMHeadModel(config_of("bert", **BERT, is_decoder=True))
    assert effect_on(model.eval()).is_rounding


def bidirectional_model(dtype=torch.float32):
    """Return a decoder that sees the whole text by a setting, as EmbeddingGemma does."""
    sizes = hf_models.LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 24}
    sizes["rope_parameters"] = hf_models.GEMMA_ROPE
    model = hf_models.random_model("gemma3_text", **sizes, use_bidirectional_attention=True)
    return model.to(dtype)


def test_a_decoder_that_sees_the_whole_text_is_refused_once_it_is_loaded(posenc, corpus, tmp_path):
    path = hf_models.save(bidirectional_model(), tmp_path / "gemma")
    result = posenc("eval", "subject=hf", f"subject.path={path}", "data=files", f"data.paths={corpus}")
    assert result.code == 2
    assert "sees later tokens: logits move by" in result.err


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_an_effect_of_later_tokens_is_more_than_rounding(dtype):
    effect = effect_on(bidirectional_model(dtype))
    assert effect.change > 2 * effect.rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", sorted(hf_models.CONFIGS))
def test_a_causal_model_is_not_refused_for_its_rounding(name, dtype):
    model = hf_models.random_model(name, **hf_models.CONFIGS[name]).to(dtype)
    assert effect_on(model).is_rounding


# --- models without a head
@DRY_RUN
@pytest.mark.parametrize("architecture", ["LlamaModel", "LlamaForSequenceClassification"])
def test_a_model_without_a_head_is_refused(architecture, refusal, llama, only_estimate):
    edit_json(llama / "config.json", architectures=[architecture])
    text = refusal(llama, only_estimate=only_estimate)
    assert f"is no causal language model: its config.json says architectures=[{architecture}]" in text


def test_a_bert_without_a_head_is_refused(refusal, tmp_path):
    model = transformers.BertModel(config_of("bert", **BERT))
    assert "is an encoder (bert)" in refusal(hf_models.save(model, tmp_path / "bert"))


def test_a_model_of_another_type_is_refused(refusal, tmp_path):
    model = transformers.T5ForConditionalGeneration(
        config_of("t5", d_model=32, d_kv=8, d_ff=64, num_layers=2)
    )
    assert "its config.json says model_type=t5" in refusal(hf_models.save(model, tmp_path / "t5"))


def test_a_model_whose_head_is_its_embedding_has_one(posenc, corpus, tmp_path):
    """Checkpoints of Cerebras-GPT name GPT2Model."""
    model = hf_models.random_model("gpt2", **hf_models.CONFIGS["gpt2"])
    path = hf_models.save(model, tmp_path / "gpt2")
    edit_json(path / "config.json", architectures=["GPT2Model"])
    small = ["eval.lengths=[1x]", "eval.max_targets=50", f"context_length={T}", "device=cpu"]
    arguments = ["subject=hf", f"subject.path={path}", "data=files", f"data.paths={corpus}", *small]
    assert posenc("eval", *arguments).code == 0


# --- weights that are missing, or cannot be unpacked
@DRY_RUN
def test_missing_weights_are_said_before_anything_is_read(refusal, llama, only_estimate):
    (llama / "model.safetensors").unlink()
    assert "its weights are missing" in refusal(llama, only_estimate=only_estimate)


@pytest.fixture
def sharded(tmp_path):
    """The folder of a tiny Llama whose weights are in several files."""
    folder = tmp_path / "sharded"
    hf_models.random_model("llama", **hf_models.LLAMA).save_pretrained(folder, max_shard_size="20kB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


@DRY_RUN
def test_a_missing_file_of_several_is_said_before_anything_is_read(refusal, sharded, only_estimate):
    first = min(sharded.glob("*.safetensors"))
    first.unlink()
    text = refusal(sharded, only_estimate=only_estimate)
    assert f"{first.name} is missing, which its index names" in text


@DRY_RUN
@pytest.mark.parametrize("share", [0.5, 0.001], ids=["in the numbers", "in the header"])
def test_cut_weights_are_said_before_anything_is_read(refusal, llama, share, only_estimate):
    weights = llama / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(share * len(whole))])
    assert "model.safetensors is cut or damaged" in refusal(llama, only_estimate=only_estimate)


def test_a_rotation_that_transformers_does_not_know_is_named(refusal, llama):
    edit_json(llama / "config.json", rope_parameters={"rope_type": "foo", "rope_theta": 500.0})
    text = refusal(llama, "extend=yarn")
    assert "no model can be made from its config.json: transformers has no 'foo'" in text


@DRY_RUN
def test_a_gguf_is_no_weights_that_transformers_finds(refusal, llama, only_estimate):
    (llama / "model.safetensors").rename(llama / "model.gguf")
    assert "a GGUF has to be unpacked" in refusal(llama, only_estimate=only_estimate)


@DRY_RUN
def test_an_adapter_without_its_model_is_refused(refusal, llama, only_estimate):
    (llama / "config.json").rename(llama / "adapter_config.json")
    assert "is an adapter without its model" in refusal(llama, only_estimate=only_estimate)


@DRY_RUN
def test_the_missing_package_of_quantised_weights_is_said(refusal, llama, only_estimate):
    edit_json(llama / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    text = refusal(llama, only_estimate=only_estimate)
    assert "its weights are quantised (gptq)" in text
    assert "pip install optimum" in text


def test_weights_that_cannot_be_unpacked_here_are_no_other_kind_of_model(llama, monkeypatch):
    """A GPU may be missing, which a plan does not ask for."""

    def fail(*_, **__):
        raise RuntimeError("GPU is required to run a quantised model.")

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", fail)
    checkpoint = read_hf_checkpoint(str(llama), "main", trust_remote_code=False)
    with pytest.raises(UserError, match="its weights cannot be loaded: GPU is required"):
        load_hf_model(checkpoint, torch.float32, None)


# --- settings that do not fit the model
@DRY_RUN
def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(refusal, tmp_path, only_estimate):
    sizes = {"vocab_size": 100, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}
    path = hf_models.save(hf_models.random_model("llama", **hf_models.LLAMA, **sizes), tmp_path / "small")
    text = refusal(path, only_estimate=only_estimate)
    assert "subject.tokenizer=null: the tokenizer has 257 tokens, and the model knows 100" in text
    assert "Give the tokenizer that the model was trained with" in text
    assert "has 256 tokens, and the model knows 100" in refusal(path, "subject.tokenizer=bytes")


@DRY_RUN
def test_the_reason_why_a_tokenizer_cannot_be_read_is_said(refusal, llama, only_estimate):
    (llama / "tokenizer.json").write_text('{"broken')
    text = refusal(llama, only_estimate=only_estimate)
    assert "has no tokenizer that can be read: Unterminated string" in text
    assert "subject.tokenizer=FILE" in text


def test_a_token_that_was_added_beyond_the_models_last_is_no_obstacle(plan, tmp_path):
    sizes = {"vocab_size": 256, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}
    model = hf_models.random_model("llama", **hf_models.LLAMA, **sizes)
    assert plan(hf_models.save(model, tmp_path / "small")).given_model.vocab_size == 256


@pytest.mark.parametrize("dtype", ["float16", "half"])
def test_fp16_is_meant_by_its_other_names(refusal, llama, dtype):
    assert "did you mean: fp16" in refusal(llama, f"subject.dtype={dtype}")


def test_half_of_an_odd_length_is_rounded(plan, llama):
    assert plan(llama, "context_length=33").evaluation.lengths.windows[:3] == (16, 33, 66)


def test_an_odd_length_beyond_every_document_is_named_as_it_was_given(refusal, llama):
    text = refusal(llama, "context_length=99999")
    assert "99999" in text
    assert "eval.lengths=0.5x" not in text


# --- extensions
def test_missing_divisors_are_asked_for_without_another_reason(refusal, llama):
    text = refusal(llama, "extend=longrope")
    assert "extend.factors=[1.0,1.2,...]: 4 numbers, fastest pair first, as long_factor" in text
    assert "it is for encodings" not in text


def test_the_divisors_that_are_asked_for_are_enough(plan, llama):
    assert plan(llama, "extend=longrope", "extend.factors=[1.0,1.5,3.0,4.5]").evaluation.is_extended


def test_an_extension_that_leaves_the_frequencies_as_they_are_is_refused(refusal, llama):
    text = refusal(llama, "extend=pi", "extend.factor=1")
    assert "it turns by the frequencies of training" in text
    assert "extend.factor" in text


# --- evaluations without a number
@pytest.fixture
def measured(posenc, corpus):
    """Return a function that measures a checkpoint and returns what the command printed."""

    def printed(path, *overrides):
        fixed = ["subject=hf", f"subject.path={path}", "data=files", f"data.paths={corpus}", "device=cpu"]
        result = posenc("eval", *fixed, *overrides)
        assert result.code == 0, result.err
        return result.out

    return printed


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [("ruler", "n/a: no prompt of niah_single_1"), ("needle", "n/a: no sentence of eval.needle fits")],
)
def test_where_no_prompt_fits_the_reason_is_printed(protocol, reason, measured, llama):
    text = measured(llama, f"eval.protocols=[{protocol}]", "eval.lengths=[0.5x,1x]")
    assert "No run has a number yet." in text
    assert f"\n1x: {reason}" in text


def test_a_table_of_positions_that_ends_before_every_length_is_the_reason_printed(measured, tmp_path):
    model = hf_models.random_model("gpt2", **(hf_models.CONFIGS["gpt2"] | {"n_positions": T}))
    path = hf_models.save(model, tmp_path / "gpt2")
    text = measured(path, f"context_length={2 * T}", "eval.lengths=[1x]", "eval.max_targets=50")
    assert f"1x: n/a: no encoding of positions from {T} on" in text
