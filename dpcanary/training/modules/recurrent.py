"""Recurrent layers as loops of plain operations, which `torch.func` can differentiate by record.

PyTorch's own layers call one fused operation that it cannot vectorise over records.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence

from dpcanary.errors import InputError
from dpcanary.training.modules.dropout import KeyedDropout

_STATE = Tensor | tuple[Tensor, Tensor] | None


class _Direction(nn.Module):
    """One layer in one direction, with the parameters of that layer, in their order and by role."""

    def __init__(self, mode: str, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        super().__init__()
        self.mode = mode
        for role, parameter in parameters:
            self.register_parameter(role, parameter)

    def forward(self, inputs: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (time, records, width), and the last state and cell, each (records, width)."""
        own = dict(self.named_parameters())
        outputs = []
        for from_input in linear(inputs, own["weight_ih"], own.get("bias_ih")).unbind(0):
            recalled = linear(state, own["weight_hh"], own.get("bias_hh"))
            if self.mode == "LSTM":
                entered, kept, candidate, shown = (from_input + recalled).chunk(4, dim=-1)
                cell = torch.sigmoid(kept) * cell + torch.sigmoid(entered) * torch.tanh(candidate)
                state = torch.sigmoid(shown) * torch.tanh(cell)
            elif self.mode == "GRU":
                reset, update, new = from_input.chunk(3, dim=-1)
                old_reset, old_update, old_new = recalled.chunk(3, dim=-1)
                update = torch.sigmoid(update + old_update)
                new = torch.tanh(new + torch.sigmoid(reset + old_reset) * old_new)
                state = (1 - update) * new + update * state
            else:
                state = (torch.relu if self.mode == "RNN_RELU" else torch.tanh)(
                    from_input + recalled
                )
            outputs.append(state)
        # Copies: if one output were made of another, gradients would count what passes both twice.
        return torch.stack(outputs), state.clone(), cell.clone()


class ScannedRecurrence(nn.Module):
    """Does what `nn.RNN`, `nn.GRU`, `nn.LSTM` and their twins of Opacus do, step by step.

    Its parameters are those of the layer, in the same order. Between layers it drops units as
    `KeyedDropout` does.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.mode, self.batch_first = _mode_of(layer), bool(layer.batch_first)
        self.num_directions = 2 if layer.bidirectional else 1
        self.hidden_size = int(layer.hidden_size)  # type: ignore[arg-type]
        self.dropout = KeyedDropout(float(layer.dropout))  # type: ignore[arg-type]
        parameters = [*layer.named_parameters()]
        self.directions = nn.ModuleList(
            _Direction(
                self.mode,
                [
                    (name.removesuffix(suffix), parameter)
                    for name, parameter in parameters
                    if name.endswith(suffix)
                ],
            )
            for number in range(int(layer.num_layers))  # type: ignore[arg-type]
            for suffix in (f"_l{number}", f"_l{number}_reverse")[: self.num_directions]
        )

    @staticmethod
    def of(layer: nn.Module) -> "ScannedRecurrence | None":
        """What stands in for a recurrent layer; None for layers of other kinds."""
        if not _mode_of(layer):
            return None
        scanned = ScannedRecurrence(layer)
        pairs = zip(scanned.parameters(), layer.parameters(), strict=True)
        return scanned if all(shared is held for shared, held in pairs) else None

    def forward(self, inputs: Tensor, state: _STATE = None) -> tuple[Tensor, _STATE]:
        """As `torch.nn.LSTM.forward` and the others."""
        if isinstance(inputs, PackedSequence):
            raise InputError(
                "packed sequences mix the steps of all records: pad the records to one length, and"
                " take the outputs at each record's own last step"
            )
        alone = inputs.dim() == 2  # one record, without a dimension for records
        if alone:
            inputs = inputs.unsqueeze(1)
        elif self.batch_first:
            inputs = inputs.transpose(0, 1)
        starts = self._starts(inputs, state, alone=alone)
        ends: list[tuple[Tensor, Tensor]] = []
        for first in range(0, len(self.directions), self.num_directions):
            if first:
                inputs = self.dropout(inputs)
            outputs = []
            for index in range(first, first + self.num_directions):
                is_reverse = index > first
                ordered = inputs.flip(0) if is_reverse else inputs
                seen, *last = self.directions[index](ordered, *starts[index])
                outputs.append(seen.flip(0) if is_reverse else seen)
                ends.append((last[0], last[1]))
            inputs = torch.cat(outputs, dim=-1)
        hidden, cell = (torch.stack(parts) for parts in zip(*ends, strict=True))
        if alone:
            inputs, hidden, cell = inputs.squeeze(1), hidden.squeeze(1), cell.squeeze(1)
        elif self.batch_first:
            inputs = inputs.transpose(0, 1)
        return inputs, (hidden, cell) if self.mode == "LSTM" else hidden

    def _starts(self, inputs: Tensor, state: _STATE, *, alone: bool) -> list[tuple[Tensor, Tensor]]:
        """State and cell of every layer and direction before the first step; zeros by default."""
        count = len(self.directions)
        if state is None:
            hidden = cell = inputs.new_zeros(count, inputs.shape[1], self.hidden_size)
        else:
            hidden, cell = state if isinstance(state, tuple) else (state, state)
            if alone:
                hidden, cell = hidden.unsqueeze(1), cell.unsqueeze(1)
        return [*zip(hidden.unbind(0), cell.unbind(0), strict=True)]


def _mode_of(layer: nn.Module) -> str:
    """How PyTorch names the kind of a recurrent layer; empty for other layers and projections."""
    if type(layer) in (nn.RNN, nn.GRU, nn.LSTM):
        return "" if layer.proj_size else str(layer.mode)
    twins = {"DPRNN": "RNN", "DPGRU": "GRU", "DPLSTM": "LSTM"}
    name, module = type(layer).__name__, type(layer).__module__
    if not module.startswith("opacus.layers") or name not in twins:
        return ""
    nonlinearity = layer.cell_params.get("nonlinearity", "tanh")  # type: ignore[union-attr,operator]
    return f"RNN_{str(nonlinearity).upper()}" if name == "DPRNN" else twins[name]
