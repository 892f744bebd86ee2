//! GRU layers that are trained: `y = (1 − z) · n + z · y₋₁`, where `n` is what is new.

use super::operation::op;
use super::recurrent::{self, Layer, LayerDirection};
use super::site::{LoweringSite, Obstacle, case};
use crate::graph::{Node, TensorId};

const GRADIENT: &str = "GRUGrad";

/// Of one direction, by rows: gates of all steps and samples, and the parts of what they are made of.
struct GruGates {
    update: TensorId,
    reset: TensorId,
    new: TensorId,
    /// What of the state before goes into the new one: reset first, or multiplied with its weights, that is `Y₋₁ · Rᵀ + b`.
    within: TensorId,
}

/// Weights of the two gates, and of what is new.
struct Weights {
    of_x: [TensorId; 2],
    of_state: [TensorId; 2],
}

/// GRUTraining(X, W, R, B, lengths, H0) -> (Y, last Y, gates): a standard GRU, and where others than its gradient read them, the gates.
pub(super) fn training(site: &mut LoweringSite) -> Result<(), Obstacle> {
    check(site)?;
    let y = site.result()?;
    let layer = Layer::of(site, &site.node, y)?;
    recurrent::put_layer(site, "GRU", 1);
    let Some(kept) = site.node.output(2) else {
        return Ok(());
    };
    site.keep_layer(kept);
    if !site.is_read_beside(2, GRADIENT, (kept, 7)) {
        return Ok(());
    }
    let late = is_late(&site.node);
    let mut all = Vec::new();
    for place in 0..layer.directions.len() {
        let direction = layer.direction(site, place);
        let weights = weights_of(site, &layer, &direction);
        let gates = gates_of(site, &layer, &direction, &weights, late);
        let parts = [gates.update, gates.reset, gates.new];
        let parts = parts.map(|part| direction.steps(site, part));
        all.push(site.add(op("Concat", parts).int("axis", 2)));
    }
    recurrent::put_stacked(site, &all, 1, kept);
    Ok(())
}

/// GRUGrad(X, W, R, B, lengths, H0, Y, gates, dY, dH) -> (dX, dW, dR, dB, dH0). With a gradient that comes from the step behind, and `q`
/// for what of the state before goes into the new one:
///
/// `h = dY + dh`, `dz = h · (Y₋₁ − n) z(1 − z)`, `dn = h · (1 − z)(1 − n²)`, `dr = dn · q r(1 − r)`,
/// `dh₋₁ = h · z + (dz, dr) · R + dn r · R`. Where the state is reset before it is multiplied: `dr = dn · R · Y₋₁ r(1 − r)` and
/// `dh₋₁ = h · z + (dz, dr) · R + (dn · R) r`.
pub(super) fn gradient(site: &mut LoweringSite) -> Result<(), Obstacle> {
    check(site)?;
    // Of sizes with names, older Scans do not know how many there are.
    site.needs_opset(14)?;
    let kept = site.input(7)?;
    let known = recurrent::layer_of(
        site,
        kept,
        &[(0, 0), (1, 1), (2, 2), (3, 3), (5, 5)],
        &[(6, 0), (7, 2)],
    )?;
    let layer = Layer::of_gradient(site, known.as_ref())?;
    let late = is_late(known.as_ref().unwrap_or(&site.node));
    let one = layer.one(site);
    let [dy, last] = [8, 9].map(|position| site.node.input(position));
    let (mut of_x, mut of_w, mut of_r) = (vec![], vec![], vec![]);
    let (mut of_b, mut of_hidden) = (vec![], vec![]);
    for place in 0..layer.directions.len() {
        let direction = layer.direction(site, place);
        let weights = weights_of(site, &layer, &direction);
        let gates = match known {
            Some(_) => gates_of(site, &layer, &direction, &weights, late),
            None => given_gates(site, &layer, &direction, &weights, (kept, late)),
        };
        let rest = |site: &mut LoweringSite, gate| site.add(op("Sub", [one, gate]));
        let closed = rest(site, gates.update);
        let change = site.add(op("Sub", [direction.before, gates.new]));
        let to_update = site.add(op("Mul", [change, gates.update]));
        let to_update = site.add(op("Mul", [to_update, closed]));
        let square = site.add(op("Mul", [gates.new, gates.new]));
        let slope = rest(site, square);
        let to_new = site.add(op("Mul", [closed, slope]));
        let closed = rest(site, gates.reset);
        let to_reset = site.add(op("Mul", [gates.within, closed]));
        let sequences = [to_update, to_reset, to_new, gates.update, gates.reset];
        let mut sequences: Vec<TensorId> = sequences
            .into_iter()
            .map(|numbers| direction.steps(site, numbers))
            .collect();

        let mut body = layer.body(site);
        let dh = body.input();
        let [to_update, to_reset, to_new, update, reset] = [(); 5].map(|()| body.input());
        let hidden = match dy {
            None => dh,
            Some(dy) => {
                sequences.push(layer.of_direction(site, dy, 1, place));
                let dy = body.input();
                body.add(op("Add", [dh, dy]))
            }
        };
        let [r_of_gates, r_of_new] = weights.of_state.map(|r| body.outer(site, r));
        let of_update = body.add(op("Mul", [hidden, to_update]));
        let of_new = body.add(op("Mul", [hidden, to_new]));
        // Each result of the body is made of the one before: the runtime makes room for them in that sequence, whatever its order.
        let (of_reset, through_new, of_within) = if late {
            let of_within = body.add(op("Mul", [of_new, reset]));
            let of_reset = body.add(op("Mul", [of_within, to_reset]));
            let through = body.add(op("MatMul", [of_within, r_of_new]));
            (of_reset, through, Some(of_within))
        } else {
            let product = body.add(op("MatMul", [of_new, r_of_new]));
            let of_reset = body.add(op("Mul", [product, to_reset]));
            let through = body.add(op("Mul", [product, reset]));
            (of_reset, through, None)
        };
        let of_gates = body.add(op("Concat", [of_update, of_reset]).int("axis", 1));
        let through_gates = body.add(op("MatMul", [of_gates, r_of_gates]));
        let kept = body.add(op("Mul", [hidden, update]));
        let before = body.add(op("Add", [kept, through_gates]));
        let before = body.add(op("Add", [before, through_new]));
        let mut results = vec![before, of_new];
        results.extend(of_within);
        results.push(of_gates);
        let first = [layer.state(site, last, place)];
        let results = direction.against(site, body, (&first, &sequences), &results);
        let (of_new, of_gates) = (results[1], results[results.len() - 1]);
        let of_within = of_within.map(|_| results[2]);
        of_hidden.push(results[0]);
        let [w_of_gates, w_of_new] = weights.of_x;
        of_x.push(op("MatMul", [of_gates, w_of_gates]));
        of_x.push(op("MatMul", [of_new, w_of_new]));
        of_b.push([of_gates, of_new, of_within.unwrap_or(of_new)]);
        let of_gates = site.reshaped(of_gates, &[-1, 2 * layer.hidden]);
        let of_new = site.reshaped(of_new, &[-1, layer.hidden]);
        let of_within = of_within.map(|within| site.reshaped(within, &[-1, layer.hidden]));
        let x = direction.x_rows;
        of_w.push(vec![(of_gates, x), (of_new, x)]);
        of_r.push(vec![
            (of_gates, direction.before),
            match of_within {
                Some(of_within) => (of_within, direction.before),
                None => (of_new, gates.within),
            },
        ]);
    }
    recurrent::put_products(site, of_x, of_w, of_r);
    if let Some(output) = site.output(3) {
        let sums = of_b.into_iter().map(|[gates, new, within]| {
            let is_same = new == within;
            let [gates, new] = [gates, new].map(|steps| recurrent::sum_of_steps(site, steps));
            let within = match is_same {
                true => new,
                false => recurrent::sum_of_steps(site, within),
            };
            vec![gates, new, gates, within]
        });
        let sums = sums.collect();
        recurrent::put_rows(site, sums, output);
    }
    if let Some(output) = site.output(4) {
        recurrent::put_stacked(site, &of_hidden, 0, output);
    }
    Ok(())
}

fn check(site: &LoweringSite) -> Result<(), Obstacle> {
    let late = site.node.int("linear_before_reset").unwrap_or(0);
    if ![0, 1].contains(&late) {
        return case(format!(
            "with a linear_before_reset of {late}, neither 0 nor 1"
        ));
    }
    recurrent::check(site, 4, &["Sigmoid", "Tanh"])
}

/// Is the state multiplied before it is reset?
fn is_late(node: &Node) -> bool {
    node.int("linear_before_reset").unwrap_or(0) != 0
}

fn weights_of(site: &mut LoweringSite, layer: &Layer, direction: &LayerDirection) -> Weights {
    let sizes = [2 * layer.hidden, layer.hidden];
    let [of_x, of_state] =
        [direction.w, direction.r].map(|all| recurrent::split(site, all, 0, sizes));
    Weights { of_x, of_state }
}

/// The two biases of the gates, and of what is new.
fn biases(
    site: &mut LoweringSite,
    layer: &Layer,
    direction: &LayerDirection,
) -> Option<[[TensorId; 2]; 2]> {
    let sizes = [2 * layer.hidden, layer.hidden];
    let both = layer.biases(site, direction.place, 3)?;
    let [of_x, of_state] = both.map(|all| recurrent::split(site, all, 1, sizes));
    Some([[of_x[0], of_state[0]], [of_x[1], of_state[1]]])
}

/// `z, r = sigmoid(X · Wᵀ + Y₋₁ · Rᵀ + b)`, `n = tanh(X · Wᵀ + b + r (Y₋₁ · Rᵀ + b))`, or `tanh(X · Wᵀ + (r Y₋₁) · Rᵀ + b)`.
fn gates_of(
    site: &mut LoweringSite,
    layer: &Layer,
    direction: &LayerDirection,
    weights: &Weights,
    late: bool,
) -> GruGates {
    let biases = biases(site, layer, direction);
    let (x, before) = (direction.x_rows, direction.before);
    let bias = biases.map(|[gates, _]| site.add(op("Add", gates)));
    let of_x = site.add(recurrent::product(x, weights.of_x[0], bias));
    let both = site.add(recurrent::product(before, weights.of_state[0], Some(of_x)));
    let both = site.add(op("Sigmoid", [both]));
    let [update, reset] = recurrent::split(site, both, 1, [layer.hidden; 2]);
    let (within, sum) = if late {
        let bias = biases.map(|[_, [_, of_state]]| of_state);
        let within = site.add(recurrent::product(before, weights.of_state[1], bias));
        let bias = biases.map(|[_, [of_x, _]]| of_x);
        let of_x = site.add(recurrent::product(x, weights.of_x[1], bias));
        let of_state = site.add(op("Mul", [reset, within]));
        (within, op("Add", [of_x, of_state]))
    } else {
        let within = site.add(op("Mul", [reset, before]));
        let bias = biases.map(|[_, new]| site.add(op("Add", new)));
        let of_x = site.add(recurrent::product(x, weights.of_x[1], bias));
        (
            within,
            recurrent::product(within, weights.of_state[1], Some(of_x)),
        )
    };
    let sum = site.add(sum);
    GruGates {
        update,
        reset,
        new: site.add(op("Tanh", [sum])),
        within,
    }
}

/// The gates that the gradient is given, where nothing is known of the layer.
fn given_gates(
    site: &mut LoweringSite,
    layer: &Layer,
    direction: &LayerDirection,
    weights: &Weights,
    (all, late): (TensorId, bool),
) -> GruGates {
    let all = layer.of_direction(site, all, 1, direction.place);
    let all = site.reshaped(all, &[-1, 3 * layer.hidden]);
    let [update, reset, new] = recurrent::split(site, all, 1, [layer.hidden; 3]);
    let before = direction.before;
    let within = match late {
        true => {
            let bias = biases(site, layer, direction).map(|[_, [_, of_state]]| of_state);
            recurrent::product(before, weights.of_state[1], bias)
        }
        false => op("Mul", [reset, before]),
    };
    GruGates {
        update,
        reset,
        new,
        within: site.add(within),
    }
}
