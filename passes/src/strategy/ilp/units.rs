//! A training graph as the 0-1 programs see it: a sequence of *units*, intervals of the order of
//! first computations. A unit is computed as a whole, and what others read of it is kept or freed
//! as a whole. Small graphs have one unit for every node with the nodes that only rename its
//! results; larger ones are coarsened, the forward part and the backward part each for itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::analysis::recompute::only_aliases;
use crate::bytes::Bytes;
use crate::graph::{NodeId, TensorId, TensorKind, Uses};
use crate::operators::{self, Recompute};
use crate::plan::Plan;
use crate::runtime::liveness::TENSOR;
use crate::strategy::segments::is_allowed;
use crate::strategy::{ForwardPart, Task};

/// An interval of the order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Unit {
    /// In the order in which they run.
    pub nodes: Vec<NodeId>,
    /// By node: bytes that are there while it runs, its results and its workspace included, without
    /// what other units hand out.
    pub needs: Vec<f64>,
    /// The units whose results it reads, ascending; all before itself.
    pub reads: Vec<usize>,
    /// Bytes of the results that other units read and that a copy computes as well.
    pub bytes: f64,
    /// Bytes that it needs while it runs, besides what it reads and its results.
    pub transient: f64,
    /// Nanoseconds of a copy.
    pub time: f64,
    /// May it be computed again?
    pub recomputable: bool,
    /// The earlier unit whose only result it takes over, if nobody else wants that.
    pub overwrites: Option<usize>,
}

impl Unit {
    /// May it be computed again, for somebody who reads it?
    pub(super) fn repeats(&self) -> bool {
        self.recomputable && self.bytes > 0.0
    }
}

/// The units of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Units {
    /// In the order of first computations.
    pub units: Vec<Unit>,
    /// So many of them, the first ones, are the forward part.
    pub forward: usize,
    /// By unit: bytes that are there while it runs for the first time and that no decision changes:
    /// graph outputs, and what only originals compute.
    pub standing: Vec<f64>,
    /// How many units there would be without coarsening.
    pub fine: usize,
    /// Nanoseconds of the unmodified step.
    pub step: f64,
    /// By tensor: the unit that computes it, if it is kept and freed with that unit's results.
    pub unit_of: Vec<Option<usize>>,
    /// By tensor: bytes that count in the unit which writes it, 0 for what stands and other names.
    pub written: Vec<f64>,
    /// By unit and node of it: the units that it reads.
    reads_of: BTreeMap<NodeId, BTreeSet<usize>>,
}

/// What one node writes, counted once for all its names.
struct Content {
    tensor: TensorId,
    bytes: f64,
    /// The item that writes it, and its node's place in the sequence of nodes.
    item: usize,
    first: usize,
    /// The last reader's place in the sequence of nodes, and its item.
    last: usize,
    last_item: usize,
    /// Does a copy compute it as well?
    supplied: bool,
}

impl Units {
    /// At most `most` units in each part; `None` if the order does not fall into a forward and a
    /// backward part. O(nodes · log(nodes) + merged nodes).
    pub(super) fn of(task: &Task<'_>, most: [usize; 2]) -> Option<Units> {
        let (items, forward) = items(task);
        let order: Vec<NodeId> = items.iter().flatten().copied().collect();
        if !is_allowed(task, &ForwardPart::of(task), &order) {
            return None;
        }
        let table = Table::of(task, &items);
        let mut bounds = table.merged(0, forward, most[0], &|low, middle, high| {
            table.tied(low, middle, high)
        });
        let forward_units = bounds.len();
        bounds.extend(
            table.merged(forward, items.len(), most[1], &|low, _, high| {
                (table.touched(low, high), 0.0)
            }),
        );
        Some(table.units(task, &items, &bounds, forward_units))
    }

    /// What every schedule needs: the results, inputs and inside of one unit.
    pub(super) fn structural(&self) -> f64 {
        let needs = self
            .units
            .iter()
            .zip(&self.standing)
            .map(|(unit, standing)| {
                let reads = unit.reads.iter().map(|&from| self.units[from].bytes);
                unit.bytes + unit.transient + standing + reads.sum::<f64>()
            });
        needs.fold(0.0, f64::max)
    }

    /// The forward units that the unit reads whatever is chosen for the nodes that have a choice.
    pub(super) fn always_read(&self, unit: usize, chooses: impl Fn(NodeId) -> bool) -> Vec<usize> {
        let nodes = self.units[unit].nodes.iter().filter(|id| !chooses(**id));
        let reads: BTreeSet<usize> = nodes.flat_map(|&id| self.read_by(id)).collect();
        reads
            .into_iter()
            .filter(|&from| from < self.forward)
            .collect()
    }

    /// The units that the node reads, other than its own.
    pub(super) fn read_by(&self, node: NodeId) -> impl Iterator<Item = usize> + '_ {
        self.reads_of.get(&node).into_iter().flatten().copied()
    }

    /// The plan that runs these units one after another; each occurs.
    pub(super) fn plan(&self, task: &Task<'_>, runs: &[usize]) -> Plan {
        let nodes = runs.iter().flat_map(|&unit| &self.units[unit].nodes);
        plan(task, nodes.copied())
    }
}

/// The plan that runs these nodes one after another, but none twice that may not; each occurs.
pub(super) fn plan(task: &Task<'_>, nodes: impl Iterator<Item = NodeId>) -> Plan {
    let mut done = vec![false; task.graph.node_count()];
    let once = |id: &NodeId| {
        let again = std::mem::replace(&mut done[id.index()], true);
        !again || may_repeat(task, *id)
    };
    Plan {
        sequence: nodes.filter(once).collect(),
        ..Plan::default()
    }
    .without_unread_copies(task.graph, task.recomputation)
}

fn may_repeat(task: &Task<'_>, id: NodeId) -> bool {
    !matches!(task.recomputation.rule(id), Recompute::Never(_))
        && !task.graph.node(id).is("", "Constant")
}

/// Nodes with their aliases, in the order of first computations, the forward part first; and how
/// many of them it has.
fn items(task: &Task<'_>) -> (Vec<Vec<NodeId>>, usize) {
    let part = ForwardPart::of(task);
    let mut items: Vec<Vec<NodeId>> = Vec::new();
    for &id in task.order {
        if part.backward[id.index()] {
            continue;
        }
        match part.vertex_of[id.index()] {
            Some(v) if part.vertices[v as usize].nodes[0] == id => {
                items.push(part.vertices[v as usize].nodes.clone());
            }
            Some(_) => {}
            None => items.push(vec![id]),
        }
    }
    let forward = items.len();
    let backward = |id: &&NodeId| part.backward[id.index()];
    items.extend(task.order.iter().filter(backward).map(|&id| vec![id]));
    (items, forward)
}

/// What is written where, and read until when.
struct Table {
    contents: Vec<Content>,
    /// By item: its contents.
    of_item: Vec<Vec<usize>>,
    /// By tensor: its content.
    of_tensor: Vec<Option<usize>>,
    /// By item: bytes that are read or written by the items before it.
    touched: Vec<f64>,
    /// By item: may any of its nodes be repeated?
    recomputable: Vec<bool>,
}

impl Table {
    fn of(task: &Task<'_>, items: &[Vec<NodeId>]) -> Table {
        let graph = task.graph;
        let mut table = Table {
            contents: Vec::new(),
            of_item: vec![Vec::new(); items.len()],
            of_tensor: vec![None; graph.tensor_count()],
            touched: vec![0.0],
            recomputable: Vec::new(),
        };
        let mut place = 0;
        for (item, nodes) in items.iter().enumerate() {
            let mut touched = 0.0;
            for &id in nodes {
                let node = graph.node(id);
                for tensor in node.reads() {
                    if let Some(content) = table.of_tensor[tensor.index()] {
                        let content = &mut table.contents[content];
                        (content.last, content.last_item) = (place, item);
                        touched += content.bytes;
                    }
                }
                let aliases = operators::aliases(node);
                for (position, tensor) in node.outputs.iter().enumerate() {
                    let Some(tensor) = *tensor else { continue };
                    let kept = graph.outputs.contains(&tensor);
                    let alias = aliases.iter().find(|alias| alias.0 == position && !kept);
                    table.of_tensor[tensor.index()] = match alias {
                        Some(alias) => node
                            .input(alias.1)
                            .and_then(|input| table.of_tensor[input.index()]),
                        None if node.is("", "Constant") => None,
                        None if graph.tensor(tensor).kind != TensorKind::Value => None,
                        None => {
                            let last = if kept { usize::MAX } else { place };
                            let bytes = graph.tensor(tensor).bytes().unwrap_or(Bytes::ZERO);
                            table.of_item[item].push(table.contents.len());
                            table.contents.push(Content {
                                tensor,
                                bytes: (bytes + TENSOR).0 as f64,
                                item,
                                first: place,
                                last,
                                last_item: if kept { items.len() } else { item },
                                supplied: task.recomputation.supplies(id, position, tensor),
                            });
                            Some(table.contents.len() - 1)
                        }
                    };
                    touched += table.of_tensor[tensor.index()]
                        .map_or(0.0, |content| table.contents[content].bytes);
                }
                place += 1;
            }
            table.touched.push(table.touched[item] + touched);
            let repeats = nodes.iter().any(|&id| may_repeat(task, id));
            table.recomputable.push(repeats);
        }
        // What a graph output's readers do does not end it.
        for content in &mut table.contents {
            if graph.outputs.contains(&content.tensor) {
                (content.last, content.last_item) = (usize::MAX, items.len());
            }
        }
        table
    }

    /// Bytes that the items from `low` below `middle` hand to others than the items below `high`.
    fn handed_out(&self, low: usize, middle: usize, high: usize) -> f64 {
        let contents = self.of_item[low..middle].iter().flatten();
        let contents = contents.map(|&content| &self.contents[content]);
        contents
            .filter(|content| content.supplied && content.last_item >= high)
            .map(|content| content.bytes)
            .sum()
    }

    /// What is lost when two intervals become one unit: the smaller of their results cannot be
    /// kept without the larger.
    fn tied(&self, low: usize, middle: usize, high: usize) -> (f64, f64) {
        let first = self.handed_out(low, middle, high);
        let second = self.handed_out(middle, high, high);
        let rule = |from: usize, to: usize| self.recomputable[from..to].iter().all(|&may| may);
        let apart = rule(low, middle) != rule(middle, high) && first + second > 0.0;
        let lost = if apart { f64::MAX } else { first.min(second) };
        (lost, self.touched(low, high))
    }

    fn touched(&self, low: usize, high: usize) -> f64 {
        self.touched[high] - self.touched[low]
    }

    /// Intervals of `low..high`, at most `most` of them, by merging neighbours of the least loss.
    fn merged(
        &self,
        low: usize,
        high: usize,
        most: usize,
        loss: &dyn Fn(usize, usize, usize) -> (f64, f64),
    ) -> Vec<(usize, usize)> {
        let count = high - low;
        // By place: the end of the interval that starts there, and the start of the one before.
        let mut end: Vec<usize> = (low..high).map(|start| start + 1).collect();
        let mut before: Vec<Option<usize>> = (low..high)
            .map(|start| (start > low).then(|| start - 1))
            .collect();
        let mut alive = vec![true; count];
        let mut heap = BinaryHeap::new();
        let offer = |heap: &mut BinaryHeap<_>, start: usize, end: &[usize]| {
            let middle = end[start - low];
            if middle < high {
                let stop = end[middle - low];
                let (lost, size) = loss(start, middle, stop);
                // Not negative and finite: their bits have their order.
                heap.push(Reverse((
                    lost.to_bits(),
                    size.to_bits(),
                    start,
                    middle,
                    stop,
                )));
            }
        };
        for start in low..high {
            offer(&mut heap, start, &end);
        }
        let mut left = count;
        while left > most.max(1) {
            let Some(Reverse((.., start, middle, stop))) = heap.pop() else {
                break;
            };
            let current = alive[start - low]
                && end[start - low] == middle
                && alive[middle - low]
                && end[middle - low] == stop;
            if !current {
                continue;
            }
            alive[middle - low] = false;
            end[start - low] = stop;
            if stop < high {
                before[stop - low] = Some(start);
            }
            left -= 1;
            offer(&mut heap, start, &end);
            if let Some(previous) = before[start - low] {
                offer(&mut heap, previous, &end);
            }
        }
        let starts = (low..high).filter(|start| alive[start - low]);
        starts.map(|start| (start, end[start - low])).collect()
    }

    fn units(
        &self,
        task: &Task<'_>,
        items: &[Vec<NodeId>],
        bounds: &[(usize, usize)],
        forward: usize,
    ) -> Units {
        let mut unit_of_item = vec![0; items.len()];
        for (unit, &(low, high)) in bounds.iter().enumerate() {
            unit_of_item[low..high].fill(unit);
        }
        let of_item = |item: usize| unit_of_item.get(item).copied();
        let mut units = Units {
            units: Vec::new(),
            forward,
            standing: vec![0.0; bounds.len()],
            fine: items.len(),
            step: task.costs.iter().map(|cost| cost.time.0 as f64).sum(),
            unit_of: vec![None; self.of_tensor.len()],
            written: vec![0.0; self.of_tensor.len()],
            reads_of: BTreeMap::new(),
        };
        for content in self.contents.iter().filter(|content| content.supplied) {
            units.written[content.tensor.index()] = content.bytes;
        }
        for (tensor, content) in self.of_tensor.iter().enumerate() {
            let content = content.map(|content| &self.contents[content]);
            let outside = content.filter(|content| {
                content.supplied && of_item(content.last_item) != of_item(content.item)
            });
            units.unit_of[tensor] = outside.and_then(|content| of_item(content.item));
        }
        let mut unit_of_node = vec![None; task.graph.node_count()];
        for (item, nodes) in items.iter().enumerate() {
            for id in nodes {
                unit_of_node[id.index()] = of_item(item);
            }
        }
        let uses = Uses::of(task.graph);
        for &id in items.iter().flatten() {
            let unit = unit_of_node[id.index()];
            let from = task.graph.node(id).reads().flat_map(|tensor| {
                let writer = uses
                    .producer(tensor)
                    .filter(|&p| !task.graph.node(p).is("", "Constant"));
                let content =
                    self.of_tensor[tensor.index()].and_then(|at| of_item(self.contents[at].item));
                [
                    writer.and_then(|writer| unit_of_node[writer.index()]),
                    content,
                ]
            });
            let from: BTreeSet<usize> = from.flatten().filter(|&from| Some(from) != unit).collect();
            units.reads_of.insert(id, from);
        }
        let mut place = 0;
        for (unit, &(low, high)) in bounds.iter().enumerate() {
            let nodes: Vec<NodeId> = items[low..high].iter().flatten().copied().collect();
            let reads: BTreeSet<usize> = nodes.iter().flat_map(|&id| units.read_by(id)).collect();
            let repeated = nodes.iter().filter(|&&id| may_repeat(task, id));
            let time = repeated.map(|id| task.costs[id.index()].time.0 as f64);
            for content in self.of_item[low..high].iter().flatten() {
                let content = &self.contents[*content];
                let last = of_item(content.last_item).unwrap_or(bounds.len() - 1);
                if !content.supplied {
                    // Copies may read it as late as anything that it is for.
                    let last = if last < forward {
                        bounds.len() - 1
                    } else {
                        last
                    };
                    for standing in &mut units.standing[unit..=last] {
                        *standing += content.bytes;
                    }
                }
            }
            let needs = self.needs(task, (low, high), &nodes, place);
            let bytes = self.handed_out(low, high, high);
            let most = needs.iter().copied().fold(0.0, f64::max);
            units.units.push(Unit {
                reads: reads.into_iter().collect(),
                bytes,
                transient: (most - bytes).max(0.0),
                needs,
                time: time.sum(),
                recomputable: self.recomputable[low..high].iter().any(|&may| may),
                overwrites: self
                    .overwritten(task, &nodes)
                    .filter(|content| self.handed_out_alone(content, bounds, &unit_of_item))
                    .map(|content| unit_of_item[content.item])
                    .filter(|&from| from != unit),
                nodes,
            });
            place += units.units[unit].nodes.len();
        }
        units
    }

    /// What the only node of a unit overwrites where the runtime may let it.
    fn overwritten(&self, task: &Task<'_>, nodes: &[NodeId]) -> Option<&Content> {
        let names = |id: &&NodeId| !only_aliases(task.graph, **id);
        let mut computing = nodes.iter().filter(names);
        let node = task.graph.node(*computing.next()?);
        if computing.next().is_some() {
            return None;
        }
        let provider = task.device.provider;
        let pairs = operators::in_place(task.graph, node, provider).into_iter();
        let mut inputs = pairs.filter(|pair| pair.0 == 0).map(|pair| pair.1);
        let content = self.of_tensor[node.input(inputs.next()?)?.index()]?;
        Some(&self.contents[content])
    }

    /// Is it all that its unit hands to others?
    fn handed_out_alone(
        &self,
        content: &Content,
        bounds: &[(usize, usize)],
        unit_of_item: &[usize],
    ) -> bool {
        let (low, high) = bounds[unit_of_item[content.item]];
        content.supplied && self.handed_out(low, high, high) == content.bytes
    }

    /// By node: what is there while it runs, its workspace included. `place` is that of the first.
    fn needs(
        &self,
        task: &Task<'_>,
        (low, high): (usize, usize),
        nodes: &[NodeId],
        place: usize,
    ) -> Vec<f64> {
        let mut change = vec![0.0; nodes.len() + 1];
        for &content in self.of_item[low..high].iter().flatten() {
            let content = &self.contents[content];
            if !content.supplied {
                continue;
            }
            let outside = content.last_item >= high;
            let end = if outside {
                nodes.len()
            } else {
                (content.last + 1).saturating_sub(place).min(nodes.len())
            };
            let start = content.first - place;
            change[start] += content.bytes;
            change[end.max(start)] -= content.bytes;
        }
        let mut live = 0.0;
        let needs = nodes.iter().zip(change).map(|(id, change)| {
            live += change;
            live + task.costs[id.index()].workspace.0 as f64
        });
        needs.collect()
    }
}
