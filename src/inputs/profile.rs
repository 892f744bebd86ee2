//! The profile of `--profile`, as ONNX Runtime writes it (`SessionOptions.enable_profiling`).
//!
//! A list of events; those of category `Node` that are named `<node name>_kernel_time` have the
//! kernel's time `dur` in microseconds, once for every step that was profiled, in the order in which
//! the nodes ran, and in `output_type_shape` the types and shapes of the results that the node wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use ckpt_passes::analysis::cost::{NodeOverride, Overrides, measured_as};
use ckpt_passes::cost::Cost;
use ckpt_passes::graph::{Dimension, ElementType, Graph, Node, NodeId, TensorId};
use ckpt_passes::operators::Provider;
use ckpt_passes::runtime::liveness::Liveness;
use ckpt_passes::runtime::order::ExecutionOrder;
use serde::Deserialize;
use thiserror::Error;

use super::file;

/// Why a profile cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ProfileError {
    #[error("{}: cannot read the profile: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error(
        "{}: not a profile: {error}; expected what ONNX Runtime writes with \
         SessionOptions.enable_profiling", path.display()
    )]
    Form {
        path: PathBuf,
        error: serde_json::Error,
    },
    #[error("{}: the profile has no kernel times", path.display())]
    Empty { path: PathBuf },
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    cat: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Arguments,
}

#[derive(Default, Deserialize)]
struct Arguments {
    /// One entry each, type to shape.
    #[serde(default)]
    output_type_shape: Vec<BTreeMap<String, Vec<u64>>>,
}

/// A type and a shape.
type Typed = (ElementType, Vec<u64>);

/// What a profile tells.
#[derive(Debug, Default)]
pub struct Profile {
    /// The least time of each node over the steps; the first step, in which memory is touched for the
    /// first time, only if there is no other.
    pub times: Overrides,
    /// The nodes of the first step, as they ran.
    executed: Vec<String>,
    /// By node.
    results: BTreeMap<String, Vec<Typed>>,
}

/// The profile at `path`.
pub fn read(path: &Path) -> Result<Profile, ProfileError> {
    let text = file::read(path).map_err(|error| ProfileError::Read {
        path: path.to_owned(),
        error,
    })?;
    parse(&text, path)
}

/// The same of a text that is in memory; errors name it as `path`.
pub fn parse(text: &[u8], path: &Path) -> Result<Profile, ProfileError> {
    let events: Vec<Event> = serde_json::from_slice(text).map_err(|error| ProfileError::Form {
        path: path.to_owned(),
        error,
    })?;
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut profile = Profile::default();
    for event in events.iter().filter(|event| event.cat == "Node") {
        if let Some(node) = event.name.strip_suffix("_kernel_time") {
            let times = times.entry(node.to_owned()).or_default();
            if times.is_empty() {
                profile.executed.push(node.to_owned());
                let shapes = event.args.output_type_shape.iter().flatten();
                let results = shapes.filter_map(|(element, shape)| {
                    Some((ElementType::from_name(element)?, shape.clone()))
                });
                profile.results.insert(node.to_owned(), results.collect());
            }
            times.push(event.dur.max(0.0));
        }
    }
    if times.is_empty() {
        return Err(ProfileError::Empty {
            path: path.to_owned(),
        });
    }
    let least = |times: Vec<f64>| {
        let warm = if times.len() > 1 {
            &times[1..]
        } else {
            &times[..]
        };
        warm.iter().copied().fold(f64::INFINITY, f64::min)
    };
    let entry = |(node, times)| {
        let time_us = Some(least(times));
        let entry = NodeOverride {
            time_us,
            ..NodeOverride::default()
        };
        (node, entry)
    };
    profile.times = times.into_iter().map(entry).collect();
    Ok(profile)
}

impl Profile {
    /// Gives the nodes' results the types and shapes that they had; operators with a rule of their own
    /// do not look at them. Nothing where a dimension had another size than `bindings` say.
    pub fn tell(&self, graph: &mut Graph, bindings: &BTreeMap<String, u64>) {
        if self.other_size(graph, bindings).is_some() {
            return;
        }
        for id in graph.order().to_vec() {
            for (tensor, (element, shape)) in self.results_of(graph.node(id)) {
                let tensor = graph.tensor_mut(tensor);
                tensor.element = tensor.element.or(Some(element));
                tensor.shape = tensor.shape.take().or(Some(shape));
            }
        }
    }

    /// What each of the node's results was, if all that it has were profiled.
    fn results_of(&self, node: &Node) -> Vec<(TensorId, Typed)> {
        let written: Vec<TensorId> = node.writes().collect();
        let results = self.results.get(measured_as(node));
        let results = results.filter(|results| results.len() == written.len());
        written
            .into_iter()
            .zip(results.into_iter().flatten().cloned())
            .collect()
    }

    /// What does not go together: the profile, the graph, and the sizes of its dimensions. A sentence each.
    pub fn doubts(&self, graph: &Graph, bindings: &BTreeMap<String, u64>) -> Vec<String> {
        let mut doubts = Vec::new();
        doubts.extend(self.other_size(graph, bindings));
        doubts.extend(self.other_order(graph));
        doubts
    }

    /// For which size of a dimension it was made that now has another; a sentence.
    pub(crate) fn other_size(
        &self,
        graph: &Graph,
        bindings: &BTreeMap<String, u64>,
    ) -> Option<String> {
        let nodes = graph.order().iter().map(|&id| graph.node(id));
        let results = nodes.flat_map(|node| self.results_of(node));
        results.into_iter().find_map(|(tensor, (_, shape))| {
            let tensor = graph.tensor(tensor);
            let mut dimensions = tensor.declared.iter().flatten().zip(&shape);
            dimensions.find_map(|(dimension, &size)| match dimension {
                Dimension::Symbol(name) => {
                    let bound = *bindings.get(name).filter(|bound| **bound != size)?;
                    Some(format!(
                        "the profile was made with {name}={size}, its times are not those of \
                         {name}={bound} (see {:?})",
                        tensor.name
                    ))
                }
                _ => None,
            })
        })
    }

    /// The first step at which the profile's order is none that is simulated.
    fn other_order(&self, graph: &Graph) -> Option<String> {
        let orders = [
            ExecutionOrder::Default,
            ExecutionOrder::PriorityBased,
            ExecutionOrder::MemoryEfficient,
        ];
        let orders = orders.map(|order| simulated(graph, order));
        if orders.contains(&self.executed) {
            return None;
        }
        let [default, ..] = orders;
        let steps = default.len().max(self.executed.len());
        let name = |run: &[String], step: usize| match run.get(step) {
            Some(name) => format!("{name:?}"),
            None => "nothing".to_owned(),
        };
        let differ = |&step: &usize| default.get(step) != self.executed.get(step);
        let step = (0..steps).find(differ)?;
        let known: BTreeSet<&String> = default.iter().collect();
        let cause = match self.executed.iter().find(|name| !known.contains(name)) {
            Some(_) => "profile this graph with optimizations off",
            None => {
                "the runtime orders nodes in a way that ckpt-opt does not know, and what it predicts may be wrong"
            }
        };
        Some(format!(
            "the profile ran the nodes in another order than DEFAULT: at step {step}, {} instead of {}; {cause}",
            name(&self.executed, step),
            name(&default, step),
        ))
    }
}

/// The names of the nodes as they run, as a profile has them. The runtime runs no Constant: it makes them
/// initializers; and its profile has no YieldOp.
fn simulated(graph: &Graph, order: ExecutionOrder) -> Vec<String> {
    let costs = vec![Cost::default(); graph.node_count()];
    let positions = graph.positions();
    let name = |id: NodeId| match graph.node(id) {
        node if node.is("", "Constant") || node.is("com.microsoft", "YieldOp") => None,
        node if node.name.is_empty() => Some(format!("{}_{}", node.op_type, positions[id.index()])),
        node => Some(node.name.clone()),
    };
    let run = Liveness::simulate(graph, order, Provider::Cpu, &costs).order;
    run.into_iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(text: &str) -> Result<Vec<(String, f64)>, String> {
        let read = parse(text.as_bytes(), Path::new("profile.json"));
        let pair = |(node, entry): (String, NodeOverride)| (node, entry.time_us.unwrap_or(-1.0));
        read.map(|profile| profile.times.into_iter().map(pair).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn takes_the_least_time_of_the_steps_after_the_first() {
        let text = r#"[{"cat": "Session", "name": "model_run", "dur": 99},
            {"cat": "Node", "name": "a_kernel_time", "dur": 3},
            {"cat": "Node", "name": "a_fence_before", "dur": 1},
            {"cat": "Node", "name": "b_kernel_time", "dur": 4},
            {"cat": "Node", "name": "a_kernel_time", "dur": 9},
            {"cat": "Node", "name": "a_kernel_time", "dur": 7}]"#;
        let expected = vec![("a".to_owned(), 7.0), ("b".to_owned(), 4.0)];
        assert_eq!(times(text), Ok(expected));
    }

    #[test]
    fn says_what_is_not_a_profile() {
        insta::assert_snapshot!(times("[]").unwrap_err(), @"profile.json: the profile has no kernel times");
        insta::assert_snapshot!(times("{").unwrap_err(), @"profile.json: not a profile: invalid type: map, expected a sequence at line 1 column 0; expected what ONNX Runtime writes with SessionOptions.enable_profiling");
    }

    /// A profile of one step: node, type and shape of its result.
    fn profile(nodes: &[(&str, &str, &str)]) -> Profile {
        let event = |(node, element, shape): &(&str, &str, &str)| {
            format!(
                r#"{{"cat": "Node", "name": "{node}_kernel_time", "dur": 1,
                    "args": {{"output_type_shape": [{{"{element}": {shape}}}]}}}}"#
            )
        };
        let events: Vec<String> = nodes.iter().map(event).collect();
        let text = format!("[{}]", events.join(","));
        parse(text.as_bytes(), Path::new("profile.json")).unwrap()
    }

    /// DEFAULT runs b, the producer with the highest index, before a.
    fn graph() -> Graph {
        let text = "g (float[2] x) => () <float[2] a, float[2] c> {
            [a] a = Exp(x) [b] b = acme.Frob(x) [c] c = Add(a, b)
        }";
        Graph::parse(text).unwrap()
    }

    #[test]
    fn tells_shapes_that_nothing_else_tells() {
        let mut graph = graph();
        let shapes = [
            ("a", "float", "[2]"),
            ("b", "int64", "[7,3]"),
            ("c", "float", "[2]"),
        ];
        profile(&shapes).tell(&mut graph, &BTreeMap::new());
        let b = graph.tensor(graph.tensor_named("b").unwrap());
        assert_eq!(
            (b.element, &b.shape),
            (Some(ElementType::Int64), &Some(vec![7, 3]))
        );
        assert_eq!(b.declared, None);
    }

    #[test]
    fn a_simulated_order_is_not_doubted() {
        let none = BTreeMap::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| (name, "float", "[2]"));
        for known in [[b, a, c], [a, b, c]] {
            assert_eq!(
                profile(&known).doubts(&graph(), &none),
                Vec::<String>::new()
            );
        }
        // The runtime names a node without a name by operator and index.
        let text = "g (float[2] x) => () <float[2] a, float[2] b> { a = Exp(x) b = Exp(a) }";
        let run = ["Exp_0", "Exp_1"].map(|name| (name, "float", "[2]"));
        let doubts = profile(&run).doubts(&Graph::parse(text).unwrap(), &none);
        assert_eq!(doubts, Vec::<String>::new());
    }

    #[test]
    fn the_first_difference_to_the_simulated_order_is_named() {
        let none = BTreeMap::new();
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| (name, "float", "[2]"));
        let doubts = |run: &[(&str, &str, &str)]| profile(run).doubts(&graph(), &none).join("\n");
        insta::assert_snapshot!(doubts(&[b, c, a]), @r#"the profile ran the nodes in another order than DEFAULT: at step 1, "c" instead of "a"; the runtime orders nodes in a way that ckpt-opt does not know, and what it predicts may be wrong"#);
        insta::assert_snapshot!(doubts(&[d]), @r#"the profile ran the nodes in another order than DEFAULT: at step 0, "d" instead of "b"; profile this graph with optimizations off"#);
    }

    #[test]
    fn a_profile_of_another_size_is_doubted() {
        let mut graph = graph();
        let a = graph.tensor_named("a").unwrap();
        let tensor = graph.tensor_mut(a);
        tensor.declared = Some(vec![Dimension::Symbol("batch".to_owned())]);
        tensor.shape = None;
        let run = ["b", "a", "c"].map(|name| (name, "float", "[2]"));
        let batch = |size| BTreeMap::from([("batch".to_owned(), size)]);
        let doubts = |size| profile(&run).doubts(&graph, &batch(size));
        let told = |size| {
            let mut graph = graph.clone();
            profile(&run).tell(&mut graph, &batch(size));
            graph.tensor(a).shape.clone()
        };
        assert_eq!((doubts(2), told(2)), (Vec::new(), Some(vec![2])));
        assert_eq!(told(8), None);
        insta::assert_snapshot!(doubts(8).join("\n"), @r#"the profile was made with batch=2, its times are not those of batch=8 (see "a")"#);
    }
}
