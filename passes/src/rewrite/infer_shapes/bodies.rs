//! Follows the nodes of subgraphs: what If, Loop and Scan make of what they are given, and what they hold meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{InferShapesError, Inference, describe, open};
use crate::bytes::Bytes;
use crate::graph::{
    Body, Constant, ElementType, Graph, Held, Node, NodeId, TensorId, TensorKind, Uses, count,
    topological,
};
use crate::operators::{Contents, Known, Open, Provider, resolve_axis};
use crate::runtime::bodies::{self, Iterations, Need};

/// What following a node's subgraphs has shown.
pub(super) struct Followed {
    /// Of its outputs, by position.
    pub(super) outputs: Vec<Option<Known>>,
    /// The same of those of which it has shown only how many dimensions there are, and some of the sizes.
    pub(super) open: Vec<Option<Open>>,
    /// Of those that are no tensors: what they hold, and what is in them.
    others: Vec<Option<Other>>,
    /// Why outputs are missing, if it is for want of something inside.
    pub(super) missing: Option<InferShapesError>,
    run: Run,
}

/// Something that is no tensor: how much it holds, and what is in it, as far as that is known.
type Other = (Bytes, Option<Contents>);

/// A subgraph with the shapes of all its tensors.
struct Shaped {
    graph: Graph,
    /// What is missing of them.
    missing: Option<InferShapesError>,
    /// Of outputs that are no tensors.
    others: Vec<Option<Other>>,
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
        let mut others: Vec<Vec<Option<Other>>> = Vec::new();
        let mut faults = Vec::new();
        let mut missing = None;
        for (name, flag) in [("then_branch", true), ("else_branch", false)] {
            let Some(branch) = body(node, name) else {
                return Ok(None);
            };
            if taken.is_some_and(|taken| taken != flag) {
                // It takes nothing, but the runtime knows no more of the results than both say.
                let bounded = self.inside_is_bounded.get();
                if let Ok(Shaped {
                    graph,
                    missing: None,
                    ..
                }) = self.follow(graph, node, branch, &[], &[])
                {
                    untaken = Some((name, graph));
                }
                self.inside_is_bounded.set(bounded);
                continue;
            }
            // A branch whose sizes do not fit is one that is not taken with these.
            match self.follow(graph, node, branch, &[], &[]) {
                Ok(shaped) => {
                    followed.push((name, shaped.graph));
                    others.push(shaped.others);
                    missing = missing.or(shaped.missing);
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
        let others = (0..node.outputs.len()).map(|at| {
            let each = others.iter_mut().map(|others| others.get_mut(at)?.take());
            each.flatten().reduce(|(held, a), (more, b)| {
                let both = a.zip(b).and_then(|(a, b)| a.either(b));
                (held.max(more), both)
            })
        });
        let others = others.collect();
        Ok(Some(match missing {
            None => Followed {
                outputs,
                others,
                open: Vec::new(),
                missing: None,
                run: Run::Branches { followed, untaken },
            },
            Some(why) => Followed {
                outputs,
                others,
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
        let carried_in = || (0..carried).map(|at| node.input(at + 2));
        let first: Vec<Option<Known>> = carried_in().map(|id| value(graph, id)).collect();
        let mut others: Vec<Option<Other>> =
            carried_in().map(|id| self.other(graph, id?)).collect();
        let is_there =
            |(known, other): (&Option<Known>, &Option<Other>)| known.is_some() || other.is_some();
        if !first.iter().zip(&others).all(is_there) {
            return Ok(None);
        }
        let number = |at: usize, element| {
            let declared = inner.tensor(inner.inputs[at]).declared.as_ref();
            Some(Known {
                element,
                shape: vec![1; declared.map_or(0, Vec::len)],
                constant: None,
            })
        };
        let run = |values: &[Option<Known>], others: &[Option<Other>]| {
            let mut given = vec![number(0, ElementType::Int64), number(1, ElementType::Bool)];
            given.extend(values.iter().cloned());
            let mut put = vec![None, None];
            put.extend(others.iter().cloned());
            let run = self.follow(graph, node, body, &given, &put)?;
            let next: Vec<Option<Known>> =
                (0..carried).map(|at| output(&run.graph, at + 1)).collect();
            Ok::<_, InferShapesError>((run, next))
        };
        let same = |before: &[Option<Known>], after: &[Option<Known>]| {
            let shape = |of: &Option<Known>| of.as_ref().map(|of| of.shape.clone());
            let mut pairs = before.iter().zip(after);
            pairs.all(|(before, after)| shape(before) == shape(after))
        };
        let trips = node.input(0).and_then(|id| self.number(graph, id));
        // What a sequence holds grows by as much in each iteration.
        if others.iter().any(Option::is_some) {
            let Some(grown) =
                self.grown(&mut others, trips, |others| Ok(run(&first, others)?.0))?
            else {
                let why = "how much the sequences that it carries on grow is not known";
                return Ok(Some(Followed {
                    others,
                    ..Followed::unknown(why.to_owned(), None)
                }));
            };
            others = grown;
        }
        let (shaped, next) = run(&first, &others)?;
        if let Some(why) = shaped.missing {
            return Ok(Some(Followed {
                others,
                ..Followed::unknown(why.to_string(), Some(why))
            }));
        }
        let (mut last, mut carried_on) = (shaped.graph, first.clone());
        if !same(&first, &next) {
            // The first iteration may make of them what the others keep.
            let (second, after) = run(&next, &others)?;
            let settles = same(&next, &after);
            let mut whole = match larger_of_each([first, next, after]) {
                Some(whole) => whole,
                None => return Ok(None),
            };
            if settles {
                (last, carried_on) = (
                    second.graph,
                    whole.into_iter().map(|(known, _)| known).collect(),
                );
            } else {
                // What grows is as large at most as the user says.
                let unsettled = |open| {
                    let why =
                        "the sizes of what it carries on change from one iteration to the next";
                    Followed {
                        open,
                        others: others.clone(),
                        ..Followed::unknown(why.to_owned(), None)
                    }
                };
                let mut is_open = false;
                for (at, (known, sizes)) in whole.iter_mut().enumerate() {
                    let written = node.output(at).map(|id| graph.tensor(id));
                    let shape = known.iter_mut().flat_map(|known| &mut known.shape);
                    for (axis, (size, settled)) in shape.zip(sizes.iter()).enumerate() {
                        let said = || self.named(&open(written?, axis));
                        match settled.or_else(said) {
                            Some(said) => *size = said,
                            None => is_open = true,
                        }
                    }
                }
                let open = whole.iter().map(|(known, sizes)| {
                    Some(Open {
                        element: known.as_ref()?.element,
                        sizes: sizes.clone(),
                    })
                });
                let open: Vec<Option<Open>> = open.collect();
                if is_open {
                    return Ok(Some(unsettled(open)));
                }
                self.inside_is_bounded.set(true);
                let bounded: Vec<Option<Known>> =
                    whole.into_iter().map(|(known, _)| known).collect();
                let (run, next) = run(&bounded, &others)?;
                let keeps = open
                    .iter()
                    .zip(&next)
                    .all(|(open, next)| match (open, next) {
                        (Some(open), Some(next)) => {
                            let mut sizes = open.sizes.iter().zip(&next.shape);
                            open.sizes.len() == next.shape.len()
                                && sizes.all(|(settled, size)| settled.is_none_or(|s| s == *size))
                        }
                        (None, None) => true,
                        _ => false,
                    });
                if !keeps {
                    return Ok(Some(unsettled(Vec::new())));
                }
                (last, carried_on) = (run.graph, bounded);
            }
        }
        let mut outputs = carried_on;
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
            others,
            missing: None,
            run: Run::Loop {
                body: last,
                carried,
                trips,
            },
        }))
    }

    /// Something that is no tensor.
    fn other(&self, graph: &Graph, id: TensorId) -> Option<Other> {
        Some((graph.tensor(id).other?, self.contents.get(&id).cloned()))
    }

    /// What `others` are after so many iterations, each of which adds as much; `None` where that is not so, and `others` are what is
    /// certain of them nevertheless.
    fn grown(
        &self,
        others: &mut [Option<Other>],
        trips: Option<u64>,
        run: impl Fn(&[Option<Other>]) -> Result<Shaped, InferShapesError>,
    ) -> Result<Option<Vec<Option<Other>>>, InferShapesError> {
        let next = |now: &[Option<Other>]| {
            let mut after = run(now)?.others;
            after.drain(..1.min(after.len()));
            after.truncate(now.len());
            Ok::<_, InferShapesError>(after)
        };
        let one = next(others)?;
        let two = next(&one)?;
        let mut all = Vec::new();
        let mut is_certain = true;
        for (place, other) in others.iter_mut().enumerate() {
            let Some((held, inside)) = other else {
                all.push(None);
                continue;
            };
            let at = |list: &[Option<Other>]| list.get(place).cloned().flatten();
            let (Some((once, first)), Some((twice, second))) = (at(&one), at(&two)) else {
                return Ok(None);
            };
            // What is in it after an iteration is what is in it after all of them.
            let settled = first.clone().zip(second).filter(|(a, b)| a.has_room_for(b));
            let inside_after = inside.clone().zip(settled.map(|(a, _)| a));
            let either = inside_after.and_then(|(before, after)| before.either(after));
            let grows = once - *held;
            match trips {
                Some(trips) if twice - once == grows => {
                    let grown = Bytes(grows.0.saturating_mul(trips));
                    let whole = either.map(|either| match grows {
                        Bytes::ZERO => either,
                        _ => either.uncounted(),
                    });
                    all.push(Some((*held + grown, whole)));
                }
                _ if grows == Bytes::ZERO && twice == once => all.push(Some((*held, either))),
                _ => {
                    (*held, *inside) = (twice, either.map(Contents::uncounted));
                    is_certain = false;
                }
            }
        }
        Ok(is_certain.then_some(all))
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
        let shaped = self.follow(graph, node, body, &given, &[])?;
        let run = shaped.graph;
        if let Some(why) = shaped.missing {
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
            others: Vec::new(),
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

    /// A body of `node` with the shapes of all its tensors, from what its inputs are `given`; `others` are no tensors.
    fn follow(
        &self,
        outer: &Graph,
        node: &Node,
        body: &Body,
        given: &[Option<Known>],
        others: &[Option<Other>],
    ) -> Result<Shaped, InferShapesError> {
        let inside = |error| InferShapesError::Inside {
            node: describe(node),
            body: body.attribute.clone(),
            error: Box::new(error),
        };
        let mut graph = Graph::clone(&body.graph);
        let mut at_most = BTreeSet::new();
        let mut contents = BTreeMap::new();
        for id in body.graph.outer() {
            let around = outer.tensor_named(&graph.tensor(id).name);
            if around.is_some_and(|id| self.at_most.contains(&id)) {
                at_most.insert(id);
            }
            let held = around.and_then(|id| self.contents.get(&id));
            contents.extend(held.map(|held| (id, held.clone())));
            if let Some(around) = around.map(|id| outer.tensor(id)) {
                let tensor = graph.tensor_mut(id);
                tensor.element = around.element;
                tensor.shape.clone_from(&around.shape);
                tensor.constant.clone_from(&around.constant);
                tensor.other = around.other;
            }
        }
        let is_bounded =
            self.inside_is_bounded.get() || node.reads().any(|id| self.at_most.contains(&id));
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
        for (id, other) in graph.inputs.clone().into_iter().zip(others) {
            if let Some((held, inside)) = other {
                graph.tensor_mut(id).other = Some(*held);
                contents.extend(inside.clone().map(|inside| (id, inside)));
            }
        }
        let uses = Uses::of(&graph);
        let order = topological(&graph, &uses)
            .map_err(|cycle| inside(super::cycle(&graph, &uses, &cycle)))?;
        let mut inference = Inference {
            at_most,
            contents,
            ..Inference::new(self.sizes.clone(), self.patterns.clone(), uses)
        };
        for &id in &order {
            inference.visit(&mut graph, id).map_err(inside)?;
        }
        graph.set_order(order);
        if !inference.at_most.is_empty() {
            self.inside_is_bounded.set(true);
        }
        let others = graph.outputs.iter().map(|id| {
            let held = graph.tensor(*id).other?;
            Some((held, inference.contents.get(id).cloned()))
        });
        Ok(Shaped {
            others: others.collect(),
            missing: super::all_missing(inference.missing).map(inside),
            graph,
        })
    }
}

impl Followed {
    fn unknown(why: String, missing: Option<InferShapesError>) -> Followed {
        Followed {
            outputs: Vec::new(),
            open: Vec::new(),
            others: Vec::new(),
            missing,
            run: Run::Uncounted(why),
        }
    }

    /// The output at `position`, if it is no tensor.
    pub(super) fn other(&self, position: usize) -> Option<&Other> {
        self.others.get(position)?.as_ref()
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
pub(super) fn value(graph: &Graph, id: Option<TensorId>) -> Option<Known> {
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

/// By place, what has room for each of these, and of its sizes those that are the same in all.
type Larger = Vec<(Option<Known>, Vec<Option<u64>>)>;

/// The first, second and third value of what is carried on; `None` where they have not the same number of axes.
fn larger_of_each(all: [Vec<Option<Known>>; 3]) -> Option<Larger> {
    let places = 0..all[0].len();
    let each = places.map(|at| {
        let here: Vec<Option<Known>> = all.iter().map(|values| values[at].clone()).collect();
        if here.iter().all(Option::is_none) {
            return Some((None, Vec::new()));
        }
        let here = here.into_iter().collect::<Option<Vec<Known>>>()?;
        let settled = |axis: usize, size: u64| {
            let is_same = |known: &Known| known.shape.get(axis) == Some(&size);
            here.iter().all(is_same).then_some(size)
        };
        let sizes = here[0].shape.iter().enumerate();
        let sizes = sizes.map(|(axis, &size)| settled(axis, size)).collect();
        Some((Some(larger(here)?), sizes))
    });
    each.collect()
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
