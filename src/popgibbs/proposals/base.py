"""What a proposal is to the moves that correct it.

It draws values with their log-probability, and scores other values *under the same key*, hence under the same randomness
inside the proposal.
"""

from typing import Protocol, runtime_checkable

from popgibbs._typing import Elements, PRNGKey, Values
from popgibbs.model import AnyConditional


@runtime_checkable
class Kernel(Protocol):
    """A proposal as moves see it; log q comes by element of the block."""

    def draw(self, key: PRNGKey, conditional: AnyConditional) -> tuple[Values, Elements]: ...

    def score(self, key: PRNGKey, conditional: AnyConditional, values: Values) -> Elements: ...
