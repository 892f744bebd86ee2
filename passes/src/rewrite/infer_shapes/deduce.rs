//! Sizes of inputs that nobody gave, but that follow from the sizes that nodes accept: labels have as many rows as the
//! scores that a loss compares them with.
//!
//! Each size that is not known gets a number of its own, a large prime, and the nodes are followed with it. Where a node's
//! rule refuses what it reads because of such a number, the number is replaced by what the node's other inputs have. If the
//! rule accepts exactly one such size, that is what it is. No operator needs a word about itself for that: which
//! sizes fit together is what its rule says.

use std::collections::{BTreeMap, BTreeSet};

use super::{Inference, dimensions_of, expression, open_dimensions};
use crate::graph::{Dimension, Graph, Node, NodeId, TensorId};
use crate::operators::{self, StandIn};

/// Sizes that are looked for at the same time; of more, the first ones.
const MOST: usize = 256;

/// Each round finds what follows from the round before; more than this many are not made.
const MOST_ROUNDS: usize = 16;

/// Stand-ins are primes from here up.
const SMALLEST: u64 = 65_537;

/// What a node's rule is asked with at most.
const MOST_TRIALS: usize = 256;

/// Sizes of the dimensions of `graph`'s inputs that `inference` does not know, by name or place, as far as they follow. `order` is
/// topological.
pub(super) fn deduce(
    graph: &Graph,
    order: &[NodeId],
    inference: &Inference,
) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for _ in 0..MOST_ROUNDS {
        let mut trial = inference.clone();
        trial.sizes.extend(found.clone());
        let stand_ins = stand_ins(graph, &mut trial);
        if stand_ins.is_empty() {
            break;
        }
        let mut graph = graph.clone();
        let mut round = Round {
            stand_ins,
            found: BTreeMap::new(),
            equal: Vec::new(),
        };
        for id in graph.inputs.clone() {
            // What is too large with primes has no shape here.
            let _ = trial.bind_input(&mut graph, id);
        }
        for &id in order {
            round.visit(&mut trial, &mut graph, id);
        }
        if round.found.is_empty() {
            break;
        }
        // Each is equal to one that came before it.
        for (later, earlier) in &round.equal {
            if let Some(&size) = round.found.get(earlier) {
                round.found.insert(later.clone(), size);
            }
        }
        found.extend(round.found);
    }
    found
}

/// Gives each dimension without a size a prime of its own; by prime, what it stands for.
fn stand_ins(graph: &Graph, trial: &mut Inference) -> BTreeMap<u64, String> {
    let numbers = numbers(graph);
    let mut primes =
        primes(SMALLEST).filter(|prime| numbers.iter().all(|number| number % prime != 0));
    let mut names = BTreeMap::new();
    // Names first, since expressions of names follow.
    for only_names in [true, false] {
        for name in open_dimensions(graph, trial) {
            let is_name = expression::names(&name).is_none_or(|names| names.contains(&name));
            if (only_names && !is_name) || names.len() == MOST || trial.sizes.contains_key(&name) {
                continue;
            }
            let Some(prime) = primes.next() else {
                return names;
            };
            trial.sizes.insert(name.clone(), prime);
            names.insert(prime, name);
        }
    }
    names
}

/// Every size that the file says.
fn numbers(graph: &Graph) -> BTreeSet<u64> {
    let tensors = graph.tensor_ids().map(|id| graph.tensor(id));
    let mut numbers = BTreeSet::new();
    for tensor in tensors {
        let declared = tensor.declared.iter().flatten();
        numbers.extend(declared.filter_map(Dimension::number));
        numbers.extend(tensor.shape.iter().flatten());
    }
    // Smaller ones are multiples of no prime that could be taken.
    numbers.split_off(&SMALLEST)
}

/// From an odd number up: sizes that hardly any tensor has, and small enough that products of several fit into 64 bits.
pub(crate) fn primes(from: u64) -> impl Iterator<Item = u64> {
    let is_prime = |n: &u64| {
        (3..)
            .step_by(2)
            .take_while(|d| d * d <= *n)
            .all(|d| !n.is_multiple_of(d))
    };
    (from..from + (1 << 16)).step_by(2).filter(is_prime)
}

/// One pass over the nodes.
struct Round {
    /// By prime, the name or place of the dimension.
    stand_ins: BTreeMap<u64, String>,
    found: BTreeMap<String, u64>,
    /// Dimensions that are the same.
    equal: Vec<(String, String)>,
}

impl Round {
    /// Follows one node; where it cannot be, nothing is known of what it writes.
    fn visit(&mut self, trial: &mut Inference, graph: &mut Graph, id: NodeId) {
        let refuses = |graph: &Graph, trial: &Inference| {
            matches!(
                operators::infer(graph, &trial.uses, graph.node(id)),
                Some(Err(_))
            )
        };
        if refuses(graph, trial) {
            self.replace(graph, id);
        }
        if let Err(fault) = trial.visit(graph, id) {
            trial.missing.push(fault);
        }
    }

    /// Gives the inputs of a node that refuses them the only sizes that it accepts, if there are any.
    fn replace(&mut self, graph: &mut Graph, id: NodeId) {
        let node = graph.node(id).clone();
        let Some(choices) = self.choices(graph, &node) else {
            return;
        };
        let accepts = |sizes: &[(u64, u64)]| {
            let instead = substituted(graph, &node, sizes);
            operators::infer_instead(graph, &node, &instead).is_some()
        };
        // A size of one is broadcast to every other, so it is a solution only where it is the only one.
        for smallest in [2, 1] {
            let Some(mut accepted) = combinations(&choices, smallest) else {
                return;
            };
            accepted.retain(|sizes| accepts(sizes));
            // What leaves most of them open says least that may not be so.
            let fewest = accepted.iter().map(Vec::len).min();
            accepted.retain(|sizes| Some(sizes.len()) == fewest);
            match accepted.as_slice() {
                [] => {}
                [only] => {
                    if is_only(only, accepts) {
                        let only = only.clone();
                        self.take(graph, &node, &only);
                    }
                    return;
                }
                _ => return,
            }
        }
    }

    fn take(&mut self, graph: &mut Graph, node: &Node, sizes: &[(u64, u64)]) {
        for instead in substituted(graph, node, sizes) {
            graph.tensor_mut(instead.tensor).shape = instead.shape;
        }
        for (prime, size) in sizes {
            let name = self.stand_ins[prime].clone();
            match self.stand_ins.get(size) {
                Some(other) => self.equal.push((name, other.clone())),
                None => {
                    self.found.entry(name).or_insert(*size);
                }
            }
        }
    }

    /// What each stand-in in the node's inputs may be: what makes its dimension equal to one of the other inputs; of two
    /// stand-ins, the later one may be the earlier one.
    fn choices(&self, graph: &Graph, node: &Node) -> Option<Vec<(u64, BTreeSet<u64>)>> {
        let reads = node.inputs.iter().flatten();
        let sizes: BTreeSet<u64> = reads
            .filter_map(|&id| graph.tensor(id).shape.as_ref())
            .flatten()
            .copied()
            .collect();
        let divides = |size: u64| {
            let divides = move |prime: &&u64| size > 0 && size.is_multiple_of(**prime);
            self.stand_ins.keys().filter(divides).copied()
        };
        // By prime, what it is multiplied with.
        let mut times: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for &size in &sizes {
            let mut primes = divides(size);
            match (primes.next(), primes.next()) {
                (Some(prime), None) => {
                    times.entry(prime).or_default().insert(size / prime);
                }
                (Some(_), Some(_)) => return None,
                (None, _) => {}
            }
        }
        let choices = times.iter().map(|(&prime, times)| {
            let earlier = |size: &u64| divides(*size).all(|other| other < prime);
            let others = sizes.iter().copied().filter(earlier);
            let fits = others.flat_map(|size| {
                let whole = times.iter().filter(move |&&times| size % times == 0);
                whole.map(move |times| size / times)
            });
            // A multiple of another one cannot be written down.
            let says =
                |size: &u64| self.stand_ins.contains_key(size) || divides(*size).next().is_none();
            (prime, fits.filter(says).collect())
        });
        let choices: Vec<(u64, BTreeSet<u64>)> = choices.collect();
        (!choices.is_empty()).then_some(choices)
    }
}

/// Does the node refuse other sizes in the place of each of these? It may only want a multiple of something.
fn is_only(sizes: &[(u64, u64)], accepts: impl Fn(&[(u64, u64)]) -> bool) -> bool {
    (0..sizes.len()).all(|place| {
        let others = [2u64, 3, 4, 5, 7].map(|times| sizes[place].1.saturating_mul(times));
        others.into_iter().all(|other| {
            let mut sizes = sizes.to_vec();
            sizes[place].1 = other;
            !accepts(&sizes)
        })
    })
}

/// Every way to give some of them one of their sizes, of those from `smallest` up; nothing if there are too many.
fn combinations(choices: &[(u64, BTreeSet<u64>)], smallest: u64) -> Option<Vec<Vec<(u64, u64)>>> {
    let mut all = vec![Vec::new()];
    for (prime, sizes) in choices {
        let fewer = all.clone();
        for &size in sizes.range(smallest..) {
            let longer = fewer.iter().cloned().map(|mut one: Vec<(u64, u64)>| {
                one.push((*prime, size));
                one
            });
            all.extend(longer);
            if all.len() > MOST_TRIALS {
                return None;
            }
        }
    }
    all.retain(|sizes| !sizes.is_empty());
    Some(all)
}

/// What `node` reads with sizes in the place of primes, by tensor.
fn substituted(graph: &Graph, node: &Node, sizes: &[(u64, u64)]) -> Vec<StandIn> {
    let reads: BTreeSet<TensorId> = node.inputs.iter().flatten().copied().collect();
    let size = |dimension: u64| {
        let stands_in =
            |(prime, _): &&(u64, u64)| dimension > 0 && dimension.is_multiple_of(*prime);
        let found = sizes.iter().find(stands_in);
        found.map_or(dimension, |(prime, size)| {
            (dimension / prime).saturating_mul(*size)
        })
    };
    let instead = |tensor: TensorId| StandIn {
        tensor,
        shape: graph
            .tensor(tensor)
            .shape
            .as_ref()
            .map(|shape| shape.iter().map(|&d| size(d)).collect()),
        keeps_contents: true,
    };
    reads.into_iter().map(instead).collect()
}

/// What the dimensions are that inputs of `graph` declare without a number, by the shapes of the inputs of that name in `shaped`.
pub fn sizes_of_inputs(graph: &Graph, shaped: &Graph) -> BTreeMap<String, u64> {
    let mut sizes = BTreeMap::new();
    for &id in &graph.inputs {
        let tensor = graph.tensor(id);
        let same = shaped.tensor_named(&tensor.name);
        let shape = same.and_then(|id| shaped.tensor(id).shape.as_ref());
        let (Some(declared), Some(shape)) = (&tensor.declared, shape) else {
            continue;
        };
        let open = declared
            .iter()
            .zip(shape)
            .filter(|(dimension, _)| !dimension.is_number());
        for (name, (_, &size)) in dimensions_of(tensor).zip(open) {
            if size > 0 {
                sizes.entry(name).or_insert(size);
            }
        }
    }
    sizes
}
