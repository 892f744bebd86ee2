//! Recurrent layers: RNN, GRU, LSTM, and those of ONNX Runtime that keep what their gradients
//! need.

use super::view::{Fault, Input, Known, Outputs, View, known};
use super::{Family, Operator, Provider, microsoft, onnx};
use crate::bytes::Bytes;

pub(super) const OPERATORS: &[Operator] = &[
    onnx("RNN", Family::Recurrent, |view| forward(view, 1))
        .operations(operations)
        .workspace(|view, provider| gate_workspace(view, provider, 1)),
    onnx("GRU", Family::Recurrent, |view| forward(view, 3))
        .operations(operations)
        .workspace(|view, provider| gate_workspace(view, provider, 3)),
    onnx("LSTM", Family::Recurrent, |view| forward(view, 4))
        .operations(operations)
        .workspace(|view, provider| gate_workspace(view, provider, 4)),
    microsoft("GRUTraining", Family::Recurrent, |view| training(view, 3))
        .operations(operations)
        .workspace(|view, provider| state_workspace(view, provider, 3)),
    microsoft("LSTMTraining", Family::Recurrent, |view| training(view, 4))
        .operations(operations)
        .workspace(|view, provider| state_workspace(view, provider, 4)),
    // (X, W, R, B, lengths, H0, ...) -> (dX, dW, dR, dB, dH0)
    microsoft("GRUGrad", Family::Recurrent, |view| gradient(view, 3))
        .operations(|view| Some(2.0 * operations(view)?))
        .workspace(|view, provider| gradient_workspace(view, provider, &[(5, 4)])),
    // (X, W, R, lengths, H0, C0, ...) -> (dX, dW, dR, dB, dH0, dC0, dP)
    microsoft("LSTMGrad", Family::Recurrent, |view| gradient(view, 4))
        .operations(|view| Some(2.0 * operations(view)?))
        .workspace(|view, provider| gradient_workspace(view, provider, &[(4, 4), (5, 5)])),
];

/// The sizes of a recurrent layer.
struct LayerSizes<'a> {
    x: Input<'a>,
    directions: u64,
    sequence: u64,
    batch: u64,
    /// Gates times the hidden size.
    rows: u64,
    input: u64,
    hidden: u64,
    batch_first: bool,
}

/// X `[sequence, batch, input]` (`layout = 1`: batch first), W `[directions, gates * hidden,
/// input]`, R `[directions, gates * hidden, hidden]`
fn sizes<'a>(view: &View<'a>) -> Result<LayerSizes<'a>, Fault> {
    let (x, weights, recurrence) = (view.input(0)?, view.input(1)?, view.input(2)?);
    let &[first, second, input] = x.shape else {
        return Err(x.wrong(0, "sequence, batch and input size"));
    };
    let &[directions, rows, _] = weights.shape else {
        return Err(weights.wrong(1, "directions, gates and input size"));
    };
    let &[_, _, hidden] = recurrence.shape else {
        return Err(recurrence.wrong(2, "directions, gates and hidden size"));
    };
    if directions != 1 + u64::from(view.node.string("direction") == Some("bidirectional")) {
        return Err(weights.wrong(1, "as many directions as the attribute says"));
    }
    let batch_first = view.node.int("layout").unwrap_or(0) != 0;
    let (sequence, batch) = if batch_first {
        (second, first)
    } else {
        (first, second)
    };
    Ok(LayerSizes {
        x,
        directions,
        sequence,
        batch,
        rows,
        input,
        hidden,
        batch_first,
    })
}

impl LayerSizes<'_> {
    /// `[sequence, directions, batch, width]`, or with the batch first
    /// `[batch, sequence, directions, width]`
    fn all_steps(&self, width: u64) -> Option<Known> {
        let shape = match self.batch_first {
            false => vec![self.sequence, self.directions, self.batch, width],
            true => vec![self.batch, self.sequence, self.directions, width],
        };
        self.x.with_shape(shape)
    }

    /// The elements of a state, of all directions.
    fn state(&self) -> Option<u64> {
        let of_one = self.batch.checked_mul(self.hidden)?;
        of_one.checked_mul(self.directions)
    }

    fn last_step(&self) -> Option<Known> {
        let shape = match self.batch_first {
            false => vec![self.directions, self.batch, self.hidden],
            true => vec![self.batch, self.directions, self.hidden],
        };
        self.x.with_shape(shape)
    }
}

/// -> (Y, last Y, last cell state)
fn forward(view: &View, gates: u64) -> Result<Outputs, Fault> {
    let (sizes, weights) = (sizes(view)?, view.input(1)?);
    let rows = sizes.hidden.checked_mul(gates);
    if weights.shape[2] != sizes.input || rows != Some(sizes.rows) {
        return Err(weights.wrong(1, "gates of the hidden size, for this input size"));
    }
    Ok(vec![
        sizes.all_steps(sizes.hidden),
        sizes.last_step(),
        sizes.last_step(),
    ])
}

/// LSTMTraining -> (Y, last Y, last cell state, all cell states, gates);
/// GRUTraining -> (Y, last Y, gates)
fn training(view: &View, gates: u64) -> Result<Outputs, Fault> {
    let sizes = sizes(view)?;
    let mut outputs = vec![sizes.all_steps(sizes.hidden), sizes.last_step()];
    if gates == 4 {
        outputs.extend([sizes.last_step(), sizes.all_steps(sizes.hidden)]);
    }
    outputs.push(sizes.all_steps(sizes.rows));
    Ok(outputs)
}

fn gradient(view: &View, gates: u64) -> Result<Outputs, Fault> {
    let sizes = sizes(view)?;
    let wide = |factor: u64| -> Result<Option<Known>, Fault> {
        let width = sizes.hidden.checked_mul(factor).ok_or(Fault::TooLarge)?;
        Ok(known(sizes.x.element, vec![sizes.directions, width]))
    };
    let of_input = vec![sizes.directions, sizes.rows, sizes.input];
    let mut outputs = vec![
        view.input(0)?.same(),
        known(sizes.x.element, of_input),
        view.input(2)?.same(),
    ];
    outputs.extend([wide(2 * gates)?, sizes.last_step()]);
    if gates == 4 {
        outputs.extend([sizes.last_step(), wide(3)?]);
    }
    Ok(outputs)
}

/// A multiply-add per weight, step and sample.
fn operations(view: &View) -> Option<f64> {
    let sizes = sizes(view).ok()?;
    let weights = view.input(1).ok()?.count() as f64 + view.input(2).ok()?.count() as f64;
    Some(2.0 * weights * sizes.sequence as f64 * sizes.batch as f64)
}

/// The CPU kernel computes the gates of all steps ahead of time and keeps a few states, for each direction; for a direction
/// that runs backwards, GRU and LSTM also turn the input and the result around (measured).
fn gate_workspace(view: &View, provider: Provider, gates: u64) -> Option<Bytes> {
    if provider == Provider::Cuda {
        return None;
    }
    let sizes = sizes(view).ok()?;
    let samples = sizes.sequence.checked_mul(sizes.batch)?;
    let ahead = samples.checked_mul(gates.checked_mul(sizes.hidden)?)?;
    // RNN's directions take turns.
    let at_once = if gates == 1 { 1 } else { sizes.directions };
    let states = states(view, &sizes, gates)?;
    let mut elements = ahead.checked_add(states)?.checked_mul(at_once)?;
    let forward = matches!(view.node.string("direction"), None | Some("forward"));
    if gates > 1 && !forward {
        let reversed = sizes
            .x
            .count()
            .checked_add(samples.checked_mul(sizes.hidden)?)?;
        elements = elements.checked_add(reversed)?;
    }
    Some(sizes.x.element.bytes(elements))
}

/// The elements of the states that the kernels keep for each direction. A bias is repeated for each sample by GRU; a last state
/// that is not put out is computed all the same (measured).
fn states(view: &View, sizes: &LayerSizes, gates: u64) -> Option<u64> {
    let there = |there: bool, count: u64| if there { count } else { 0 };
    let bias = view.node.input(3).is_some();
    let omitted = |position: usize| there(view.node.output(position).is_none(), 1);
    let before_reset = there(view.node.int("linear_before_reset").unwrap_or(0) != 0, 1);
    let (states, beside) = match gates {
        1 => (1, 0),
        3 => (
            2 + before_reset + there(bias, 3 + before_reset) + omitted(1),
            0,
        ),
        _ => (3 + omitted(1) + omitted(2), 2 + there(bias, 4)),
    };
    let of_samples = sizes.batch.checked_mul(states)?;
    sizes.hidden.checked_mul(of_samples.checked_add(beside)?)
}

/// The kernels that keep what gradients need write the gates into an output, and hold the states besides (measured).
fn state_workspace(view: &View, provider: Provider, gates: u64) -> Option<Bytes> {
    let sizes = sizes(view).ok()?;
    let elements = states(view, &sizes, gates)?.checked_mul(sizes.directions)?;
    (provider == Provider::Cpu).then(|| sizes.x.element.bytes(elements))
}

/// The gradient kernels hold what one sample and step adds to the weights' gradients, to each gate, and to one state. A first
/// state that is not given is made of zeros, and its gradient is computed whether it is put out or not (source, measured);
/// `states` are their positions among the inputs and outputs.
fn gradient_workspace(view: &View, provider: Provider, states: &[(usize, usize)]) -> Option<Bytes> {
    let sizes = sizes(view).ok()?;
    let missing = |&(input, output): &(usize, usize)| {
        let tensors = [view.node.input(input), view.node.output(output)];
        tensors.iter().filter(|tensor| tensor.is_none()).count() as u64
    };
    let missing: u64 = states.iter().map(missing).sum();
    let (weights, recurrence) = (view.input(1).ok()?, view.input(2).ok()?);
    let step = sizes.rows.checked_add(sizes.hidden)?;
    let elements = sizes.state()?.checked_mul(missing)?.checked_add(step)?;
    let gradients = weights.bytes() + recurrence.bytes();
    (provider == Provider::Cpu).then(|| gradients + sizes.x.element.bytes(elements))
}

#[cfg(test)]
mod tests {
    use super::super::Provider;
    use super::super::testing::Case;

    fn layer(case: Case, gates: u64) -> Case {
        // sequence 5, batch 2, input 3, hidden 4
        case.float(&[5, 2, 3])
            .float(&[1, gates * 4, 3])
            .float(&[1, gates * 4, 4])
    }

    #[test]
    fn layers_give_all_steps_and_the_last() {
        let case = layer(Case::onnx("LSTM"), 4).outputs(3);
        assert_eq!(
            case.shapes(),
            ["float[5, 1, 2, 4]", "float[1, 2, 4]", "float[1, 2, 4]"]
        );
        // 2 * (16 * 3 + 16 * 4) * 5 * 2
        assert_eq!(case.work().operations, 2240.0);
        let case = layer(Case::onnx("GRU"), 3).int("layout", 1);
        assert_eq!(case.shapes(), ["float[5, 2, 1, 4]"]);
        insta::assert_snapshot!(layer(Case::onnx("GRU"), 4).fault(),
            @"input 1 has shape [1, 16, 3]; expected gates of the hidden size, for this input size");
    }

    #[test]
    fn training_layers_keep_their_gates() {
        let case = layer(Case::microsoft("LSTMTraining"), 4).outputs(5);
        assert_eq!(
            case.shapes()[3..],
            ["float[5, 1, 2, 4]", "float[5, 1, 2, 16]"]
        );
        let case = layer(Case::microsoft("GRUTraining"), 3).outputs(3);
        assert_eq!(case.shapes()[2], "float[5, 1, 2, 12]");
    }

    #[test]
    fn gradients_are_shaped_like_the_inputs() {
        let case = layer(Case::microsoft("LSTMGrad"), 4).outputs(7);
        assert_eq!(
            case.shapes(),
            [
                "float[5, 2, 3]",
                "float[1, 16, 3]",
                "float[1, 16, 4]",
                "float[1, 32]",
                "float[1, 2, 4]",
                "float[1, 2, 4]",
                "float[1, 12]"
            ]
        );
        let case = layer(Case::microsoft("GRUGrad"), 3).outputs(5);
        assert_eq!(case.shapes()[3..], ["float[1, 24]", "float[1, 2, 4]"]);
    }

    /// The layer has 2 samples, 3 inputs and 4 hidden elements.
    #[test]
    fn gradients_hold_a_step_and_the_states_that_are_missing() {
        let bytes = |case: &Case| case.workspace(Provider::Cpu).0;
        let gradient = |gates| layer(Case::microsoft("GRUGrad"), gates);
        // Of the weights 3 * 4 * (3 + 4), of the gates 3 * 4, and of a state 4; the first state and its gradient take 2 * 4.
        let all = 4 * (84 + 12 + 4);
        let with_state = |case: Case| case.none().none().float(&[1, 2, 4]);
        assert_eq!(bytes(&with_state(gradient(3)).outputs(5)), all);
        assert_eq!(bytes(&with_state(gradient(3)).outputs(4)), all + 4 * 8);
        assert_eq!(bytes(&gradient(3).outputs(4)), all + 4 * 16);
    }
}
