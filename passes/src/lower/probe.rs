//! What sizes and integers of a graph are, whatever the sizes of its symbolic dimensions.
//!
//! Shape inference works with numbers, so it is run with several sets of them: all dimensions of size one, then small,
//! medium and large primes, another one for each name. What is the same in each set depends on none of the names; what is the same multiple of a
//! name's size, or of two names' sizes, is that multiple. A Slice that cuts at 512 gives itself away: below it has the name's size,
//! above it has 512.

use std::collections::BTreeMap;

use super::facts::inferred;
use crate::graph::{Constant, ElementType, Graph, TensorId};
use crate::rewrite::infer_shapes::{follows_from_rules, primes, sizes_of_inputs};

/// Where the primes of each set begin. The largest are none of those that shape inference tries itself.
const STARTS: [u64; 5] = [1, 3, 61, 1009, 200_001];

/// So many sets have to be accepted by all nodes: a network may want images of one size.
const FEWEST: usize = 3;

/// A graph that has more dimensions to be given is left alone.
const MOST_NAMES: usize = 64;

/// A number: a multiple of the product of up to two symbolic dimensions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Multiple {
    pub(super) times: i64,
    /// The names of the dimensions; with none, it is `times` itself.
    pub(super) of: Vec<String>,
}

/// A graph's sizes and small integers in each set.
pub(super) struct Probes {
    sets: Vec<ProbedSizes>,
    /// Does what is known of a tensor follow from inputs by the operators' rules alone?
    follows: Vec<bool>,
}

/// What came out for one set of sizes, by tensor.
struct ProbedSizes {
    given: BTreeMap<String, u64>,
    shapes: Vec<Option<Vec<u64>>>,
    integers: Vec<Option<Vec<i64>>>,
}

impl Probes {
    /// `None` where too few sets are accepted, or dimensions may differ that shape inference takes for equal. `original` has the same
    /// inputs, and may accept less.
    pub(super) fn of(graph: &Graph, original: &Graph) -> Option<Probes> {
        let mut probes = Probes {
            sets: Vec::new(),
            follows: Vec::new(),
        };
        let mut is_checked = false;
        for start in STARTS {
            let mut sizes = match start {
                1 => None,
                _ => Some(primes(start)),
            };
            let mut left = MOST_NAMES;
            let mut next = || {
                left = left.checked_sub(1)?;
                sizes.as_mut().map_or(Some(1), Iterator::next)
            };
            let Ok((shaped, given)) = inferred(graph, &BTreeMap::new(), &mut next) else {
                continue;
            };
            if probes.sets.is_empty() {
                probes.follows = follows_from_rules(&shaped)?;
            }
            let no_names = given.is_empty();
            if (start > 1 || no_names) && !is_checked {
                if !has_no_choice([graph, original], &shaped, &given) {
                    return None;
                }
                is_checked = true;
            }
            probes.sets.push(ProbedSizes::of(&shaped, given));
            if no_names {
                return Some(probes);
            }
        }
        (probes.sets.len() >= FEWEST).then_some(probes)
    }

    /// Do both have the same shape in every set?
    pub(super) fn same_shape(&self, one: TensorId, other: TensorId) -> bool {
        let same = |set: &ProbedSizes| {
            let shape = |id: TensorId| set.shapes.get(id.index())?.as_ref();
            shape(one).is_some() && shape(one) == shape(other)
        };
        self.follows(one) && self.follows(other) && self.sets.iter().all(same)
    }

    /// A dimension's size that is the same in every set.
    pub(super) fn number(&self, id: TensorId, axis: usize) -> Option<u64> {
        let size = |set: &ProbedSizes| set.shapes.get(id.index())?.as_ref()?.get(axis).copied();
        let first = size(self.sets.first()?).filter(|_| self.follows(id))?;
        let is_same = |set: &ProbedSizes| size(set) == Some(first);
        self.sets.iter().all(is_same).then_some(first)
    }

    /// The numbers that an integer or a list of integers holds, and whether it is a list.
    pub(super) fn contents(&self, id: TensorId) -> Option<(Vec<Multiple>, bool)> {
        if !self.follows(id) {
            return None;
        }
        let of_set = |set: &ProbedSizes| -> Option<(Vec<i64>, usize)> {
            let rank = set.shapes.get(id.index())?.as_ref()?.len();
            Some((set.integers[id.index()].clone()?, rank))
        };
        let all: Vec<(Vec<i64>, usize)> = self.sets.iter().map(of_set).collect::<Option<_>>()?;
        let (first, rank) = all.first()?;
        let is_alike = all
            .iter()
            .all(|(numbers, of)| numbers.len() == first.len() && of == rank);
        if !is_alike || *rank > 1 {
            return None;
        }
        let number = |place: usize| {
            let values: Vec<i64> = all.iter().map(|(numbers, _)| numbers[place]).collect();
            self.multiple(&values)
        };
        let numbers = (0..first.len()).map(number).collect::<Option<_>>()?;
        Some((numbers, *rank == 1))
    }

    fn follows(&self, id: TensorId) -> bool {
        self.follows.get(id.index()).copied().unwrap_or(false)
    }

    /// What has these values in the sets.
    fn multiple(&self, values: &[i64]) -> Option<Multiple> {
        let (&first, rest) = values.split_first()?;
        if rest.iter().all(|&value| value == first) {
            let of = Vec::new();
            return Some(Multiple { times: first, of });
        }
        let names: Vec<&String> = self.sets.first()?.given.keys().collect();
        let singles = names.iter().map(|&name| vec![name]);
        let pairs = names
            .iter()
            .enumerate()
            .flat_map(|(place, &one)| names[place..].iter().map(move |&other| vec![one, other]));
        let fit = |of: &Vec<&String>| self.times(values, of);
        let of = singles.chain(pairs).find(|of| fit(of).is_some())?;
        Some(Multiple {
            times: fit(&of)?,
            of: of.into_iter().cloned().collect(),
        })
    }

    /// By what the product of these dimensions is multiplied in every set.
    fn times(&self, values: &[i64], of: &[&String]) -> Option<i64> {
        let mut times = None;
        for (set, &value) in self.sets.iter().zip(values) {
            let product = of.iter().try_fold(1i64, |product, &name| {
                product.checked_mul(i64::try_from(*set.given.get(name)?).ok()?)
            })?;
            let here = (value % product == 0).then_some(value / product)?;
            if *times.get_or_insert(here) != here {
                return None;
            }
        }
        times.filter(|&times| times > 0)
    }
}

impl ProbedSizes {
    fn of(shaped: &Graph, given: BTreeMap<String, u64>) -> ProbedSizes {
        let tensors = || shaped.tensor_ids().map(|id| shaped.tensor(id));
        let integers = tensors().map(|tensor| match &tensor.constant {
            Some(Constant::Ints(numbers)) if tensor.element == Some(ElementType::Int64) => {
                Some(numbers.clone())
            }
            _ => None,
        });
        ProbedSizes {
            given,
            shapes: tensors().map(|tensor| tensor.shape.clone()).collect(),
            integers: integers.collect(),
        }
    }
}

/// Dimensions of inputs that were not `given` a size have one that nodes accept, that of another dimension or a number. Is it the only one? Where
/// what has such a dimension may be broadcast, its size may be one as well; so may that of the dimension it was found equal to. But nobody has what
/// one of the `graphs` does not accept: what a loss is lowered to takes labels for another number of samples.
fn has_no_choice(graphs: [&Graph; 2], shaped: &Graph, given: &BTreeMap<String, u64>) -> bool {
    let sizes = sizes_of_inputs(graphs[0], shaped);
    let accepts =
        |graph: &Graph, sizes: &BTreeMap<String, u64>| inferred(graph, sizes, &mut || None).is_ok();
    // One of which not even the sizes that were found are accepted may not be understood.
    let telling = graphs.map(|graph| accepts(graph, &sizes));
    let is_equal = |name: &String, size: u64| {
        let mut others = sizes.iter().filter(|(other, _)| *other != name);
        others.any(|(_, &other)| other == size)
    };
    let found: Vec<&String> = sizes
        .iter()
        .filter(|&(name, &size)| !given.contains_key(name) || is_equal(name, size))
        .map(|(name, _)| name)
        .collect();
    let may_be_one = |name: &&String| {
        let mut sizes = sizes.clone();
        sizes.insert((*name).clone(), 1);
        let mut all = graphs.iter().zip(telling);
        all.all(|(graph, tells)| !tells || accepts(graph, &sizes))
    };
    found.len() <= MOST_NAMES && !found.iter().any(may_be_one)
}
