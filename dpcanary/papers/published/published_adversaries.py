"""Adversaries for published statements, as entries of the catalogue."""

from dpcanary.core.adjacency import Adjacency
from dpcanary.extend import Adversary, Inserts, Score

ENCODING_LOSS = Adversary(
    name="encoding_loss",
    label="encoding loss",
    description="gradient +C against -C, or against nothing under `add_remove` and `zero_out`;"
    " the loss of all other records is crafted so that the last model remembers all steps",
    source="ours, for the statement of Annamalai, 2024",
    inserts=Inserts.PROCESS,
    function="dpcanary.papers.published.encoding_loss:draw_models",
    scores=(Score("decoded", "dpcanary.papers.published.encoding_loss:decoded_ratio", "model"),),
    adjacencies=tuple(Adjacency),
    colour="#3311DD",
)
