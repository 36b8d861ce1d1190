"""Let lm-evaluation-harness and posenc ask five prompts of RULER's niah_single_1, and print both answers.

python scripts/checks/beside_lm_eval.py FOLDER [TOKENS]: FOLDER is a checkpoint of transformers, and prompts
have at most so many tokens (1024). It needs `pip install -c constraints.txt lm_eval nltk wonderwords`, and
downloads nothing. The harness draws the prompts, writes and scores by its own command. posenc gets the draws,
makes the beginning of the answer by its own words, writes as `eval.protocols=[ruler]` does, and scores. The
exit code is 1 if a prompt, an answer or a score differs.

The harness lists 6 million keys, which takes half a minute and 0.6 GB: here it gets the first hundred of each
list of words. It looks for a model of nltk, which this task does not use, and is told that it is there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nltk
import numpy as np
import torch
import wonderwords

from posenc.api.loaded_subject import LoadedSubject
from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.data import TokenStore
from posenc.data.ruler import NEW_TOKENS, PREFIX_OF_ONE, Sample
from posenc.evaluation.generation import inputs_of_whole_windows, write_text
from posenc.evaluation.passes import EvalContext

TASK = "niah_single_1"
PROMPTS = 5
WORDS_OF_A_LIST = 100


@dataclass(frozen=True)
class Asked:
    """Hold a prompt of the harness, and what its model wrote."""

    prompt: str  # as the model of the harness got it
    text: str  # the prompt without the beginning of the answer
    query: str
    answers: tuple[str, ...]
    written: str
    score: float


def ask_harness(folder: Path, tokens: int) -> list[Asked]:
    """Run the harness's own command on the first prompts of the task."""
    words = wonderwords.RandomWord()
    few_words = {kind: list(listed)[:WORDS_OF_A_LIST] for kind, listed in words._categories.items()}
    words._categories = few_words
    wonderwords.RandomWord = lambda: words
    nltk.data.find = lambda name: name
    # Its files list the words and ask nltk as soon as they are imported, so both are replaced before.
    import lm_eval

    result = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder), "dtype": "float32"},
        tasks=[TASK],
        limit=PROMPTS,
        batch_size=1,
        device="cpu",
        metadata={"pretrained": str(folder), "max_seq_lengths": [tokens]},
        log_samples=True,
        bootstrap_iters=0,
    )
    return [_asked(sample) for sample in result["samples"][TASK]]


def _asked(sample: dict[str, Any]) -> Asked:
    """Read a sample of the harness."""
    document = sample["doc"]
    ((prompt, _),) = sample["arguments"]
    # RULER's last sentence before the answer names what is asked for.
    query = document["input"].rpartition(" for ")[2].partition(" mentioned in ")[0]
    return Asked(
        prompt=prompt,
        text=document["input"],
        query=query,
        answers=tuple(document["outputs"]),
        written=sample["filtered_resps"][0],
        score=float(sample[str(document["max_length"])]),
    )


def context_of(subject: LoadedSubject, tokens: int) -> EvalContext:
    """Return what `ruler` writes with. Its prompts are not of a corpus, so that no text is there."""
    no_text = TokenStore(np.zeros(1, np.uint8), None, "", subject.tokenizer.vocab_size, {}, {})
    return EvalContext(
        model=subject.model,
        context_length=tokens,
        seed=0,
        precision="fp32",
        device=torch.device("cpu"),
        store=no_text,
        split="test",
        batch_tokens=tokens,
    )


def written_by_posenc(subject: LoadedSubject, context: EvalContext, prompt: str) -> str:
    """Return what the model writes after a prompt, as far as its end token or the most tokens."""
    ids = [*context.scorer.first_tokens, *subject.tokenizer.encode(prompt)]
    inputs = inputs_of_whole_windows(context, len(ids) + NEW_TOKENS)
    written = write_text(context, ids, NEW_TOKENS, inputs, lambda tokens: False)
    return subject.tokenizer.decode(written)


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
    line = ["subject=hf", f"subject.path={folder}", "device=cpu", f"context_length={tokens}"]
    (composed,) = compose_jobs("eval", parse(line)).jobs
    subject = LoadedSubject(composed.settings)
    context = context_of(subject, tokens)
    n_different = 0
    for number, asked in enumerate(ask_harness(folder, tokens), start=1):
        prefix = PREFIX_OF_ONE.format(kind="number", query=asked.query)
        sample = Sample(f"{asked.text} {prefix}", asked.answers)
        written = written_by_posenc(subject, context, sample.prompt)
        score = sample.count_found(written) / len(asked.answers)
        is_same = sample.prompt == asked.prompt
        # Spaces at the ends count for nothing in the score.
        is_same = is_same and written.strip() == asked.written.strip() and score == asked.score
        n_different += not is_same
        print(f"prompt {number}: {len(sample.prompt):,} characters, asks for {', '.join(asked.answers)}")
        print(f"  lm_eval {asked.score:.0%}  {asked.written!r}")
        print(f"  posenc  {score:.0%}  {written!r}")
        print(f"  {'the same' if is_same else 'DIFFERENT'}", flush=True)
    print(f"{n_different} of {PROMPTS} differ")
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main())
