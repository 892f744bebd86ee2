//! The optimizer of `--optimizer`, and the memory that it holds while a step runs.

use std::path::{Path, PathBuf};

use ckpt_passes::bytes::Bytes;
use ckpt_passes::graph::{Graph, TensorKind};
use thiserror::Error;

use crate::onnx::{ImportError, Model};

/// Why it is not known what the optimizer holds.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum OptimizerError {
    #[error(
        "no optimizer is called {name:?}, and there is no such file; known are {}",
        known()
    )]
    Unknown { name: String },
    #[error(transparent)]
    Read(#[from] ImportError),
    #[error(
        "{}: not an optimizer's model: none of its nodes is {}; expected the optimizer_model.onnx that \
         onnxruntime.training.artifacts.generate_artifacts writes", path.display(), operators()
    )]
    None { path: PathBuf },
    #[error(
        "--optimizer: the graph has no gradient of a weight: no tensor called WEIGHT_grad that is accumulated or \
         an output; --reserve can say what the optimizer holds"
    )]
    NoWeights,
}

/// By name; by the operator of ONNX Runtime's optimizer graphs; and how many values of 32 bits it keeps for each value of a
/// weight, besides the weight and its gradient. Runtime fact: the sequences that the operator takes beside those.
const KNOWN: [(&str, &str, u64); 2] =
    [("adamw", "AdamWOptimizer", 2), ("sgd", "SGDOptimizerV2", 0)];

fn known() -> String {
    KNOWN.map(|(name, _, _)| name).join(", ")
}

fn operators() -> String {
    KNOWN.map(|(_, operator, _)| operator).join(" or ")
}

/// What an optimizer keeps from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimizer {
    /// Values of 32 bits for each value of a weight.
    states: u64,
}

impl Optimizer {
    /// The optimizer of that name, or of the optimizer model in that file.
    pub fn find(name: &str) -> Result<Optimizer, OptimizerError> {
        let known = KNOWN.iter().find(|known| known.0 == name);
        if let Some(&(_, _, states)) = known {
            return Ok(Optimizer { states });
        }
        let path = Path::new(name);
        if !path.exists() {
            return Err(OptimizerError::Unknown {
                name: name.to_owned(),
            });
        }
        Optimizer::of_model(&Model::open(path)?, path)
    }

    /// The optimizer whose model this is; errors name it as `path`.
    pub fn of_model(model: &Model, path: &Path) -> Result<Optimizer, OptimizerError> {
        let graph = model.sorted_graph()?;
        let operators = graph.order().iter().map(|&id| graph.node(id));
        let states = operators.filter_map(|node| {
            let known = KNOWN.iter().find(|known| node.is("com.microsoft", known.1));
            known.map(|&(_, _, states)| states)
        });
        let states = states.max().ok_or_else(|| OptimizerError::None {
            path: path.to_owned(),
        })?;
        Ok(Optimizer { states })
    }

    /// What it holds while a step of `graph` runs, which has the shapes of its weights.
    pub(crate) fn memory(self, graph: &Graph) -> Result<Bytes, OptimizerError> {
        let mut is_gradient = vec![false; graph.tensor_count()];
        for output in &graph.outputs {
            is_gradient[output.index()] = true;
        }
        let nodes = graph.order().iter().map(|&id| graph.node(id));
        for node in nodes.filter(|node| node.op_type.starts_with("InPlaceAccumulator")) {
            if let Some(gradient) = node.input(1) {
                is_gradient[gradient.index()] = true;
            }
        }
        let is_trained = |name: &str| {
            let gradient = graph.tensor_named(&format!("{name}_grad"));
            gradient.is_some_and(|id| is_gradient[id.index()])
        };
        let tensors = graph.tensor_ids().map(|id| graph.tensor(id));
        let weights = tensors.filter(|one| one.kind != TensorKind::Value && is_trained(&one.name));
        let values = weights.map(|weight| weight.element_count().unwrap_or(0));
        let values = values.fold((0u64, false), |(sum, _), some| {
            (sum.saturating_add(some), true)
        });
        match values {
            (_, false) => Err(OptimizerError::NoWeights),
            (values, true) => Ok(Bytes(values.saturating_mul(4).saturating_mul(self.states))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: &str =
        "g (float[4] x, float[10] w, float16[6] v) => (float[10] w_grad, float16[6] v_grad) {
        w_grad, v_grad = Foo(x, w, v)
    }";

    #[test]
    fn adamw_keeps_two_values_for_each_of_a_weight_and_sgd_none() {
        let graph = Graph::parse(WEIGHTS).unwrap();
        let memory = |name: &str| Optimizer::find(name).unwrap().memory(&graph).unwrap();
        assert_eq!(memory("adamw"), Bytes(2 * 4 * 16));
        assert_eq!(memory("sgd"), Bytes::ZERO);
    }

    #[test]
    fn who_trains_nothing_is_told_so() {
        let graph = Graph::parse("g (float[4] x) => (float[4] y) { y = Exp(x) }").unwrap();
        let error = Optimizer::find("adamw")
            .unwrap()
            .memory(&graph)
            .unwrap_err();
        assert!(error.to_string().contains("WEIGHT_grad"), "{error}");
        let error = Optimizer::find("adagrad").unwrap_err().to_string();
        assert!(
            error.contains("adagrad") && error.contains("adamw, sgd"),
            "{error}"
        );
    }
}
