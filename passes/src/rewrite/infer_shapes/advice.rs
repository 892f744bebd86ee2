//! What the sizes that a user gives, or leaves out, have to do with each other.

use std::collections::{BTreeMap, BTreeSet};

use super::deduce::deduce;
use super::{InferShapes, InferShapesError, Inference, dimensions_of, is_pattern, patterns};
use crate::graph::{Graph, NodeId, Uses, topological};
use crate::pass::Pass;

/// Of more dimensions it is not looked which follow from others.
const FEW: usize = 6;

/// Sizes that are missing only once others are there are looked for so often.
const MOST_ROUNDS: usize = 16;

/// A size that most nodes accept: what is cut, or made of several axes, often wants a multiple of a small number.
const SAMPLE: u64 = 12;

/// The error, with what helps: what follows from other sizes that are missing is not asked for, what is missing once these are there
/// is, and a size that does not fit is set against what follows from the others. `graph` is as it was before.
pub(crate) fn advised(
    graph: &Graph,
    bindings: &BTreeMap<String, u64>,
    error: InferShapesError,
) -> InferShapesError {
    let uses = Uses::of(graph);
    let Ok(order) = topological(graph, &uses) else {
        return error;
    };
    let advice = Advice { graph, order, uses };
    match error {
        InferShapesError::Unbound { names, .. } if (2..=FEW).contains(&names.len()) => {
            advice.without_what_follows(bindings, names)
        }
        InferShapesError::Node { .. } | InferShapesError::Gradient { .. } => {
            advice.at_odds(bindings, error)
        }
        error => with_further(graph, bindings, error),
    }
}

/// The same, with the sizes that are missing besides once those are there that it asks for.
fn with_further(
    graph: &Graph,
    bindings: &BTreeMap<String, u64>,
    mut error: InferShapesError,
) -> InferShapesError {
    let mut all: BTreeSet<String> = error.names().iter().cloned().collect();
    if all.is_empty() {
        return error;
    }
    for _ in 0..MOST_ROUNDS {
        let mut bindings = bindings.clone();
        // A size of one is broadcast to every other.
        bindings.extend(all.iter().map(|name| (name.clone(), 1)));
        let further = InferShapes { bindings }.run(&mut graph.clone());
        let known = all.len();
        all.extend(
            further
                .err()
                .iter()
                .flat_map(|error| error.names().to_vec()),
        );
        if all.len() == known {
            break;
        }
    }
    if let Some(names) = error.names_mut() {
        *names = all.into_iter().collect();
    }
    error
}

struct Advice<'g> {
    graph: &'g Graph,
    order: Vec<NodeId>,
    uses: Uses,
}

impl Advice<'_> {
    /// What follows from these sizes.
    fn deduced(&self, sizes: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
        let patterns = patterns(&sizes);
        let inference = Inference::new(sizes, patterns, self.uses.clone());
        deduce(self.graph, &self.order, &inference)
    }

    /// The last of the inputs' dimensions first.
    fn last_first(&self, names: impl Iterator<Item = String>) -> Vec<String> {
        let mut names: Vec<String> = names.collect();
        let inputs = self.graph.inputs.iter();
        let of_inputs = inputs.flat_map(|&id| dimensions_of(self.graph.tensor(id)));
        let of_inputs: Vec<String> = of_inputs.collect();
        names.sort_by_key(|name| of_inputs.iter().position(|other| other == name));
        names.reverse();
        names
    }

    fn without_what_follows(
        &self,
        bindings: &BTreeMap<String, u64>,
        names: Vec<String>,
    ) -> InferShapesError {
        let mut asked = names.clone();
        for name in self.last_first(names.iter().cloned()) {
            let others = asked.iter().filter(|other| **other != name);
            let mut sizes = bindings.clone();
            sizes.extend(others.map(|other| (other.clone(), SAMPLE)));
            if self.deduced(sizes).contains_key(&name) {
                asked.retain(|other| *other != name);
            }
        }
        let follow = names.into_iter().filter(|name| !asked.contains(name));
        InferShapesError::Unbound {
            follow: follow.collect(),
            names: asked,
        }
    }

    fn at_odds(
        &self,
        bindings: &BTreeMap<String, u64>,
        error: InferShapesError,
    ) -> InferShapesError {
        let given = bindings.keys().filter(|name| !is_pattern(name)).cloned();
        for name in self.last_first(given).into_iter().take(FEW) {
            let mut sizes = bindings.clone();
            let Some(given) = sizes.remove(&name) else {
                continue;
            };
            match self.deduced(sizes).get(&name) {
                Some(&follows) if follows != given => {
                    return InferShapesError::AtOdds {
                        name,
                        given,
                        follows,
                        error: Box::new(error),
                    };
                }
                _ => {}
            }
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimize::with_shapes;
    use crate::strategy::Strategy;
    use crate::strategy::tests::options;

    fn said(text: &str, given: &[(&str, u64)]) -> String {
        let graph = Graph::parse(text).unwrap();
        let mut options = options(Strategy::Auto, crate::optimize::BudgetRequest::Smallest);
        let given = given.iter().map(|&(name, size)| (name.to_owned(), size));
        options.bindings = given.collect();
        with_shapes(&graph, &options).unwrap_err().to_string()
    }

    const LABELS: &str = "g (float[n,8,10] x, int64[m] labels, float[k,3] z) => (float loss)
        { rows = Constant <value_ints = [-1, 10]> () scores = Reshape(x, rows)
          [loss] loss, p = SoftmaxCrossEntropyLoss(scores, labels) y = Neg(z) }";

    #[test]
    fn what_follows_is_not_asked_for() {
        insta::assert_snapshot!(said(LABELS, &[]), @"the size of 2 dimensions is not given: k, n, from which m follows");
        insta::assert_snapshot!(said(LABELS, &[("k", 3)]), @"the size of 1 dimension is not given: n, from which m follows");
        insta::assert_snapshot!(said(LABELS, &[("m", 16)]), @"the size of 1 dimension is not given: k");
    }

    #[test]
    fn what_is_missing_once_others_are_there_is_asked_for_as_well() {
        let text =
            "g (int64[2] s, int64 n, float[2] f) => (y) { [zeros] a = ConstantOfShape(s) b = Neg(a)
            [ones] y = OneHot(b, n, f) }";
        insta::assert_snapshot!(said(text, &[]), @r#"node "zeros" (ConstantOfShape): nothing says the shape of its output "a"; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), or a size for a:0, a:1, y:2"#);
    }

    #[test]
    fn a_size_that_does_not_fit_is_set_against_what_follows() {
        insta::assert_snapshot!(said(LABELS, &[("n", 4), ("m", 4), ("k", 1)]), @r#"node "loss" (SoftmaxCrossEntropyLoss): shapes [32, 10] and [4] do not fit: the labels are for another number of samples; dimension "m" is bound to 4, and 32 follows from the other sizes"#);
        // A size of one fits an addition, and not the gradients behind it.
        let one = "<opset_import: [\"\" : 17, \"com.microsoft\" : 1]>
            g (float[n,8] x, float[m,8] y) => (float[n,8] dy)
            { z = Add(x, y) s = Sigmoid(y) [grad] dy = com.microsoft.SigmoidGrad(z, s) }";
        insta::assert_snapshot!(said(one, &[("n", 4), ("m", 1)]), @r#"node "grad" (com.microsoft::SigmoidGrad): its gradient has shape [4, 8], and what it is of has [1, 8]: a step would read or write behind their memory; dimension "m" is bound to 1, and 4 follows from the other sizes"#);
        // What is wrong in the file is not blamed on sizes.
        let wrong =
            "g (float[n,8] x, float[9,4] w) => (float[n,4] y) { [product] y = MatMul(x, w) }";
        insta::assert_snapshot!(said(wrong, &[("n", 4)]), @r#"node "product" (MatMul): shapes [4, 8] and [9, 4] do not fit: the inner dimensions differ"#);
    }
}
