"""Text to token ids and back: words, blank-separated tokens or byte-level BPE, all of the `tokenizers` library."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as _Library

from vitcap.types import BOS, EOS, PAD, UNK

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
KINDS = ("word", "bpe", "space")
# Thai, Lao, Burmese, Khmer, Japanese, Chinese: no blanks between words.
_WITHOUT_BLANKS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
log = logging.getLogger(__name__)


def _word_pipeline(tokenizer: _Library) -> None:
    """Lower case; inner apostrophes, hyphens and dots kept, other punctuation dropped (COCO practice)."""
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Lowercase(),
            normalizers.Replace("’", "'"),
            # Everything that is no letter, mark, digit or a joiner between two of them becomes a blank.
            normalizers.Replace(Regex(r"(?<![\p{L}\p{M}\p{N}])['.\-&]+|['.\-&]+(?![\p{L}\p{M}\p{N}])"), " "),
            normalizers.Replace(Regex(r"[^\p{L}\p{M}\p{N}'.\-&]+"), " "),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()


def _space_pipeline(tokenizer: _Library) -> None:
    """What stands between blanks, as it stands there: for text that is tokenised already."""
    # "<eos>" in a text is a word like any other, and no vocabulary has it.
    special = Regex(r"(?<!\S)<(pad|bos|eos)>(?!\S)")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(special, SPECIAL[UNK])])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()


def _whole(text: str) -> str:
    """Without blanks at the ends; lone surrogates, which the library refuses, as U+FFFD."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.strip()


class Tokenizer:
    """Text <-> ids, with PAD, BOS, EOS, UNK = 0, 1, 2, 3. `kind` is one of KINDS."""

    def __init__(self, library: _Library, kind: str) -> None:
        self._library, self.kind = library, kind
        # "<eos>" in a caption is text; not saved in the library's JSON, so set here.
        library.encode_special_tokens = True

    @classmethod
    def train(
        cls, captions: Iterable[str], *, kind: str = "word", min_count: int = 5, vocab_size: int = 8000
    ) -> Tokenizer:
        """Vocabulary of training captions.

        word: words seen at least min_count times (COCO practice: 5), at most vocab_size of them, the rest UNK.
        space: the same for the tokens between blanks, neither lowered nor cleaned (parallel text).
        bpe: byte-level byte-pair encoding of vocab_size tokens (Sennrich et al. 2016), no unknown words.
        Raises ValueError for an unknown kind or when no word is left.
        """
        if kind in ("word", "space"):
            pipeline = _word_pipeline if kind == "word" else _space_pipeline
            probe = _Library(models.WordLevel({}, unk_token=SPECIAL[UNK]))
            pipeline(probe)
            counts: Counter[str] = Counter()
            number = 0
            for caption in captions:
                number += 1
                counts.update(probe.normalizer.normalize_str(_whole(caption)).split())
            text = "".join(counts)
            if counts.total() < 3 * number and 2 * len(_WITHOUT_BLANKS.findall(text)) > len(text):
                log.warning("sentences without blanks between words are one word each: set data.tokenizer=bpe")
            # Most frequent first, then by the alphabet, so that the same captions give the same ids anywhere.
            kept = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
            if not kept:
                raise ValueError(
                    f"no word occurs {min_count} times in the training captions ({len(counts)} different words): "
                    "lower data.min_count"
                )
            words = [*SPECIAL, *(w for w in kept if w not in SPECIAL)][: max(vocab_size, len(SPECIAL) + 1)]
            library = _Library(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=SPECIAL[UNK]))
            pipeline(library)
        elif kind == "bpe":
            library = _Library(models.BPE())
            library.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
            library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
            library.decoder = decoders.ByteLevel()
            trainer = trainers.BpeTrainer(
                vocab_size=vocab_size,
                special_tokens=list(SPECIAL),
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            )
            library.train_from_iterator((_whole(c) for c in captions), trainer)
        else:
            raise ValueError(f"unknown tokenizer kind {kind!r}; choose one of {', '.join(KINDS)}")
        return cls(library, kind)

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return self._library.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Ids of a caption, without BOS and EOS."""
        return self._library.encode(_whole(text), add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text up to the first EOS; PAD and BOS are left out."""
        return " ".join(word for word, _, _ in self.words(ids))

    def words(self, ids: Iterable[int]) -> list[tuple[str, int, int]]:
        """(word, start, stop): words with the half-open span of token positions that spell each."""
        spans: list[tuple[str, int, int]] = []
        pieces: list[str] = []
        start = 0

        def close(stop: int) -> None:
            text = self._library.decoder.decode(pieces).strip() if self.kind == "bpe" else "".join(pieces)
            if text:
                spans.append((text, start, stop))

        for position, index in enumerate(ids):
            index = int(index)
            if index == EOS:
                break
            if index in (PAD, BOS):
                continue
            piece = self._library.id_to_token(index)
            if piece is None:
                raise ValueError(f"token id {index} is outside the vocabulary of {self.vocab_size}")
            if pieces and (self.kind != "bpe" or piece.startswith("Ġ")):
                close(position)
                pieces = []
            if not pieces:
                start = position
            pieces.append(piece)
            stop = position + 1
        if pieces:
            close(stop)
        return spans

    def clean(self, text: str) -> str:
        """The text as decoding would give it if every word were known: normalised, single blanks between words."""
        text = _whole(text)
        normaliser = self._library.normalizer
        return " ".join((text if normaliser is None else normaliser.normalize_str(text)).split())

    def unknown_share(self, captions: Sequence[str]) -> float:
        """Share of tokens outside the vocabulary, 0..1."""
        ids = [i for caption in captions for i in self.encode(caption)]
        return ids.count(UNK) / len(ids) if ids else 0.0

    def __reduce__(self) -> tuple[Callable[[str], Tokenizer], tuple[str]]:
        """Pickled for loader processes that are spawned; the library's own pickle would lose the setting above."""
        return Tokenizer.from_json, (self.to_json(),)

    def to_json(self) -> str:
        """The whole tokenizer as text, for the checkpoint."""
        return json.dumps({"kind": self.kind, "library": json.loads(self._library.to_str())}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Inverse of to_json. Raises ValueError for text that no tokenizer of this class has given."""
        try:
            saved = json.loads(text)
            kind, parts = saved["kind"], saved["library"]
            extra = [name for name in ("truncation", "padding", "post_processor") if parts.get(name) is not None]
            library = _Library.from_str(json.dumps(parts, ensure_ascii=False))
            unknown = parts["model"].get("unk_token")
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"no tokenizer that can be read ({type(error).__name__}: {str(error)[:80]})") from None
        if kind not in KINDS or extra or (kind != "bpe" and unknown != SPECIAL[UNK]):
            raise ValueError(f"a tokenizer of the kind {kind!r} with {', '.join(extra) or f'unk_token {unknown!r}'}")
        ids = library.get_vocab()
        if sorted(ids.values()) != list(range(len(ids))) or [ids.get(token) for token in SPECIAL] != [0, 1, 2, 3]:
            raise ValueError(
                f"the vocabulary wants each of the ids 0 to {len(ids) - 1} once, and {', '.join(SPECIAL)} as 0 to 3"
            )
        return cls(library, kind)
