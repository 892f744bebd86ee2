//! Follows the nodes of subgraphs: what If, Loop and Scan make of what they are given, and what they hold meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{InferShapesError, Inference, describe};
use crate::bytes::Bytes;
use crate::graph::{
    Body, Constant, ElementType, Graph, Held, Node, NodeId, TensorId, TensorKind, Uses, count,
    topological,
};
use crate::operators::{Known, Open, Provider, resolve_axis};
use crate::runtime::bodies::{self, Iterations, Need};

/// What following a node's subgraphs has shown.
pub(super) struct Followed {
    /// Of its outputs, by position.
    pub(super) outputs: Vec<Option<Known>>,
    /// The same of those of which it has shown only how many dimensions there are, and some of the sizes.
    pub(super) open: Vec<Option<Open>>,
    /// Why outputs are missing, if it is for want of something inside.
    pub(super) missing: Option<InferShapesError>,
    run: Run,
}

/// What is run, to be counted once the sizes of the node's outputs are known.
enum Run {
    /// One of those followed, by attribute.
    Branches {
        followed: Vec<(&'static str, Graph)>,
        untaken: Option<(&'static str, Graph)>,
    },
    Loop {
        body: Graph,
        carried: usize,
        /// How many iterations there are at most, where that is known.
        trips: Option<u64>,
    },
    Scan {
        body: Graph,
        carried: usize,
        trips: u64,
        transposed: Bytes,
    },
    /// Nothing of which the need is known, and why.
    Uncounted(String),
}

impl Inference {
    /// Of a node with subgraphs of which everything that it reads is known.
    pub(super) fn through_bodies(
        &self,
        graph: &Graph,
        node: &Node,
    ) -> Result<Followed, InferShapesError> {
        let known = match (node.domain.as_str(), node.op_type.as_str()) {
            ("", "If") => self.branches(graph, node)?,
            ("", "Loop") => self.iterations(graph, node)?,
            ("", "Scan") => self.scanned(graph, node)?,
            _ => None,
        };
        Ok(known.unwrap_or_else(|| {
            let why = "nothing is known of how it runs its subgraphs";
            Followed::unknown(why.to_owned(), None)
        }))
    }

    fn branches(&self, graph: &Graph, node: &Node) -> Result<Option<Followed>, InferShapesError> {
        let taken = node
            .input(0)
            .and_then(|id| match graph.tensor(id).constant {
                _ if self.uses.producer(id).is_none() && graph.inputs.contains(&id) => None,
                Some(Constant::Ints(ref flag)) => flag.first().map(|&flag| flag != 0),
                _ => None,
            });
        let (mut followed, mut untaken) = (Vec::new(), None);
        let mut faults = Vec::new();
        let mut missing = None;
        for (name, flag) in [("then_branch", true), ("else_branch", false)] {
            let Some(branch) = body(node, name) else {
                return Ok(None);
            };
            if taken.is_some_and(|taken| taken != flag) {
                // It takes nothing, but the runtime knows no more of the results than both say.
                let bounded = self.inside_is_bounded.get();
                if let Ok((branch, None)) = self.follow(graph, node, branch, &[]) {
                    untaken = Some((name, branch));
                }
                self.inside_is_bounded.set(bounded);
                continue;
            }
            // A branch whose sizes do not fit is one that is not taken with these.
            match self.follow(graph, node, branch, &[]) {
                Ok((branch, None)) => followed.push((name, branch)),
                Ok((branch, why)) => {
                    followed.push((name, branch));
                    missing = missing.or(why);
                }
                Err(fault) => faults.push(fault),
            }
        }
        if followed.is_empty() {
            return match faults.into_iter().next() {
                Some(fault) => Err(fault),
                None => Ok(None),
            };
        }
        let outputs = (0..node.outputs.len()).map(|at| {
            let known = followed.iter().map(|(_, branch)| output(branch, at));
            larger(known.collect::<Option<Vec<Known>>>()?)
        });
        let outputs = outputs.collect();
        Ok(Some(match missing {
            None => Followed {
                outputs,
                open: Vec::new(),
                missing: None,
                run: Run::Branches { followed, untaken },
            },
            Some(why) => Followed {
                outputs,
                ..Followed::unknown(why.to_string(), Some(why))
            },
        }))
    }

    fn iterations(&self, graph: &Graph, node: &Node) -> Result<Option<Followed>, InferShapesError> {
        let (Some(body), Some(carried)) = (body(node, "body"), node.inputs.len().checked_sub(2))
        else {
            return Ok(None);
        };
        let inner = &body.graph;
        if inner.inputs.len() != carried + 2 || inner.outputs.len() < carried + 1 {
            return Ok(None);
        }
        let first = (0..carried).map(|at| value(graph, node.input(at + 2)));
        let Some(first) = first.collect::<Option<Vec<Known>>>() else {
            return Ok(None);
        };
        let number = |at: usize, element| {
            let declared = inner.tensor(inner.inputs[at]).declared.as_ref();
            Some(Known {
                element,
                shape: vec![1; declared.map_or(0, Vec::len)],
                constant: None,
            })
        };
        let run = |values: &[Known]| {
            let mut given = vec![number(0, ElementType::Int64), number(1, ElementType::Bool)];
            given.extend(values.iter().cloned().map(Some));
            let (run, missing) = self.follow(graph, node, body, &given)?;
            let next: Vec<Option<Known>> = (0..carried).map(|at| output(&run, at + 1)).collect();
            Ok::<_, InferShapesError>((run, next, missing))
        };
        let same = |before: &[Known], after: &[Option<Known>]| {
            let mut pairs = before.iter().zip(after);
            pairs.all(|(before, after)| {
                let after = after.as_ref();
                after.is_some_and(|after| after.shape == before.shape)
            })
        };
        let (mut last, next, missing) = run(&first)?;
        if let Some(why) = missing {
            return Ok(Some(Followed::unknown(why.to_string(), Some(why))));
        }
        let mut carried_on = first.clone();
        if !same(&first, &next) {
            // The first iteration may make of them what the others keep.
            let Some(second) = next.iter().cloned().collect::<Option<Vec<Known>>>() else {
                return Ok(None);
            };
            let (run, after, _) = run(&second)?;
            if !same(&second, &after) {
                let why = "the sizes of what it carries on change from one iteration to the next";
                return Ok(Some(Followed::unknown(why.to_owned(), None)));
            }
            let pairs = first.into_iter().zip(second);
            let larger = pairs.map(|(first, second)| larger(vec![first, second]));
            let Some(both) = larger.collect::<Option<Vec<Known>>>() else {
                return Ok(None);
            };
            (last, carried_on) = (run, both);
        }
        let trips = node.input(0).and_then(|id| self.number(graph, id));
        let mut outputs: Vec<Option<Known>> = carried_on.into_iter().map(Some).collect();
        let mut open = vec![None; carried];
        for at in carried + 1..inner.outputs.len() {
            let part = output(&last, at);
            let sizes = part.iter().flat_map(|part| &part.shape).copied().map(Some);
            open.push(part.as_ref().map(|part| Open {
                element: part.element,
                sizes: [None].into_iter().chain(sizes).collect(),
            }));
            let whole = trips.zip(part).map(|(trips, mut part)| {
                part.shape.insert(0, trips);
                part
            });
            outputs.push(whole);
        }
        for output in outputs.iter_mut().flatten() {
            output.constant = None;
        }
        Ok(Some(Followed {
            outputs,
            open,
            missing: None,
            run: Run::Loop {
                body: last,
                carried,
                trips,
            },
        }))
    }

    fn scanned(&self, graph: &Graph, node: &Node) -> Result<Option<Followed>, InferShapesError> {
        let Some(body) = body(node, "body") else {
            return Ok(None);
        };
        let scanned = node.int("num_scan_inputs").unwrap_or(0);
        let scanned = usize::try_from(scanned).ok();
        let carried = scanned.and_then(|scanned| node.inputs.len().checked_sub(scanned));
        let inner = &body.graph;
        // Before, it had a batch besides.
        let is_new = graph.opset().is_none_or(|version| version >= 9);
        let (Some(carried), true) = (carried, is_new) else {
            return Ok(None);
        };
        if inner.inputs.len() != node.inputs.len() || inner.outputs.len() < carried {
            return Ok(None);
        }
        let axis = |name: &str, at: usize, rank: usize| {
            let axis = node.ints(name).and_then(|axes| axes.get(at)).copied();
            resolve_axis(axis.unwrap_or(0), rank)
        };
        let mut transposed = Bytes::ZERO;
        let mut trips = None;
        let mut given = Vec::new();
        for at in 0..node.inputs.len() {
            let Some(mut known) = value(graph, node.input(at)) else {
                return Ok(None);
            };
            known.constant = None;
            if let Some(at) = at.checked_sub(carried) {
                let Some(axis) = axis("scan_input_axes", at, known.shape.len()) else {
                    return Ok(None);
                };
                if axis != 0 {
                    transposed += bytes(&known);
                }
                trips = Some(known.shape.remove(axis));
            }
            given.push(Some(known));
        }
        let Some(trips) = trips else {
            return Ok(None);
        };
        let (run, missing) = self.follow(graph, node, body, &given)?;
        if let Some(why) = missing {
            return Ok(Some(Followed::unknown(why.to_string(), Some(why))));
        }
        let mut outputs = Vec::new();
        let results = inner.outputs.iter().enumerate();
        for at in results.map(|(at, _)| at) {
            let Some(mut known) = output(&run, at) else {
                return Ok(None);
            };
            known.constant = None;
            match at.checked_sub(carried) {
                // The runtime refuses one that changes its size.
                None => {
                    if given[at]
                        .as_ref()
                        .is_none_or(|was| was.shape != known.shape)
                    {
                        return Ok(None);
                    }
                }
                Some(at) => {
                    let Some(axis) = axis("scan_output_axes", at, known.shape.len() + 1) else {
                        return Ok(None);
                    };
                    known.shape.insert(axis, trips);
                    if axis != 0 {
                        transposed += bytes(&known);
                    }
                }
            }
            outputs.push(Some(known));
        }
        Ok(Some(Followed {
            outputs,
            open: Vec::new(),
            missing: None,
            run: Run::Scan {
                body: run,
                carried,
                trips,
                transposed,
            },
        }))
    }

    /// The number that a tensor holds, where it is the same in every step.
    fn number(&self, graph: &Graph, id: TensorId) -> Option<u64> {
        let is_given = self.uses.producer(id).is_none() && graph.inputs.contains(&id);
        let number = graph.tensor(id).ints().filter(|_| !is_given)?.first();
        u64::try_from(*number?).ok()
    }

    /// A body of `node` with the shapes of all its tensors, from what its inputs are `given`, and what is missing of them.
    fn follow(
        &self,
        outer: &Graph,
        node: &Node,
        body: &Body,
        given: &[Option<Known>],
    ) -> Result<(Graph, Option<InferShapesError>), InferShapesError> {
        let inside = |error| InferShapesError::Inside {
            node: describe(node),
            body: body.attribute.clone(),
            error: Box::new(error),
        };
        let mut graph = Graph::clone(&body.graph);
        let mut at_most = BTreeSet::new();
        for id in body.graph.outer() {
            let around = outer.tensor_named(&graph.tensor(id).name);
            if around.is_some_and(|id| self.at_most.contains(&id)) {
                at_most.insert(id);
            }
            if let Some(around) = around.map(|id| outer.tensor(id)) {
                let tensor = graph.tensor_mut(id);
                tensor.element = around.element;
                tensor.shape.clone_from(&around.shape);
                tensor.constant.clone_from(&around.constant);
                tensor.other = around.other;
            }
        }
        let is_bounded = node.reads().any(|id| self.at_most.contains(&id));
        for (id, known) in graph.inputs.clone().into_iter().zip(given) {
            if is_bounded {
                at_most.insert(id);
            }
            if let Some(known) = known {
                let tensor = graph.tensor_mut(id);
                tensor.element = Some(known.element);
                tensor.shape = Some(known.shape.clone());
                tensor.constant.clone_from(&known.constant);
            }
        }
        let uses = Uses::of(&graph);
        let order = topological(&graph, &uses)
            .map_err(|cycle| inside(super::cycle(&graph, &uses, &cycle)))?;
        let mut inference = Inference {
            at_most,
            ..Inference::new(self.sizes.clone(), self.patterns.clone(), uses)
        };
        for &id in &order {
            inference.visit(&mut graph, id).map_err(inside)?;
        }
        graph.set_order(order);
        if !inference.at_most.is_empty() {
            self.inside_is_bounded.set(true);
        }
        let missing = super::all_missing(inference.missing).map(inside);
        Ok((graph, missing))
    }
}

impl Followed {
    fn unknown(why: String, missing: Option<InferShapesError>) -> Followed {
        Followed {
            outputs: Vec::new(),
            open: Vec::new(),
            missing,
            run: Run::Uncounted(why),
        }
    }

    /// What the subgraphs of `node` need; its outputs have their sizes.
    pub(super) fn held(&self, graph: &Graph, node: &Node) -> Held {
        let owned = node.bodies.iter().map(|body| owned(&body.graph)).sum();
        let on = |provider| self.needs(graph, node, provider);
        match (on(Provider::Cpu), on(Provider::Cuda)) {
            (Ok((early, cpu)), Ok((other, cuda))) => Held {
                cpu,
                cuda,
                early: early.max(other),
                owned,
                uncounted: None,
            },
            (Err(why), _) | (_, Err(why)) => Held {
                owned,
                uncounted: Some(why),
                ..Held::default()
            },
        }
    }

    /// Before the results, and besides them.
    fn needs(
        &self,
        graph: &Graph,
        node: &Node,
        provider: Provider,
    ) -> Result<(Bytes, Bytes), String> {
        let inside = |body: &Graph| {
            let mut nodes = body.node_ids().map(|id| body.node(id));
            let uncounted = nodes.find_map(|node| Some((node, node.held.uncounted.as_ref()?)));
            match uncounted {
                Some((node, why)) => Err(format!("{}: {why}", describe(node))),
                None => Ok(bodies::need(body, provider)),
            }
        };
        let results: Bytes = node
            .writes()
            .filter_map(|id| graph.tensor(id).memory())
            .sum();
        match &self.run {
            Run::Uncounted(why) => Err(why.clone()),
            Run::Branches { followed, .. } => {
                let needs: Result<Vec<Need>, String> =
                    followed.iter().map(|(_, branch)| inside(branch)).collect();
                Ok((Bytes::ZERO, bodies::of_if(&needs?)))
            }
            Run::Loop {
                body,
                carried,
                trips,
            } => {
                let need = inside(body)?;
                let parts = body.outputs.iter().skip(1);
                let memory = |ids: &mut dyn Iterator<Item = &TensorId>| -> Bytes {
                    ids.filter_map(|&id| body.tensor(id).memory()).sum()
                };
                let added = memory(&mut parts.clone().skip(*carried));
                let by_result = || {
                    let first = node.outputs.iter().skip(*carried).flatten().next();
                    graph.tensor(*first?).shape.as_ref()?.first().copied()
                };
                let trips = match trips.or_else(by_result) {
                    Some(trips) => trips,
                    None if added == Bytes::ZERO => u64::MAX,
                    None => return Err("how often it iterates is not known".to_owned()),
                };
                let given = Iterations {
                    trips,
                    carried: memory(&mut parts.take(*carried)),
                    added,
                    results,
                };
                Ok(bodies::of_loop(need, given))
            }
            Run::Scan {
                body,
                carried,
                trips,
                transposed,
            } => {
                let need = inside(body)?;
                let carried = body.outputs.iter().take(*carried);
                let given = Iterations {
                    trips: *trips,
                    carried: carried.filter_map(|&id| body.tensor(id).memory()).sum(),
                    ..Iterations::default()
                };
                Ok((Bytes::ZERO, bodies::of_scan(need, given, *transposed)))
            }
        }
    }
}

/// What the session owns of a subgraph and those within it.
fn owned(body: &Graph) -> Bytes {
    let tensors = body.tensor_ids().map(|id| body.tensor(id));
    let initializers = tensors.filter(|tensor| tensor.kind == TensorKind::Initializer);
    let here: Bytes = initializers.filter_map(|tensor| tensor.bytes()).sum();
    let within = body.node_ids().flat_map(|id| &body.node(id).bodies);
    here + within.map(|body| owned(&body.graph)).sum::<Bytes>()
}

fn body<'n>(node: &'n Node, attribute: &str) -> Option<&'n Body> {
    node.bodies.iter().find(|body| body.attribute == attribute)
}

/// What is known of a tensor of the graph around.
fn value(graph: &Graph, id: Option<TensorId>) -> Option<Known> {
    let tensor = graph.tensor(id?);
    Some(Known {
        element: tensor.element?,
        shape: tensor.shape.clone()?,
        constant: None,
    })
}

/// What is known of a result of a body.
fn output(body: &Graph, at: usize) -> Option<Known> {
    let id = *body.outputs.get(at)?;
    let tensor = body.tensor(id);
    Some(Known {
        constant: tensor.constant.clone(),
        ..value(body, Some(id))?
    })
}

fn bytes(known: &Known) -> Bytes {
    known.element.bytes(count(&known.shape))
}

/// What has room for each of these, axis by axis.
fn larger(all: Vec<Known>) -> Option<Known> {
    let is_alone = all.len() == 1;
    all.into_iter()
        .map(Some)
        .reduce(|a, b| {
            let (a, b) = (a?, b?);
            if a.element != b.element || a.shape.len() != b.shape.len() {
                return None;
            }
            let sizes = a.shape.iter().zip(&b.shape);
            Some(Known {
                element: a.element,
                shape: sizes.map(|(&a, &b)| a.max(b)).collect(),
                constant: None,
            })
        })?
        .map(|known| Known {
            constant: known.constant.filter(|_| is_alone),
            ..known
        })
}

/// Nodes with subgraphs of which not everything is counted, and why, but for those that are `said`.
pub fn uncounted(graph: &Graph, is_said: impl Fn(&Node) -> bool) -> Vec<(String, String)> {
    let nodes = graph.nodes();
    nodes
        .filter(|node| !is_said(node))
        .filter_map(|node| Some((describe(node), node.held.uncounted.clone()?)))
        .collect()
}

/// Takes over what following has shown of the node `id`; says whether that was not there before.
pub(super) fn record(graph: &mut Graph, id: NodeId, followed: Followed) -> bool {
    let node = graph.node(id);
    let held = followed.held(graph, node);
    let mut bodies = node.bodies.clone();
    for body in &mut bodies {
        body.shaped = None;
    }
    for (attribute, shaped) in followed.run.shaped() {
        if let Some(body) = bodies.iter_mut().find(|body| body.attribute == attribute) {
            body.shaped = Some(Arc::new(shaped));
        }
    }
    if (&node.held, &node.bodies) == (&held, &bodies) {
        return false;
    }
    let node = graph.node_mut(id);
    (node.held, node.bodies) = (held, bodies);
    true
}

impl Run {
    /// The graphs with shapes, by attribute.
    fn shaped(self) -> Vec<(&'static str, Graph)> {
        match self {
            Run::Branches { followed, untaken } => followed.into_iter().chain(untaken).collect(),
            Run::Loop { body, .. } | Run::Scan { body, .. } => vec![("body", body)],
            Run::Uncounted(_) => Vec::new(),
        }
    }
}
