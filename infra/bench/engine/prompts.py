"""Prompts of an exact length in tokens, each new: what no cache can have seen.

Common words that are one token each with the blank before them: then the length is exact by
construction, and it is checked all the same. Any server with the same vocabulary counts the same.
"""

from random import Random

from firstlight.shared.errors import ConfigError
from firstlight.shared.text.tokenizer import Tokenizer

_WORDS = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government
number night point home water room mother area money story fact month lot right study book
eye job word business issue side kind head house service friend father power hour game line
end member law car city community name president team minute idea body information back
parent face level office door health person art war history party result change morning
reason research girl guy moment air teacher force education foot boy age policy music market
sense nation plan college interest death experience effect use class control field light
river mountain garden winter summer forest letter paper bridge road train ship island stone
read write build carry open close find keep bring begin help show hear play run move live
believe hold stand lose pay meet include continue set learn lead understand watch follow stop
""".split()  # noqa: SIM905 (rows can be read)


def common_words(tokenizer: Tokenizer) -> list[str]:
    """Words that are one token each, with a blank before them.

    Raises:
        ConfigError: the vocabulary has too few of them.

    """
    words = [w for w in _WORDS if len(tokenizer.encode(f" {w}", special=False)) == 1]
    if len(words) < 64:
        raise ConfigError("this vocabulary has too few common words to make prompts of")
    return words


class Prompts:
    """Prompts from a seed: the same seed gives every server the same ones."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer, self._seed = tokenizer, seed
        self._words = common_words(tokenizer)

    def of(self, tokens: int, *labels: object) -> str:
        """A text of exactly so many tokens; other labels or length, other text from its beginning.

        Raises:
            ConfigError: the vocabulary joins tokens over words, so that no length is exact.

        """
        random = Random(f"{self._seed}/{tokens}/{labels}")
        text = "".join(f" {word}" for word in random.choices(self._words, k=tokens))
        found = len(self._tokenizer.encode(text, special=False))
        if found != tokens:
            raise ConfigError(f"a prompt has {found} tokens where {tokens} were meant")
        return text
