//! Does the rewritten graph compute the same values?

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::interface::{interface, match_originals};
use super::structure::topological;
use super::values::{ALGORITHM, Computation, MARKER, ValueNumber, Values, exact, type_and_shape};
use super::variants::slices::counts;
use super::violation::label;
use super::{Violation, structure, trust};
use crate::graph::{Attribute, Graph, Node, NodeId, TensorId, TensorKind, Uses};

/// What a node of the rewritten graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This node of the original.
    Original(NodeId),
    /// It computes this node of the original again.
    Copy(NodeId),
    /// It computes this node of the original, or a part of it, in another form.
    Variant(NodeId),
    /// It forwards its inputs.
    Barrier,
    /// It reads a tensor that nobody else reads, so that the runtime frees it.
    Release,
}

/// How a rewritten graph corresponds to its original: the result of [`equivalence`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correspondence {
    pub(super) roles: Vec<Role>,
}

impl Correspondence {
    /// What the node is, by the rewritten graph's numbers.
    pub fn role(&self, id: NodeId) -> Role {
        self.roles[id.index()]
    }

    /// The same of a graph that may have more nodes than that one; `None` for those.
    pub(super) fn known_role(&self, id: NodeId) -> Option<Role> {
        self.roles.get(id.index()).copied()
    }

    /// How many nodes compute something again.
    pub fn copies(&self) -> usize {
        let roles = self.roles.iter();
        roles.filter(|role| matches!(role, Role::Copy(_))).count()
    }

    /// How many nodes only forward their inputs.
    pub fn barriers(&self) -> usize {
        let roles = self.roles.iter();
        roles.filter(|&&role| role == Role::Barrier).count()
    }
}

/// Checks that `rewritten` computes what `original` computes. Tensors correspond by name, so that
/// a graph read back from a file can be checked.
///
/// Proved: the rewritten graph is sound ([`structure()`]); graph inputs, outputs, initializers and
/// operator sets are the original's; every original node is there once, with its operator,
/// attributes, outputs, captures, and with inputs that hold the values that it read; every other
/// node forwards its inputs (PassThrough, not to a YieldOp, or a Reshape to the same shape, which may be computed of sizes), or repeats a node that may be repeated, on the same
/// values, and is read by somebody, or is a Size that nobody reads. `permitted` names the nodes of
/// which the user says that they may be repeated; it counts for operators that nothing is known
/// about.
///
/// Results of other operators are taken for those of the original where a rule says that their bits
/// are the same, or where the approximation is `allowed` by name.
///
/// Left to others: when memory is read that is updated in place ([`super::updates()`]), the
/// contents of attributes that a [`Graph`] does not hold, and memory ([`super::budget()`]).
pub fn equivalence_allowing(
    original: &Graph,
    rewritten: &Graph,
    permitted: &BTreeSet<String>,
    allowed: &BTreeSet<String>,
) -> Result<Correspondence, Violation> {
    let order = topological(original)?;
    structure(rewritten)?;
    interface(original, rewritten)?;
    let originals = match_originals(original, rewritten)?;
    let slices = counts(rewritten);
    let values = Values::number(original, &order, permitted, allowed, &slices);
    let mut read = vec![false; rewritten.tensor_count()];
    for tensor in rewritten.nodes().flat_map(Node::reads) {
        read[tensor.index()] = true;
    }
    let mut check = Check {
        read,
        original,
        rewritten,
        values,
        held: vec![None; rewritten.tensor_count()],
        zeros: vec![false; rewritten.tensor_count()],
        sizes: HashMap::new(),
        numbered: None,
        counts: vec![false; rewritten.tensor_count()],
        roles: vec![Role::Barrier; rewritten.node_count()],
        draws: BTreeMap::new(),
    };
    check.find_draws(&originals);
    for id in rewritten.tensor_ids() {
        let tensor = rewritten.tensor(id);
        if tensor.kind != TensorKind::Value {
            let of = original.tensor_named(&tensor.name);
            check.held[id.index()] = of.map(|of| check.values.of[of.index()]);
        }
    }
    for &id in rewritten.order() {
        check.roles[id.index()] = match originals[id.index()] {
            Some(of) => match check.original_node(id, of) {
                Ok(role) => role,
                // Another form of it, perhaps.
                Err(violation) => check.replacing_node(id, of).ok_or(violation)?,
            },
            None => check.new_node(id)?,
        };
    }
    check.names_keep_their_values()?;
    check.new_names_are_free()?;
    check.every_new_node_is_read()?;
    check.no_barrier_hands_over()?;
    check.types()?;
    Ok(Correspondence { roles: check.roles })
}

/// [`equivalence_allowing`] nothing that is not bitwise.
pub fn equivalence(
    original: &Graph,
    rewritten: &Graph,
    permitted: &BTreeSet<String>,
) -> Result<Correspondence, Violation> {
    equivalence_allowing(original, rewritten, permitted, &BTreeSet::new())
}

struct Check<'a> {
    original: &'a Graph,
    rewritten: &'a Graph,
    values: Values,
    /// By tensor of the rewritten graph: the value of the original that it holds; `None` if it is
    /// none that anybody may read.
    held: Vec<Option<ValueNumber>>,
    /// By tensor of the rewritten graph: does any node read it?
    read: Vec<bool>,
    /// By tensor of the rewritten graph: is it new, and a list of zeros?
    zeros: Vec<bool>,
    /// By tensor of the rewritten graph: a new list of sizes.
    sizes: HashMap<TensorId, Vec<u64>>,
    /// What the original has the same sizes of in every step, once somebody asks.
    numbered: Option<HashSet<ValueNumber>>,
    /// By tensor of the rewritten graph: is it new, and how many elements another tensor has?
    counts: Vec<bool>,
    roles: Vec<Role>,
    /// Which node of the rewritten graph draws the numbers of which node of the original.
    draws: BTreeMap<NodeId, NodeId>,
}

impl Check<'_> {
    /// What leads to the result of a node that draws numbers inside, past barriers. One node draws for one: of two that claim it, the
    /// first finds other numbers than it needs.
    fn find_draws(&mut self, originals: &[Option<NodeId>]) {
        if self.values.drawn.is_empty() {
            return;
        }
        let uses = Uses::of(self.rewritten);
        for &id in self.rewritten.order() {
            let of = originals[id.index()];
            if let Some(of) = of.filter(|of| self.values.drawn.contains_key(of))
                && let Some(compared) = self.maker(&uses, id)
                && let Some(draw) = self.maker(&uses, compared)
            {
                self.draws.insert(draw, of);
            }
        }
    }

    /// The node that makes what this one reads first, not a barrier that hands it on.
    fn maker(&self, uses: &Uses, reader: NodeId) -> Option<NodeId> {
        let mut tensor = self.rewritten.node(reader).input(0)?;
        loop {
            let id = uses.producer(tensor)?;
            let node = self.rewritten.node(id);
            let position = match (node.domain.as_str(), node.op_type.as_str()) {
                ("com.microsoft", "PassThrough") => {
                    node.outputs.iter().position(|&one| one == Some(tensor))?
                }
                ("", "Reshape") => 0,
                _ => return Some(id),
            };
            tensor = node.input(position)?;
        }
    }

    fn original_node(&mut self, id: NodeId, of: NodeId) -> Result<Role, Violation> {
        let (node, original) = (self.rewritten.node(id), self.original.node(of));
        let name = label(self.rewritten, id);
        let changed = |what, expected: String, found: String| {
            let differ = expected != found;
            let node = name.clone();
            differ.then_some(Violation::NodeChanged {
                node,
                what,
                expected,
                found,
            })
        };
        // A name with dots could be that of another domain.
        let named = |node: &Node| match node.op_type.contains('.') {
            true => format!("{:?}", node.op_type),
            false => node.op_type.clone(),
        };
        let operator = |node: &Node| match node.domain.as_str() {
            "" => named(node),
            domain => format!("{domain}.{}", named(node)),
        };
        let list = |graph: &Graph, ids: &[Option<TensorId>]| {
            let name =
                |id: &Option<TensorId>| id.map_or("", |id| &graph.tensor(id).name).to_owned();
            format!("{:?}", ids.iter().map(name).collect::<Vec<_>>())
        };
        let captures = |graph: &Graph, ids: &[TensorId]| {
            let mut names: Vec<_> = ids
                .iter()
                .map(|&id| graph.tensor(id).name.clone())
                .collect();
            names.sort();
            names.dedup();
            format!("{names:?}")
        };
        let checks = [
            changed("name", original.name.clone(), node.name.clone()),
            changed("operator", operator(original), operator(node)),
            changed(
                "attributes",
                attributes(&original.attributes),
                attributes(&node.attributes),
            ),
            changed(
                "outputs",
                list(self.original, &original.outputs),
                list(self.rewritten, &node.outputs),
            ),
            changed(
                "captured tensors",
                captures(self.original, &original.captures),
                captures(self.rewritten, &node.captures),
            ),
            changed(
                "number of inputs",
                original.inputs.len().to_string(),
                node.inputs.len().to_string(),
            ),
        ];
        if let Some(violation) = checks.into_iter().flatten().next() {
            return Err(violation);
        }
        for (position, (&read, &expected)) in node.inputs.iter().zip(&original.inputs).enumerate() {
            let holds = read.and_then(|read| self.held[read.index()]);
            let wanted = expected.map(|tensor| self.values.of[tensor.index()]);
            if holds != wanted || read.is_some() != expected.is_some() {
                let node = name;
                let (expected, found) = (self.quoted(expected), self.found(read));
                return Err(Violation::WrongInput {
                    node,
                    position,
                    expected,
                    found,
                });
            }
        }
        self.buffers_stay(id, original)?;
        for (&written, &of) in node.outputs.iter().zip(&original.outputs) {
            if let (Some(written), Some(of)) = (written, of) {
                self.held[written.index()] = Some(self.values.of[of.index()]);
            }
        }
        Ok(Role::Original(of))
    }

    /// A node that writes what a node of the original without effects writes, in another form.
    fn replacing_node(&mut self, id: NodeId, of: NodeId) -> Option<Role> {
        let (node, original) = (self.rewritten.node(id), self.original.node(of));
        if !self.values.drawn.contains_key(&of) {
            trust::repeatable(original, false).ok()?;
        }
        let renamed = node.name != original.name
            && node.is(&original.domain, &original.op_type)
            && node.writes().count() == original.writes().count();
        if renamed || node.attribute(MARKER).is_some() {
            return None;
        }
        match self.new_node(id).ok()? {
            Role::Copy(by) | Role::Variant(by) => Some(Role::Variant(by)),
            _ => None,
        }
    }

    /// Whoever knows a tensor of the original by name finds its value there.
    fn names_keep_their_values(&self) -> Result<(), Violation> {
        for (id, node) in self.rewritten.listed() {
            for written in node.writes() {
                let tensor = &self.rewritten.tensor(written).name;
                let wanted = self.original.tensor_named(tensor);
                let wanted = wanted.map(|of| self.values.of[of.index()]);
                if wanted.is_some() && self.held[written.index()] != wanted {
                    let (node, tensor) = (label(self.rewritten, id), tensor.clone());
                    return Err(Violation::WrongValue { node, tensor });
                }
            }
        }
        Ok(())
    }

    fn new_node(&mut self, id: NodeId) -> Result<Role, Violation> {
        let node = self.rewritten.node(id);
        if node.is("com.microsoft", "PassThrough") {
            return self.barrier(id);
        }
        if node.is("", "Size") && node.attributes.is_empty() {
            let counted = self.count(id);
            // One whose result is read can be a piece of another form.
            if counted.is_none() || !self.is_known(id) {
                return counted.map_or_else(|| self.release(id), Ok);
            }
        }
        if let Some(role) = self.forgetting(id) {
            return Ok(role);
        }
        let name = label(self.rewritten, id);
        let mut inputs = Vec::new();
        for &read in &node.inputs {
            let value = read.map(|read| self.held[read.index()]);
            if value == Some(None) {
                let why = format!("it reads {}, which no copy may supply", self.found(read));
                return Err(Violation::Unjustified { node: name, why });
            }
            inputs.push(value.flatten());
        }
        let computation = Computation::of(node, inputs);
        if let Some(&of) = self.draws.get(&id)
            && let Some(drawn) = self.values.drawn.get(&of)
            && let (true, &[Some(output)]) = (drawn.by == computation, node.outputs.as_slice())
        {
            self.held[output.index()] = Some(drawn.value);
            return Ok(Role::Variant(of));
        }
        let known = self.values.repeatable.get(&computation).cloned();
        let Some(known) = known.filter(|_| node.captures.is_empty()) else {
            let why = match node.captures.is_empty() {
                true => self.why_unknown(&computation),
                false => "its subgraphs read outer tensors".to_owned(),
            };
            return Err(Violation::Unjustified { node: name, why });
        };
        let original = label(self.original, known.original);
        if let Some(why) = known.forbidden {
            return Err(Violation::MustNotRepeat {
                node: name,
                original,
                why,
            });
        }
        self.buffers_stay(id, self.original.node(known.original))?;
        for position in 0..known.written.len().max(node.outputs.len()) {
            let wanted = known.written.get(position).copied().unwrap_or(false);
            match node.output(position) {
                None if wanted && !trust::optional_output(node, position) => {
                    return Err(Violation::OutputOmitted {
                        node: name,
                        position,
                        original,
                    });
                }
                None => {}
                Some(written) => {
                    let value = known.outputs.get(position).copied().flatten();
                    self.held[written.index()] = value;
                }
            }
        }
        Ok(match known.variant {
            true => Role::Variant(known.original),
            false => Role::Copy(known.original),
        })
    }

    /// A Size for [`Check::least`], which nobody else reads.
    fn count(&mut self, id: NodeId) -> Option<Role> {
        let node = self.rewritten.node(id);
        let (&[Some(_)], &[Some(output)]) = (node.inputs.as_slice(), node.outputs.as_slice())
        else {
            return None;
        };
        let is_output = self.rewritten.outputs.contains(&output);
        if is_output || !self.read[output.index()] || !node.captures.is_empty() {
            return None;
        }
        self.counts[output.index()] = true;
        Some(Role::Barrier)
    }

    /// Zeros, and how many elements tensors have: nothing of that is negative, so the least of it is zero everywhere.
    fn least(&mut self, node: &Node) -> Option<Role> {
        let &[Some(output)] = node.outputs.as_slice() else {
            return None;
        };
        let (counts, others): (Vec<TensorId>, Vec<TensorId>) =
            node.reads().partition(|tensor| self.counts[tensor.index()]);
        let &[zeros] = others.as_slice() else {
            return None;
        };
        let whole = counts.len() + 1 == node.inputs.len() && node.attributes.is_empty();
        if !whole || !node.captures.is_empty() || !self.zeros[zeros.index()] {
            return None;
        }
        self.zeros[output.index()] = true;
        Some(Role::Barrier)
    }

    /// Does a rule say what the node computes?
    fn is_known(&self, id: NodeId) -> bool {
        let node = self.rewritten.node(id);
        let held = |read: &Option<TensorId>| self.held[(*read)?.index()];
        let computation = Computation::of(node, node.inputs.iter().map(held).collect());
        self.values.repeatable.contains_key(&computation)
    }

    /// A list of zeros, or a Reshape to one: zero stands for the dimension of the input. Such a list is constant, the least of
    /// one and of numbers of elements, a Shape of no dimension, which has no number, or made of such lists. And a constant list of the sizes
    /// that a tensor has in every step, or a Reshape of it to that.
    fn forgetting(&mut self, id: NodeId) -> Option<Role> {
        let node = self.rewritten.node(id);
        let &[Some(output)] = node.outputs.as_slice() else {
            return None;
        };
        match (node.inputs.as_slice(), node.attributes.as_slice()) {
            ([], [_]) if node.is("", "Constant") => {
                let values = node.ints("value_ints")?;
                self.zeros[output.index()] = values.iter().all(|&value| value == 0);
                // Other forms have zeros as well.
                let known = self
                    .values
                    .repeatable
                    .get(&Computation::of(node, Vec::new()));
                let known = known.filter(|known| known.forbidden.is_none());
                self.held[output.index()] = known.and_then(|known| *known.outputs.first()?);
                let sizes = values
                    .iter()
                    .map(|&size| u64::try_from(size).ok().filter(|&size| size > 0));
                let sizes = sizes.collect::<Option<Vec<u64>>>();
                let lists = sizes
                    .map(|sizes| drop(self.sizes.insert(output, sizes)))
                    .is_some();
                (lists || self.zeros[output.index()]).then_some(Role::Barrier)
            }
            (&[Some(data), Some(shape)], []) if node.is("", "Reshape") => {
                let [from, to] = [data, shape].map(|id| self.rewritten.tensor(id).shape.as_ref());
                let all = from.map(|from| vec![from.len() as u64]).as_ref() == to;
                let is_same = from.is_some_and(|from| self.sizes.get(&shape) == Some(from));
                let forwards = self.zeros[shape.index()] || is_same && self.is_numbered(data);
                if !all || !forwards {
                    return None;
                }
                self.held[output.index()] = self.held[data.index()];
                Some(Role::Barrier)
            }
            (&[Some(_)], _) if node.is("", "Shape") => {
                let bounds = ["start", "end"].map(|name| node.int(name));
                let is_empty = node.attributes.len() == 2 && bounds == [Some(0); 2];
                let is_empty = is_empty && !self.is_known(id);
                self.zeros[output.index()] = is_empty;
                is_empty.then_some(Role::Barrier)
            }
            (parts, [_]) if node.is("", "Concat") && node.int("axis") == Some(0) => {
                let zeros = |part: &Option<TensorId>| part.is_some_and(|id| self.zeros[id.index()]);
                let all = parts.iter().all(zeros) && !self.is_known(id);
                self.zeros[output.index()] = all;
                all.then_some(Role::Barrier)
            }
            _ if node.is("", "Min") => self.least(node),
            _ => None,
        }
    }

    /// Does the tensor hold what has the same sizes in every step?
    fn is_numbered(&mut self, tensor: TensorId) -> bool {
        let numbered = self.numbered.get_or_insert_with(|| {
            let fixed = self
                .original
                .fixed_shapes()
                .into_iter()
                .zip(&self.values.of);
            fixed
                .filter(|(is_fixed, _)| *is_fixed)
                .map(|(_, &of)| of)
                .collect()
        });
        self.held[tensor.index()].is_some_and(|held| numbered.contains(&held))
    }

    fn barrier(&mut self, id: NodeId) -> Result<Role, Violation> {
        let node = self.rewritten.node(id);
        let whole = node.inputs.iter().chain(&node.outputs).all(Option::is_some);
        let attributes = node
            .attributes
            .iter()
            .all(|attribute| attribute.name == MARKER);
        // The runtime aborts if there are fewer outputs than inputs or one has no name.
        if !whole
            || !attributes
            || node.inputs.is_empty()
            || node.inputs.len() != node.outputs.len()
        {
            return Err(Violation::BrokenBarrier {
                node: label(self.rewritten, id),
            });
        }
        for (input, output) in node.inputs.iter().zip(&node.outputs) {
            if let (Some(input), Some(output)) = (input, output) {
                self.held[output.index()] = self.held[input.index()];
                self.zeros[output.index()] = self.zeros[input.index()];
            }
        }
        Ok(Role::Barrier)
    }

    /// Whatever a Size without a reader reads, it changes nothing.
    fn release(&self, id: NodeId) -> Result<Role, Violation> {
        let node = self.rewritten.node(id);
        let harmless = node.captures.is_empty()
            && node.inputs.len() == 1
            && node.writes().all(|tensor| {
                !self.rewritten.outputs.contains(&tensor) && !self.read[tensor.index()]
            });
        match harmless {
            true => Ok(Role::Release),
            false => Err(Violation::BrokenRelease {
                node: label(self.rewritten, id),
            }),
        }
    }

    /// What a node updates in place must be what the original does, not another tensor of the same value. A copy of
    /// BatchNormInternal writes back the statistics that it reads.
    fn buffers_stay(&self, id: NodeId, original: &Node) -> Result<(), Violation> {
        let node = self.rewritten.node(id);
        for position in trust::updated_inputs(node) {
            let found = self.found(node.input(position));
            let expected = self.quoted(original.input(position));
            if found != expected {
                let node = label(self.rewritten, id);
                return Err(Violation::WrongBuffer {
                    node,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    /// The nearest thing that the original computes.
    fn why_unknown(&self, computation: &Computation) -> String {
        let mut alike = false;
        for (id, node) in self.original.listed() {
            if node.domain != computation.domain || node.op_type != computation.op_type {
                continue;
            }
            alike = true;
            let read = |tensor: &Option<TensorId>| tensor.map(|t| self.values.of[t.index()]);
            let theirs = Computation::of(node, node.inputs.iter().map(read).collect());
            let name = label(self.original, id);
            if theirs.inputs == computation.inputs {
                let lacks = |sorted: &[(String, String)], one: &&(String, String)| {
                    sorted.binary_search(one).is_err()
                };
                let (here, there) = (&theirs.attributes, &computation.attributes);
                let differs = here.iter().find(|a| lacks(there, a));
                let differs = differs.or_else(|| there.iter().find(|a| lacks(here, a)));
                let which = differs.map_or("rest", |(name, _)| name);
                return format!("it reads what {name} reads, but its {which} differs");
            }
        }
        match alike {
            true => "no node of the original with this operator reads these values".to_owned(),
            false => "the original does not have this operator".to_owned(),
        }
    }

    /// The runtime does not load a file in which two nodes have the same name.
    fn new_names_are_free(&self) -> Result<(), Violation> {
        let mut bearers: BTreeMap<&str, usize> = BTreeMap::new();
        for node in self.rewritten.nodes() {
            *bearers.entry(&node.name).or_default() += 1;
        }
        for (id, node) in self.rewritten.listed() {
            let is_new = matches!(
                self.roles[id.index()],
                Role::Copy(_) | Role::Variant(_) | Role::Barrier
            );
            if is_new && !node.name.is_empty() && bearers[node.name.as_str()] > 1 {
                let node = label(self.rewritten, id);
                return Err(Violation::NameTaken { node });
            }
        }
        Ok(())
    }

    fn every_new_node_is_read(&self) -> Result<(), Violation> {
        // What the original writes as well is as useful here as it is there.
        let names = self
            .rewritten
            .tensor_ids()
            .map(|id| &self.rewritten.tensor(id).name);
        let known = names.map(|name| self.original.tensor_named(name).is_some());
        let mut read: Vec<bool> = known.collect();
        let is_release = |id: NodeId| self.roles[id.index()] == Role::Release;
        let nodes = self.rewritten.listed();
        for (_, node) in nodes.filter(|&(id, _)| !is_release(id)) {
            for tensor in node.reads() {
                read[tensor.index()] = true;
            }
        }
        for (id, node) in self.rewritten.listed() {
            let is_new = matches!(self.roles[id.index()], Role::Copy(_) | Role::Barrier);
            if is_new && !node.writes().any(|tensor| read[tensor.index()]) {
                let node = label(self.rewritten, id);
                return Err(Violation::Unused { node });
            }
        }
        Ok(())
    }

    /// The runtime runs no graph in which a YieldOp reads what a PassThrough forwards.
    fn no_barrier_hands_over(&self) -> Result<(), Violation> {
        let mut writer: BTreeMap<TensorId, NodeId> = BTreeMap::new();
        for (id, node) in self.rewritten.listed() {
            if self.roles[id.index()] == Role::Barrier {
                writer.extend(node.writes().map(|tensor| (tensor, id)));
            }
        }
        for (id, node) in self.rewritten.listed() {
            if node.is("com.microsoft", "YieldOp")
                && let Some(&barrier) = node.reads().find_map(|tensor| writer.get(&tensor))
            {
                return Err(Violation::BarrierHandsOver {
                    node: label(self.rewritten, barrier),
                    reader: label(self.rewritten, id),
                });
            }
        }
        Ok(())
    }

    /// A wrong type or shape in the file would mislead the runtime's memory planner.
    fn types(&self) -> Result<(), Violation> {
        for id in self.rewritten.tensor_ids() {
            let tensor = self.rewritten.tensor(id);
            let value = match self.original.tensor_named(&tensor.name) {
                Some(same_name) => Some(self.values.of[same_name.index()]),
                None => self.held[id.index()],
            };
            let Some(value) = value else {
                continue;
            };
            let (element, shape) = &self.values.types[value.0 as usize];
            let elements = element.zip(tensor.element).is_none_or(|(a, b)| a == b);
            let both = shape.as_ref().zip(tensor.shape.as_ref());
            let shapes = both.is_none_or(|(a, b)| a == b);
            if !elements || !shapes {
                return Err(Violation::WrongType {
                    tensor: tensor.name.clone(),
                    expected: type_and_shape(*element, shape),
                    found: type_and_shape(tensor.element, &tensor.shape),
                });
            }
        }
        Ok(())
    }

    fn quoted(&self, tensor: Option<TensorId>) -> String {
        quoted(self.original, tensor)
    }

    fn found(&self, tensor: Option<TensorId>) -> String {
        quoted(self.rewritten, tensor)
    }
}

fn quoted(graph: &Graph, tensor: Option<TensorId>) -> String {
    tensor.map_or("nothing".to_owned(), |tensor| {
        format!("\"{}\"", graph.tensor(tensor).name)
    })
}

fn attributes(attributes: &[Attribute]) -> String {
    let mut all: Vec<String> = attributes
        .iter()
        .filter(|a| a.name != ALGORITHM)
        .map(|a| format!("{} = {}", a.name, exact(&a.value)))
        .collect();
    all.sort();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    }
}
