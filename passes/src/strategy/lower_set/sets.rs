//! Lower sets of a forward part, and what formulas (1) and (2) need of each.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::strategy::{ForwardPart, Segments};

/// A set of vertices, 64 to a word.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    fn empty(vertices: usize) -> Bits {
        Bits(vec![0; vertices.div_ceil(64)])
    }

    pub(super) fn has(&self, v: u32) -> bool {
        self.0[v as usize / 64] & (1 << (v % 64)) != 0
    }

    fn insert(&mut self, v: u32) {
        self.0[v as usize / 64] |= 1 << (v % 64);
    }

    fn join(&mut self, other: &Bits) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }

    fn is_inside(&self, other: &Bits) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a & !b == 0)
    }

    /// What is in `self` and not in `other`, ascending.
    fn without<'b>(&'b self, other: &'b Bits) -> impl Iterator<Item = u32> + 'b {
        let words = self.0.iter().zip(&other.0).enumerate();
        words.flat_map(|(i, (a, b))| ones(i, a & !b))
    }

    /// How many are in it?
    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// What is in it, ascending.
    fn all(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.0.iter().enumerate();
        words.flat_map(|(i, &word)| ones(i, word))
    }
}

/// What is in the word at that place.
fn ones(place: usize, mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(place as u32 * 64 + bit)
    })
}

/// A lower set L.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LowerSet {
    members: Bits,
    /// The vertex of which these are all ancestors and itself, if they are of one.
    of: Option<u32>,
    /// ∂(L), without ...
    boundary: Vec<Neighbours>,
    /// ... all members that cannot be computed again: their M and T.
    always: (u64, u32),
    /// M(L).
    pub(super) bytes: u64,
    /// T(L).
    pub(super) time: u32,
    /// M(δ⁺(L) \ L) + M(δ⁻(δ⁺(L)) \ L): what the backward part of V_i finds occupied behind it.
    pub(super) behind: u64,
}

/// Vertices in one word of [`Bits`], which a set has all or none of most of the time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Neighbours {
    /// The place of the word.
    place: usize,
    /// They themselves.
    word: u64,
    /// Their M.
    bytes: u64,
    /// Their T.
    time: u32,
}

impl LowerSet {
    /// Has `other` all of its vertices?
    fn is_inside(&self, other: &LowerSet) -> bool {
        match self.of {
            // Nothing outside a lower set leads into it.
            Some(v) => other.members.has(v),
            None => self.members.is_inside(&other.members),
        }
    }
}

/// A family of lower sets, ascending by memory; the empty set first, all vertices last.
#[derive(Clone, Debug)]
pub(super) struct Sets {
    pub(super) sets: Vec<LowerSet>,
    /// By set: those before it of which it has all vertices.
    below: Vec<Bits>,
    /// By set: the steps from these, if there are at most [`MOST_STEPS`] in all; otherwise nothing.
    steps: Vec<Vec<SetStep>>,
    /// By vertex.
    bytes: Vec<u64>,
    /// By vertex, in counted times.
    times: Vec<u32>,
}

/// From a set to one that has all of its vertices and more.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetStep {
    /// The place of the smaller one.
    pub(super) lower: u32,
    /// T(∂(L') \ L): what the step saves.
    pub(super) saved: u32,
    /// M(∂(L') \ L): what it keeps.
    pub(super) kept: u64,
}

/// So many steps are worked out once: 96 MiB.
const MOST_STEPS: usize = 6 << 20;

/// T(V), about.
const TIMES: f64 = 512.0;

impl Sets {
    /// Every lower set; an error if there are more than `most`.
    pub(super) fn all(forward: &ForwardPart, most: usize) -> Result<Sets, String> {
        let n = forward.vertices.len();
        let mut found = BTreeSet::from([Bits::empty(n)]);
        let mut open = vec![Bits::empty(n)];
        while let Some(set) = open.pop() {
            for (v, vertex) in forward.vertices.iter().enumerate() {
                let v = v as u32;
                let mut earlier = vertex.before.iter().chain(&vertex.waits_for);
                if set.has(v) || !earlier.all(|&u| set.has(u)) {
                    continue;
                }
                let mut larger = set.clone();
                larger.insert(v);
                if found.insert(larger.clone()) {
                    open.push(larger);
                }
            }
            if found.len() > most {
                return Err(format!(
                    "the {n} variables of its forward part have more than {most} lower sets, \
                     which is as many as the exact table is made for; lower-set-approx has no \
                     such limit"
                ));
            }
        }
        Ok(Sets::of(forward, found.into_iter().map(|set| (set, None))))
    }

    /// L^Pruned: for every vertex, what it is computed from and itself; besides, the empty set and
    /// all vertices.
    pub(super) fn ancestors(forward: &ForwardPart) -> Sets {
        let n = forward.vertices.len();
        let mut of: Vec<Bits> = Vec::with_capacity(n);
        let mut all = Bits::empty(n);
        for (v, vertex) in forward.vertices.iter().enumerate() {
            let mut set = Bits::empty(n);
            set.insert(v as u32);
            for &u in vertex.before.iter().chain(&vertex.waits_for) {
                set.join(&of[u as usize]);
            }
            all.insert(v as u32);
            of.push(set);
        }
        let ends = [(Bits::empty(n), None), (all, None)];
        let of = (0..).zip(of).map(|(v, set)| (set, Some(v)));
        let different: BTreeMap<Bits, Option<u32>> = ends.into_iter().chain(of).collect();
        Sets::of(forward, different.into_iter())
    }

    /// Of different sets, and the vertices of which they are the ancestors, if they are of one.
    fn of(forward: &ForwardPart, members: impl Iterator<Item = (Bits, Option<u32>)>) -> Sets {
        let vertices = &forward.vertices;
        let bytes: Vec<u64> = vertices
            .iter()
            .map(|vertex| vertex.bytes.0.min(1 << 42))
            .collect();
        let unit = (forward.time() as f64 / TIMES).max(1.0);
        let counted = |time: u64| ((time as f64 / unit).round() as u32).max(1);
        let times = vertices.iter().map(|vertex| counted(vertex.time)).collect();
        let mut family = Sets {
            sets: Vec::new(),
            below: Vec::new(),
            steps: Vec::new(),
            bytes,
            times,
        };
        let sets = members.map(|(set, of)| LowerSet {
            of,
            ..family.describe(forward, set)
        });
        let mut sets: Vec<LowerSet> = sets.collect();
        // A superset holds no less, and more vertices.
        sets.sort_by_key(|set| (set.bytes, set.members.count()));
        let below = sets.iter().enumerate().map(|(i, upper)| {
            let mut below = Bits::empty(sets.len());
            let before = (0..).zip(&sets[..i]);
            let smaller = before.filter(|(_, lower)| lower.is_inside(upper));
            smaller.for_each(|(lower, _)| below.insert(lower));
            below
        });
        family.below = below.collect();
        family.sets = sets;
        let all: usize = family.below.iter().map(Bits::count).sum();
        if all <= MOST_STEPS {
            let uppers = 0..family.sets.len();
            family.steps = uppers.map(|upper| family.steps_to(upper, 0)).collect();
        }
        family
    }

    /// The steps to the set from those of which it has all vertices and that have at least so many bytes, ascending by memory.
    pub(super) fn steps(&self, upper: usize, least: u64) -> Cow<'_, [SetStep]> {
        match self.steps.get(upper) {
            Some(known) => {
                let bytes = |step: &SetStep| self.sets[step.lower as usize].bytes;
                let from = known.partition_point(|step| bytes(step) < least);
                Cow::Borrowed(&known[from..])
            }
            None => Cow::Owned(self.steps_to(upper, least)),
        }
    }

    fn steps_to(&self, upper: usize, least: u64) -> Vec<SetStep> {
        let lowers = self.below[upper].all();
        let from = lowers.skip_while(|&lower| self.sets[lower as usize].bytes < least);
        let step = |lower: u32| {
            let (kept, saved) = self.kept(&self.sets[lower as usize], &self.sets[upper]);
            SetStep { lower, saved, kept }
        };
        from.map(step).collect()
    }

    fn describe(&self, forward: &ForwardPart, members: Bits) -> LowerSet {
        let n = forward.vertices.len();
        let none = Bits::empty(n);
        let mut boundary = Bits::empty(n);
        let mut always = (0, 0);
        let mut next = Bits::empty(n);
        let (mut bytes, mut time) = (0, 0);
        for v in members.without(&none) {
            let vertex = &forward.vertices[v as usize];
            bytes += self.bytes[v as usize];
            time += self.times[v as usize];
            let mut outside = vertex.after.iter().filter(|&&w| !members.has(w)).peekable();
            if !vertex.recomputable {
                always.0 += self.bytes[v as usize];
                always.1 += self.times[v as usize];
            } else if outside.peek().is_some() {
                boundary.insert(v);
            }
            outside.for_each(|&w| next.insert(w));
        }
        let mut feeding = Bits::empty(n);
        for w in next.without(&members) {
            for &u in &forward.vertices[w as usize].before {
                feeding.insert(u);
            }
        }
        let behind = self.sum(next.without(&members)) + self.sum(feeding.without(&members));
        LowerSet {
            members,
            of: None,
            boundary: self.neighbours(&boundary),
            always,
            bytes,
            time,
            behind,
        }
    }

    fn neighbours(&self, vertices: &Bits) -> Vec<Neighbours> {
        let words = vertices.0.iter().copied().enumerate();
        let of = |(place, word)| Neighbours {
            place,
            word,
            bytes: self.sum(ones(place, word)),
            time: ones(place, word).map(|v| self.times[v as usize]).sum(),
        };
        words.filter(|(_, word)| *word != 0).map(of).collect()
    }

    fn sum(&self, vertices: impl Iterator<Item = u32>) -> u64 {
        vertices.map(|v| self.bytes[v as usize]).sum()
    }

    /// M(∂(L') \ L) and T(∂(L') \ L): what the step from L to L', which has all of it, keeps, and saves.
    fn kept(&self, lower: &LowerSet, upper: &LowerSet) -> (u64, u32) {
        let always = (
            upper.always.0 - lower.always.0,
            upper.always.1 - lower.always.1,
        );
        let one = |v: u32| (self.bytes[v as usize], self.times[v as usize]);
        let mut kept = always;
        let mut add = |(bytes, time): (u64, u32)| {
            kept.0 += bytes;
            kept.1 += time;
        };
        for all in &upper.boundary {
            match all.word & !lower.members.0[all.place] {
                0 => {}
                new if new == all.word => add((all.bytes, all.time)),
                new => ones(all.place, new).for_each(|v| add(one(v))),
            }
        }
        kept
    }

    /// Formula (2) of the sequence, which ascends to all vertices.
    pub(super) fn memory(&self, sequence: &[usize]) -> u64 {
        let (mut lower, mut held, mut most) = (&self.sets[0], 0, 0);
        for &set in sequence {
            let upper = &self.sets[set];
            most = most.max(held + 2 * (upper.bytes - lower.bytes) + upper.behind);
            held += self.kept(lower, upper).0;
            lower = upper;
        }
        most
    }

    /// Formulas (2) and (1) where every vertex is a segment: more memory than that is of no use, and
    /// no sequence takes less time.
    pub(super) fn finest(&self, forward: &ForwardPart) -> (u64, u32) {
        let mut members = Bits::empty(forward.vertices.len());
        let (mut held, mut most, mut again) = (0, 0, 0);
        for (v, vertex) in forward.vertices.iter().enumerate() {
            members.insert(v as u32);
            let behind = self.describe(forward, members.clone()).behind;
            most = most.max(held + 2 * self.bytes[v] + behind);
            match vertex.after.is_empty() && vertex.recomputable {
                true => again += self.times[v],
                false => held += self.bytes[v],
            }
        }
        (most, again)
    }

    /// The segments of the sequence, which ascends to all vertices.
    pub(super) fn segments(&self, sequence: &[usize]) -> Segments {
        let vertices = 0..self.bytes.len() as u32;
        let first_with = |v: u32| {
            sequence
                .iter()
                .position(|&set| self.sets[set].members.has(v))
        };
        Segments {
            of: vertices
                .map(|v| first_with(v).unwrap_or(0) as u32)
                .collect(),
        }
    }
}
