"""What a decider has sent and not seen end, in tokens by server. Sans-IO.

Dynamo, Stargate, Mooncake and GORGO add up the tokens of what they routed, at the moment they route
it. With several deciders that is a part; what a server reports beyond it belongs to others and is
counted at the mean of this decider's prompts. Beyond `OPEN_MAX` open requests the oldest is taken
as ended.
"""

from firstlight.infra.sim.policies.lowest import in_flight
from firstlight.infra.sim.policies.policy import Seen

OPEN_MAX = 65_536


class Outstanding:
    """Tokens of open requests: all until the end, those to compute until the first token."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int, int]] = {}
        """Server, prompt tokens and tokens to compute of a request."""
        self._tokens: dict[int, int] = {}
        self._prefill_tokens: dict[int, int] = {}
        self._sent = 0
        self._sent_tokens = 0

    def sent(self, request: int, server: int, tokens: int, prefill_tokens: int) -> None:
        """A request went out; one that goes out again has left where it was."""
        self.ended(request)
        if len(self._open) >= OPEN_MAX:
            self.ended(next(iter(self._open)))
        self._open[request] = (server, tokens, prefill_tokens)
        self._tokens[server] = self._tokens.get(server, 0) + tokens
        self._prefill_tokens[server] = self._prefill_tokens.get(server, 0) + prefill_tokens
        self._sent += 1
        self._sent_tokens += tokens

    def first_token(self, request: int) -> None:
        """Its prompt is computed."""
        if request in self._open:
            server, tokens, prefill_tokens = self._open[request]
            self._open[request] = (server, tokens, 0)
            self._prefill_tokens[server] -= prefill_tokens

    def ended(self, request: int) -> None:
        """It is gone; nothing happens if it was never here."""
        if request in self._open:
            self.first_token(request)
            server, tokens, _ = self._open.pop(request)
            self._tokens[server] -= tokens

    def mean_tokens(self) -> float:
        """Of the prompts that this decider sent."""
        return self._sent_tokens / self._sent if self._sent else 0.0

    def tokens(self, one: Seen) -> float:
        """Prompt tokens of all requests at a server: own ones, and others' at the mean."""
        own = self._tokens.get(one.server, 0)
        others = in_flight(one) - one.own_in_flight
        return own + others * self.mean_tokens() if others > 0 else own

    def prefill_tokens(self, one: Seen) -> int:
        """Prompt tokens that a server has to compute: by its word, or by what was sent there."""
        return max(one.queued_prefill_tokens, self._prefill_tokens.get(one.server, 0))
