//! The optimizer of `--optimizer`: how it updates weights, and the memory that it holds while a step runs.

use std::path::{Path, PathBuf};

use ckpt_passes::bytes::Bytes;
use ckpt_passes::graph::{Graph, Node, TensorKind};
use ckpt_passes::lower::{AdamW, Update};
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
         an output (a graph that updates its weights itself has the optimizer's states among its inputs, which count); \
         --reserve can say what the optimizer holds"
    )]
    NoWeights,
    #[error(
        "--optimizer: it clips gradients by the norm of all of them (InplaceClipGradNorm), so none can be used before all are \
         there; an update in the graph needs an optimizer without that"
    )]
    Clips,
}

const MICROSOFT: &str = "com.microsoft";

/// By name, and by the operator of ONNX Runtime's optimizer graphs.
const KNOWN: [(&str, &str); 2] = [("adamw", "AdamWOptimizer"), ("sgd", "SGDOptimizerV2")];

fn known() -> String {
    KNOWN.map(|(name, _)| name).join(", ")
}

fn operators() -> String {
    KNOWN.map(|(_, operator)| operator).join(" or ")
}

/// How an optimizer updates weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    update: Update,
    /// Does it need all gradients at once, for their norm?
    clips: bool,
}

impl Optimizer {
    /// The optimizer of that name, or of the optimizer model in that file.
    pub fn find(name: &str) -> Result<Optimizer, OptimizerError> {
        let update = match name {
            "adamw" => Some(Update::AdamW(AdamW::default())),
            "sgd" => Some(Update::Sgd),
            _ => None,
        };
        if let Some(update) = update {
            return Ok(Optimizer {
                update,
                clips: false,
            });
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
        let nodes = || graph.order().iter().map(|&id| graph.node(id));
        let update = nodes().find_map(|node| {
            match KNOWN.map(|(_, operator)| node.is(MICROSOFT, operator)) {
                [true, _] => Some(Update::AdamW(adamw(node))),
                [_, true] => Some(Update::Sgd),
                _ => None,
            }
        });
        let update = update.ok_or_else(|| OptimizerError::None {
            path: path.to_owned(),
        })?;
        let clips = nodes().any(|node| node.is(MICROSOFT, "InplaceClipGradNorm"));
        Ok(Optimizer { update, clips })
    }

    /// How it updates each weight by its gradient alone; nothing where it looks at all gradients.
    pub fn update(self) -> Result<Update, OptimizerError> {
        match self.clips {
            false => Ok(self.update),
            true => Err(OptimizerError::Clips),
        }
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
            // A lowered graph adds to it, and puts the sum out.
            let buffer = graph.tensor_named(&format!("{name}_grad.accumulation.buffer"));
            if buffer.is_some_and(|id| graph.inputs.contains(&id)) {
                return true;
            }
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
            (values, true) => Ok(Bytes(
                values
                    .saturating_mul(4)
                    .saturating_mul(self.update.states()),
            )),
        }
    }
}

/// What the node is told, or else what its operator takes for granted.
fn adamw(node: &Node) -> AdamW {
    let float = |name, otherwise| node.float(name).unwrap_or(otherwise);
    AdamW {
        alpha: float("alpha", 0.9),
        beta: float("beta", 0.999),
        epsilon: float("epsilon", 1e-8),
        weight_decay: float("weight_decay", 1e-2),
        corrects_bias: node.int("correct_bias").unwrap_or(1) == 1,
        decays_last: node.int("adam_mode").unwrap_or(0) == 1,
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
    fn a_lowered_graph_trains_what_it_has_buffers_for() {
        let text = "g (float[4] w, float[4] w_grad.accumulation.buffer) => (float[4] sum) {
            w_grad = Exp(w) sum = Add(w_grad, w_grad.accumulation.buffer)
        }";
        let text = text.replace(
            "w_grad.accumulation.buffer",
            "\"w_grad.accumulation.buffer\"",
        );
        let graph = Graph::parse(&text).unwrap();
        let adamw = Optimizer::find("adamw").unwrap();
        assert_eq!(adamw.memory(&graph).unwrap(), Bytes(2 * 4 * 4));
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
