//! The optimizer's update of the weights, in the graph: a whole training step in one file.
//!
//! Where a gradient was accumulated, it is used: the new values of the weight and of the optimizer's states are outputs, which
//! the caller has written to the memory of the old ones, inputs ([`Tensor::overwrites`](crate::graph::Tensor::overwrites)). No gradient
//! is kept for the whole step then. As no operator of the standard writes to its inputs, all that read a weight have to come
//! before it is overwritten by what they compute: the learning rate is handed on to an update by a Reshape to the least of the
//! sizes of what they wrote, and zeros, as in barriers.
//!
//! The sequence of roundings is that of the kernels that ONNX Runtime had (AdamWOptimizer, SGDOptimizerV2), so that the same gradients
//! give the same weights.

use std::collections::BTreeMap;

use super::operation::{NewNode, op};
use super::site::{LoweringSite, Obstacle, StepInputs, case, cast};
use crate::analysis::overwrites::unordered;
use crate::graph::{
    AttributeValue, ElementType, Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses,
    topological,
};

/// How weights follow their gradients. The learning rate is an input of the graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Update {
    /// w ← w − η·g.
    Sgd,
    /// With states m and v, and the number t of the step, which is an input as well:
    /// m ← α·m + (1 − α)·g, v ← β·v + (1 − β)·g², w ← w − η·m̂ / (√v̂ + ε) with m̂ = m / (1 − αᵗ) and v̂ = v / (1 − βᵗ).
    AdamW(AdamW),
}

/// What AdamW is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// How much of the first moment is kept.
    pub alpha: f32,
    /// How much of the second moment is kept.
    pub beta: f32,
    /// What is added to the root of the second moment.
    pub epsilon: f32,
    /// λ: η·λ·w is subtracted from w.
    pub weight_decay: f32,
    /// Are the moments divided by 1 − αᵗ and 1 − βᵗ? Else by 1.
    pub corrects_bias: bool,
    /// Does w decay behind the update, and not before it? Then ε is added to √v, and not to √v̂.
    pub decays_last: bool,
}

impl Default for AdamW {
    /// As `onnxruntime.training.artifacts.generate_artifacts` has it with `OptimType.AdamW`, whose node says `adam_mode` 1. What the
    /// operator itself takes for granted is 0.
    fn default() -> AdamW {
        AdamW {
            alpha: 0.9,
            beta: 0.999,
            epsilon: 1e-6,
            weight_decay: 0.0,
            corrects_bias: true,
            decays_last: true,
        }
    }
}

impl Update {
    /// How many values it keeps for each value of a weight, from step to step.
    pub fn states(self) -> u64 {
        match self {
            Update::Sgd => 0,
            Update::AdamW(_) => 2,
        }
    }
}

/// What inputs and outputs end with that are the weights' states and new values.
const MOMENTS: [&str; 2] = [".moment_1", ".moment_2"];
const NEXT: &str = ".next";

/// Writes the update in place of the accumulation of a gradient.
pub(super) fn update(site: &mut LoweringSite, update: Update) -> Result<(), Obstacle> {
    let [buffer, gradient] = site.inputs()?;
    let weight = trained(site, buffer, gradient)?;
    if site.output(1).is_some() {
        return case("where a node reads what is accumulated, with the update in the graph");
    }
    let inputs = match site.step_inputs() {
        Some(known) => known,
        None => {
            let made = step_inputs(site, update);
            site.set_step_inputs(made);
            made
        }
    };
    match update {
        Update::Sgd => {
            let step = site.add(op("Mul", [gradient, inputs.learning_rate]));
            put_weight(site, weight, op("Sub", [weight, step]))?;
        }
        Update::AdamW(rule) => adamw(site, inputs, [weight, gradient], rule)?,
    }
    site.drops_interface();
    Ok(())
}

/// The weight whose gradient is accumulated, by the name of that or of the buffer.
fn trained(
    site: &LoweringSite,
    buffer: TensorId,
    gradient: TensorId,
) -> Result<TensorId, Obstacle> {
    let weight = |of: TensorId, ending: &str| {
        let name = site.name(of).strip_suffix(ending);
        name.and_then(|name| site.tensor_named(name))
    };
    let named = weight(gradient, "_grad").or_else(|| weight(buffer, "_grad.accumulation.buffer"));
    let Some(weight) = named else {
        return case(format!(
            "with the update in the graph: it accumulates {:?}; expected a gradient called WEIGHT_grad",
            site.name(gradient)
        ));
    };
    let name = site.name(weight);
    if !site.is_input(weight) {
        return case(format!(
            "with the update in the graph: {name:?} is no input of the graph, whose memory the caller could have overwritten"
        ));
    }
    for tensor in [weight, gradient] {
        let element = site.element(tensor)?;
        if element != ElementType::Float {
            return case(format!(
                "with the update in the graph: {:?} is of {}, and optimizers compute in float32",
                site.name(tensor),
                element.name()
            ));
        }
    }
    if site.numbers(weight).is_none() {
        return case(format!(
            "with the update in the graph: nothing says how large {name:?} is; expected numbers"
        ));
    }
    Ok(weight)
}

fn step_inputs(site: &mut LoweringSite, update: Update) -> StepInputs {
    let learning_rate = site.new_input("learning_rate", ElementType::Float, &[1]);
    let rule = match update {
        Update::AdamW(rule) if rule.corrects_bias => rule,
        Update::AdamW(_) | Update::Sgd => {
            return StepInputs {
                learning_rate,
                corrections: None,
            };
        }
    };
    let number = site.new_input("step", ElementType::Int64, &[1]);
    let number = site.add(cast(number, ElementType::Double));
    let one = site.number(1.0, ElementType::Float);
    let corrections = [rule.alpha, rule.beta].map(|kept| {
        // In double and then rounded, as the kernel does it.
        let kept = site.number(f64::from(kept), ElementType::Double);
        let power = site.add(op("Pow", [kept, number]));
        let power = site.add(cast(power, ElementType::Float));
        site.add(op("Sub", [one, power]))
    });
    StepInputs {
        learning_rate,
        corrections: Some(corrections),
    }
}

fn adamw(
    site: &mut LoweringSite,
    inputs: StepInputs,
    [weight, gradient]: [TensorId; 2],
    rule: AdamW,
) -> Result<(), Obstacle> {
    let float =
        |site: &mut LoweringSite, value: f32| site.number(f64::from(value), ElementType::Float);
    let sizes = site.numbers(weight).unwrap_or_default();
    let [first, second] = MOMENTS.map(|ending| {
        let name = format!("{}{ending}", site.name(weight));
        site.new_input(&name, ElementType::Float, &sizes)
    });
    let rate = inputs.learning_rate;

    let (kept, new) = (float(site, rule.alpha), float(site, 1.0 - rule.alpha));
    let kept = site.add(op("Mul", [first, kept]));
    let new = site.add(op("Mul", [gradient, new]));
    let first = put_over(site, first, op("Add", [kept, new]));

    let (kept, new) = (float(site, rule.beta), float(site, 1.0 - rule.beta));
    let new = site.add(op("Mul", [gradient, new]));
    let new = site.add(op("Mul", [new, gradient]));
    let kept = site.add(op("Mul", [second, kept]));
    let second = put_over(site, second, op("Add", [kept, new]));

    let epsilon = float(site, rule.epsilon);
    let decay = (rule.weight_decay != 0.0).then(|| float(site, rule.weight_decay));
    if rule.decays_last {
        let rate_of_moment = match inputs.corrections {
            Some([alpha, beta]) => {
                let root = site.add(op("Sqrt", [beta]));
                let ratio = site.add(op("Div", [root, alpha]));
                site.add(op("Mul", [rate, ratio]))
            }
            None => rate,
        };
        let root = site.add(op("Sqrt", [second]));
        let root = site.add(op("Add", [root, epsilon]));
        let step = site.add(op("Mul", [first, rate_of_moment]));
        let step = site.add(op("Div", [step, root]));
        let stepped = op("Sub", [weight, step]);
        let Some(decay) = decay else {
            return put_weight(site, weight, stepped);
        };
        let stepped = site.add(stepped);
        let decay = site.add(op("Mul", [rate, decay]));
        let decayed = site.add(op("Mul", [stepped, decay]));
        return put_weight(site, weight, op("Sub", [stepped, decayed]));
    }
    let mut square = second;
    if let Some([_, beta]) = inputs.corrections {
        square = site.add(op("Div", [square, beta]));
    }
    let root = site.add(op("Sqrt", [square]));
    let mut root = site.add(op("Add", [root, epsilon]));
    if let Some([alpha, _]) = inputs.corrections {
        root = site.add(op("Mul", [root, alpha]));
    }
    let step = site.add(op("Mul", [first, rate]));
    let step = site.add(op("Div", [step, root]));
    let mut decayed = weight;
    if let Some(decay) = decay {
        let part = site.add(op("Mul", [weight, rate]));
        let part = site.add(op("Mul", [part, decay]));
        decayed = site.add(op("Sub", [weight, part]));
    }
    put_weight(site, weight, op("Sub", [decayed, step]))
}

/// An output over the input that it is the new value of.
fn put_over(site: &mut LoweringSite, input: TensorId, new: NewNode) -> TensorId {
    let output = site.new_output(&format!("{}{NEXT}", site.name(input)), input);
    site.put(new, output);
    output
}

/// The same of the weight. A number alone has an axis here, that of the learning rate.
fn put_weight(site: &mut LoweringSite, weight: TensorId, new: NewNode) -> Result<(), Obstacle> {
    let last = match site.rank(weight)? {
        0 => {
            let new = site.add(new);
            op("ReduceSum", [new]).int("keepdims", 0)
        }
        _ => new,
    };
    put_over(site, weight, last);
    Ok(())
}

/// Lets each update, whose nodes write these, wait for all that read its weight.
pub(super) fn wait_for_readers(graph: &mut Graph, inputs: StepInputs, updates: &[Vec<TensorId>]) {
    let uses = Uses::of(graph);
    let mut readers: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for (reader, writer) in unordered(graph) {
        readers.entry(writer).or_default().push(reader);
    }
    let mut order = Vec::with_capacity(graph.order().len() + 4 * readers.len());
    let mut zeros = None;
    let mut first_of = BTreeMap::new();
    for written in updates {
        let producers = written.iter().filter_map(|&tensor| uses.producer(tensor));
        let nodes: Vec<NodeId> = producers.collect();
        let found = nodes.iter().find_map(|id| readers.remove(id));
        if let (Some(readers), Some(&first)) = (found, nodes.first()) {
            first_of.insert(first, (nodes, readers));
        }
    }
    for id in graph.order().to_vec() {
        if let Some((nodes, readers)) = first_of.get(&id) {
            let waits: Vec<TensorId> = readers
                .iter()
                .filter_map(|&reader| graph.node(reader).writes().next())
                .collect();
            let rate = handed_on(graph, &mut order, inputs.learning_rate, &waits, &mut zeros);
            for &node in nodes {
                for input in graph.node_mut(node).inputs.iter_mut().flatten() {
                    if *input == inputs.learning_rate {
                        *input = rate;
                    }
                }
            }
        }
        order.push(id);
    }
    graph.set_order(order);
    // What is waited for may be listed later.
    if let Ok(order) = topological(graph, &Uses::of(graph)) {
        graph.set_order(order);
    }
}

/// The learning rate, once those are there.
fn handed_on(
    graph: &mut Graph,
    order: &mut Vec<NodeId>,
    rate: TensorId,
    waits: &[TensorId],
    zeros: &mut Option<TensorId>,
) -> TensorId {
    let mut add = |op_type: &str,
                   inputs: Vec<Option<TensorId>>,
                   attribute: Option<(&str, AttributeValue)>| {
        let wish = format!("ckpt-opt/update/{op_type}");
        let output = graph.add_tensor(Tensor::new(
            graph.free_tensor_name(&wish),
            TensorKind::Value,
        ));
        let name = graph.tensor(output).name.clone();
        let mut node = Node::new(name, "", op_type, inputs, vec![Some(output)]);
        if let Some((name, value)) = attribute {
            node.set_attribute(name, value);
        }
        order.push(graph.add_node(node));
        output
    };
    let zeros = *zeros.get_or_insert_with(|| {
        add(
            "Constant",
            Vec::new(),
            Some(("value_ints", AttributeValue::Ints(vec![0]))),
        )
    });
    let mut sizes: Vec<Option<TensorId>> = Vec::new();
    for &wait in waits {
        sizes.push(Some(add("Size", vec![Some(wait)], None)));
    }
    sizes.push(Some(zeros));
    let least = add("Min", sizes, None);
    add("Reshape", vec![Some(rate), Some(least)], None)
}
