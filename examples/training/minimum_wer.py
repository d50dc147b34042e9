"""
Minimum word error rate: train on the expected number of errors over the n-best list of the model itself.

Prabhavalkar et al., "Minimum Word Error Rate Training for Attention-based Sequence-to-Sequence Models",
2018, https://arxiv.org/abs/1712.01818, section 3.2, with CTC in place of attention. The model is trained
with CTC first. Then a search in Python makes n-best lists, jiwer counts their errors, and the training step
scores the hypotheses again. The toy data are words with two pronunciations each, too many for a linear model.

    pip install jiwer
    python examples/training/minimum_wer.py --backend torch
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import jiwer
import numpy

from returnn_common import nn, training

WORDS, NUM_BEST, CTC_SCALE = ("one", "two", "three", "four"), 4, 0.01
HYPOTHESES = [f"hypothesis_{n}" for n in range(NUM_BEST)]
TIMES = {name: nn.SpatialDim(f"{name}_time") for name in ("data", "words", *HYPOTHESES)}
FEATURES, BEST = nn.FeatureDim("features", 6), nn.FeatureDim("best", NUM_BEST)
LABELS, BLANK = nn.FeatureDim("labels", len(WORDS)), len(WORDS)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIMES["data"], FEATURES], "float32"),
    "errors": nn.Tensor("errors", [nn.batch_dim, BEST], "float32"),
    **{
        name: nn.Tensor(name, [nn.batch_dim, TIMES[name]], "int32", sparse_dim=LABELS)
        for name in ("words", *HYPOTHESES)
    },
}


def ctc(logits: nn.Tensor, extern_data, name: str) -> nn.Tensor:
    """-log p(these words | data), `[B]`"""
    return nn.ctc_loss(
        logits=logits,
        targets=extern_data[name],
        input_spatial_dim=TIMES["data"],
        targets_spatial_dim=TIMES[name],
        blank_index=BLANK,
    )


def expected_errors(scores: nn.Tensor, errors: nn.Tensor) -> nn.Tensor:
    """sum_n softmax(scores)_n (errors_n - their mean), `[B]`, of log-probabilities and numbers `[B, BEST]`"""
    probabilities = nn.softmax(scores, axis=BEST)
    return nn.reduce_sum(probabilities * (errors - nn.reduce_mean(errors, axis=BEST)), axis=BEST)


def ctc_step(*, model, extern_data, **_):
    loss = ctc(model(extern_data["data"]), extern_data, "words")
    loss.mark_as_loss("ctc", use_normalized_loss=True)


def minimum_wer_step(*, model, extern_data, **_):
    logits = model(extern_data["data"])
    scores, _ = nn.stack([-ctc(logits, extern_data, name) for name in HYPOTHESES], out_dim=BEST)
    loss = expected_errors(scores, extern_data["errors"])
    loss.mark_as_loss("expected_errors", use_normalized_loss=True)
    truth = ctc(logits, extern_data, "words")
    truth.mark_as_loss("ctc", scale=CTC_SCALE, use_normalized_loss=True)


def forward_step(*, model, extern_data, **_):
    probabilities = nn.softmax(model(extern_data["data"]), axis=model.out_dim)
    dims = [nn.batch_dim, TIMES["data"], model.out_dim]
    probabilities.mark_as_output("probabilities", shape=dims)


def search(probabilities: numpy.ndarray) -> list[tuple[int, ...]]:
    """
    The best label sequences by `[T, labels and blank]`: a prefix beam search (https://arxiv.org/abs/1408.2873).

    The beam has the probability of all paths to a prefix that end in blank, and in its last label.
    """
    beam = {(): (1.0, 0.0)}
    for frame in probabilities.tolist():
        new = defaultdict(lambda: [0.0, 0.0])
        for prefix, (in_blank, in_label) in beam.items():
            new[prefix][0] += (in_blank + in_label) * frame[BLANK]
            for label, probability in enumerate(frame[:BLANK]):
                if prefix[-1:] == (label,):  # the same label goes on, or comes again behind a blank
                    new[prefix][1] += in_label * probability
                    new[(*prefix, label)][1] += in_blank * probability
                else:
                    new[(*prefix, label)][1] += (in_blank + in_label) * probability
        beam = dict(sorted(new.items(), key=lambda item: -sum(item[1]))[:NUM_BEST])
    return list(beam)


def num_errors(words, hypothesis) -> int:
    """substitutions, deletions and insertions"""
    texts = (" ".join(WORDS[word] for word in one) for one in (words, hypothesis))
    counts = jiwer.process_words(*texts)
    return counts.substitutions + counts.deletions + counts.insertions


def make_corpus(seed: int, number: int = 200) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    """features `[T, 6]` and words of each utterance"""
    rng = numpy.random.RandomState(seed)
    means = numpy.random.RandomState(1).normal(size=(len(WORDS), 2, 6))
    corpus = []
    for _ in range(number):
        words = rng.randint(len(WORDS), size=rng.randint(2, 6)).astype("int32")
        sounds = means[words, rng.randint(2, size=len(words))]
        data = numpy.repeat(sounds, rng.randint(1, 4, size=len(words)), axis=0)
        data += 0.3 * rng.normal(size=data.shape)
        corpus.append((data.astype("float32"), words))
    return corpus


def batches(corpus, forward: training.Step, size: int = 16):
    """batches with the n-best lists of the model as it is, and their numbers of errors"""
    for start in range(0, len(corpus), size):
        data, words = map(list, zip(*corpus[start : start + size]))
        (batch,) = training.batches_from([{"data": data, "words": words}], EXTERN_DATA)
        scores = zip(forward(batch)["probabilities"], batch["data:size1"])
        lists = [search(one[:length]) for one, length in scores]
        errors = [[num_errors(truth, one) for one in best] for truth, best in zip(words, lists)]
        columns = [[numpy.array(one, "int32") for one in column] for column in zip(*lists)]
        item = {"errors": numpy.array(errors, "float32"), **dict(zip(HYPOTHESES, columns))}
        (hypotheses,) = training.batches_from([item], EXTERN_DATA)
        yield {**batch, **hypotheses}


def evaluate(step: training.Step, forward: training.Step, corpus) -> dict[str, float]:
    """per word of the corpus: errors of the best hypothesis, and expected ones over the n-best list"""
    first = expected = 0.0
    for batch in batches(corpus, forward):
        first += batch["errors"][:, 0].sum()
        loss = step(batch)["expected_errors"]
        expected += loss * loss.frames + batch["errors"].mean(axis=1).sum()
    num_words = sum(len(words) for _, words in corpus)
    return {"wer": first / num_words, "expected": expected / num_words}


def main(
    backend: str = "tensorflow-net-dict", num_ctc_epochs: int = 8, num_epochs: int = 6
) -> list[dict[str, float]]:
    """the error rates on the dev data behind each epoch, those with CTC first"""
    session = training.Session(
        nn.Linear(FEATURES, nn.FeatureDim("labels_and_blank", BLANK + 1)),
        extern_data=EXTERN_DATA,
        learning_rate=0.02,
        backend=backend,
    )
    train_ctc, train_minimum_wer = session.step(ctc_step), session.step(minimum_wer_step)
    score = session.step(minimum_wer_step, update=False)
    forward = session.step(forward_step, update=False)
    dev, rates = make_corpus(seed=0), []
    for epoch in session.epochs(num_ctc_epochs + num_epochs):
        is_ctc = epoch <= num_ctc_epochs
        for batch in batches(make_corpus(seed=epoch), forward):
            (train_ctc if is_ctc else train_minimum_wer)(batch)
        rates.append(evaluate(score, forward, dev))
        texts = [f"{name} {100 * rate:.1f} %" for name, rate in rates[-1].items()]
        print(f"epoch {epoch}, {'CTC' if is_ctc else 'minimum WER'}: {', '.join(texts)}")
    return rates


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", choices=training.BACKENDS, default=training.BACKENDS[0])
    main(parser.parse_args().backend)
