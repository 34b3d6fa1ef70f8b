"""From logits to tokens: the same result for a row wherever, and with whomever, it is drawn.

Knows: every option that shapes a token, the order they act in, and the fixed noise that sampling
is coupled to. Does not know: requests' lives, drafts, models, grammars beyond their bitmasks.
"""

from outrider_worker.sampling.chain import adjust, sample
from outrider_worker.sampling.columns import DrawColumns
from outrider_worker.sampling.draw import draw
from outrider_worker.sampling.laws import law
from outrider_worker.sampling.logprobs import Logprobs, logprobs_of
from outrider_worker.sampling.row_sampling import RowSampling
from outrider_worker.sampling.rows import SampledRows
from outrider_worker.sampling.seats import SeatSampling
from outrider_worker.sampling.stages import Stages, stages_of

__all__ = [
    "DrawColumns",
    "Logprobs",
    "RowSampling",
    "SampledRows",
    "SeatSampling",
    "Stages",
    "adjust",
    "draw",
    "law",
    "logprobs_of",
    "sample",
    "stages_of",
]
