//! LSTM layers that are trained: `c = f · c₋₁ + i · g`, `y = o · tanh(c)`.

use super::body::scan;
use super::operation::op;
use super::recurrent::{self, Layer, LayerDirection};
use super::site::{LoweringSite, Obstacle, case};
use crate::graph::TensorId;

const GRADIENT: &str = "LSTMGrad";

/// The gates of all steps and samples, each step by step.
struct LstmGates {
    input: TensorId,
    output: TensorId,
    forget: TensorId,
    /// What the input gate lets into the cells.
    candidate: TensorId,
}

/// LSTMTraining(X, W, R, B, lengths, H0, C0, peepholes) -> (Y, last Y, last C, all C, gates): a standard LSTM, and where others than
/// its gradient read them, the cells and gates.
pub(super) fn training(site: &mut LoweringSite) -> Result<(), Obstacle> {
    check(site, 4)?;
    if site.node.input(7).is_some() {
        return case("with peepholes");
    }
    let y = site.result()?;
    let layer = Layer::of(site, &site.node, y)?;
    recurrent::put_layer(site, "LSTM", 2);
    let kept = site.node.output(4);
    if let Some(kept) = kept {
        site.keep_layer(kept);
    }
    let is_read = |(position, place)| match kept {
        Some(kept) => site.is_read_beside(position, GRADIENT, (kept, place)),
        None => site.node.output(position).is_some(),
    };
    let (cells, gates) = (is_read((3, 7)), is_read((4, 8)));
    if !cells && !gates {
        return Ok(());
    }
    let (mut all_cells, mut all_gates) = (Vec::new(), Vec::new());
    for place in 0..layer.directions.len() {
        let direction = layer.direction(site, place);
        let parts = gates_of(site, &layer, &direction);
        let let_in = site.add(op("Mul", [parts.input, parts.candidate]));
        all_cells.push(cells_of(site, &layer, &direction, (parts.forget, let_in)));
        let parts = [parts.input, parts.output, parts.forget, parts.candidate];
        all_gates.push(site.add(op("Concat", parts).int("axis", 2)));
    }
    for (parts, position, is_read) in [(all_cells, 3, cells), (all_gates, 4, gates)] {
        if let Some(output) = site.output(position).filter(|_| is_read) {
            recurrent::put_stacked(site, &parts, 1, output);
        }
    }
    Ok(())
}

/// LSTMGrad(X, W, R, lengths, H0, C0, Y, all C, gates, dY, dH, dC) -> (dX, dW, dR, dB, dH0, dC0, dP). With `z` for what a gate is
/// made of, and gradients that come from the step behind:
///
/// `h = dY + dh`, `c = dc + h · o(1 − tanh²C)`,
/// `dz = (c · g i(1 − i), h · tanh C o(1 − o), c · (C − i g)(1 − f), c · i(1 − g²))`, `dh₋₁ = dz · R`, `dc₋₁ = c · f`;
/// `dW = dzᵀ X`, `dR = dzᵀ Y₋₁`, `dX = dz · W` over all steps.
pub(super) fn gradient(site: &mut LoweringSite) -> Result<(), Obstacle> {
    check(site, 3)?;
    // Of sizes with names, older Scans do not know how many there are.
    site.needs_opset(14)?;
    if site.output(6).is_some() {
        return case("with peepholes");
    }
    let kept = site.input(8)?;
    let known = recurrent::layer_of(
        site,
        kept,
        &[(0, 0), (1, 1), (2, 2), (4, 5), (5, 6)],
        &[(6, 0), (7, 3), (8, 4)],
    )?;
    let mut layer = Layer::of_gradient(site, known.as_ref())?;
    if known.is_none() {
        layer.b = None;
        (layer.first_hidden, layer.first_cell) = (site.node.input(4), site.node.input(5));
    }
    let one = layer.one(site);
    let [dy, last_hidden, last_cell] = [9, 10, 11].map(|position| site.node.input(position));
    let (mut of_x, mut of_w, mut of_r, mut of_b) = (vec![], vec![], vec![], vec![]);
    let (mut of_hidden, mut of_cell) = (Vec::new(), Vec::new());
    for place in 0..layer.directions.len() {
        let direction = layer.direction(site, place);
        let gates = match known {
            Some(_) => gates_of(site, &layer, &direction),
            None => {
                let gates = layer.of_direction(site, kept, 1, place);
                parts(site, &layer, gates, 2)
            }
        };
        let let_in = site.add(op("Mul", [gates.input, gates.candidate]));
        let cells = match known {
            Some(_) => cells_of(site, &layer, &direction, (gates.forget, let_in)),
            None => {
                let cells = site.input(7)?;
                layer.of_direction(site, cells, 1, place)
            }
        };
        let rest = |site: &mut LoweringSite, gate| site.add(op("Sub", [one, gate]));
        let bent = site.add(op("Tanh", [cells]));
        let square = site.add(op("Mul", [bent, bent]));
        let slope = rest(site, square);
        let through = site.add(op("Mul", [gates.output, slope]));
        let closed = rest(site, gates.output);
        let to_output = site.add(op("Mul", [bent, gates.output]));
        let to_output = site.add(op("Mul", [to_output, closed]));
        let closed = rest(site, gates.input);
        let to_input = site.add(op("Mul", [let_in, closed]));
        let kept = site.add(op("Sub", [cells, let_in]));
        let closed = rest(site, gates.forget);
        let to_forget = site.add(op("Mul", [kept, closed]));
        let square = site.add(op("Mul", [gates.candidate, gates.candidate]));
        let slope = rest(site, square);
        let to_candidate = site.add(op("Mul", [gates.input, slope]));

        let mut body = layer.body(site);
        let (dh, dc) = (body.input(), body.input());
        let mut sequences = vec![];
        let hidden = match dy {
            None => dh,
            Some(dy) => {
                sequences.push(layer.of_direction(site, dy, 1, place));
                let dy = body.input();
                body.add(op("Add", [dh, dy]))
            }
        };
        sequences.extend([
            through,
            to_input,
            to_output,
            to_forget,
            to_candidate,
            gates.forget,
        ]);
        let [
            through,
            to_input,
            to_output,
            to_forget,
            to_candidate,
            forget,
        ] = [(); 6].map(|()| body.input());
        let from_output = body.add(op("Mul", [hidden, through]));
        let cell = body.add(op("Add", [dc, from_output]));
        let gates = [
            body.add(op("Mul", [cell, to_input])),
            body.add(op("Mul", [hidden, to_output])),
            body.add(op("Mul", [cell, to_forget])),
            body.add(op("Mul", [cell, to_candidate])),
        ];
        let gates = body.add(op("Concat", gates).int("axis", 1));
        let weights = body.outer(site, direction.r);
        let before = body.add(op("MatMul", [gates, weights]));
        let cell_before = body.add(op("Mul", [cell, forget]));
        let first = [last_hidden, last_cell].map(|last| layer.state(site, last, place));
        let results = [before, cell_before, gates];
        let results = direction.against(site, body, (&first, &sequences), &results);
        of_hidden.push(results[0]);
        of_cell.push(results[1]);
        let gates = results[2];
        of_x.push(op("MatMul", [gates, direction.w]));
        of_b.push(gates);
        let gates = site.reshaped(gates, &[-1, 4 * layer.hidden]);
        of_w.push(vec![(gates, direction.x_rows)]);
        of_r.push(vec![(gates, direction.before)]);
    }
    recurrent::put_products(site, of_x, of_w, of_r);
    if let Some(output) = site.output(3) {
        let sums = of_b.into_iter().map(|gates| {
            let sum = recurrent::sum_of_steps(site, gates);
            vec![sum, sum]
        });
        let sums = sums.collect();
        recurrent::put_rows(site, sums, output);
    }
    for (position, parts) in [(4, of_hidden), (5, of_cell)] {
        if let Some(output) = site.output(position) {
            recurrent::put_stacked(site, &parts, 0, output);
        }
    }
    Ok(())
}

fn check(site: &LoweringSite, lengths: usize) -> Result<(), Obstacle> {
    recurrent::check(site, lengths, &["Sigmoid", "Tanh", "Tanh"])
}

/// `sigmoid(z)` and, of the candidate, `tanh(z)`, where `z = X · Wᵀ + Y₋₁ · Rᵀ + b`.
fn gates_of(site: &mut LoweringSite, layer: &Layer, direction: &LayerDirection) -> LstmGates {
    let biases = layer.biases(site, direction.place, 4);
    let bias = biases.map(|both| site.add(op("Add", both)));
    let of_x = site.add(recurrent::product(direction.x_rows, direction.w, bias));
    let all = site.add(recurrent::product(
        direction.before,
        direction.r,
        Some(of_x),
    ));
    let open = parts(site, layer, all, 1);
    let mut gate = |op_type, of| {
        let gate = site.add(op(op_type, [of]));
        direction.steps(site, gate)
    };
    LstmGates {
        input: gate("Sigmoid", open.input),
        output: gate("Sigmoid", open.output),
        forget: gate("Sigmoid", open.forget),
        candidate: gate("Tanh", open.candidate),
    }
}

fn parts(site: &mut LoweringSite, layer: &Layer, all: TensorId, axis: i64) -> LstmGates {
    let [input, output, forget, candidate] = recurrent::split(site, all, axis, [layer.hidden; 4]);
    LstmGates {
        input,
        output,
        forget,
        candidate,
    }
}

/// The cells after each step, of what is kept and what comes in.
fn cells_of(
    site: &mut LoweringSite,
    layer: &Layer,
    direction: &LayerDirection,
    (forget, let_in): (TensorId, TensorId),
) -> TensorId {
    let sequences = [forget, let_in];
    let mut body = layer.body(site);
    let [before, kept, added] = [(); 3].map(|()| body.input());
    let stays = body.add(op("Mul", [before, kept]));
    let cell = body.add(op("Add", [stays, added]));
    let after = body.add(op("Identity", [cell]));
    let first = layer.state(site, layer.first_cell, direction.place);
    let given = (&[first][..], &sequences[..]);
    scan(site, body, given, &[cell, after], direction.backwards)[1]
}
