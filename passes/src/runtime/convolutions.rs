//! How a device computes convolutions: by which of cuDNN's algorithms, and what is known of single ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bytes::Bytes;
use crate::cost::Nanos;
use crate::graph::{AttributeValue, Graph, Node};
use crate::operators::algorithms::Direction;

/// One algorithm on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// As the table names it.
    pub name: &'static str,
    /// How long it takes.
    pub time: Nanos,
    /// What it allocates besides its results.
    pub workspace: Bytes,
}

/// One product of a convolution; all nodes with an equal one take equally long.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Product {
    /// The node's operator.
    pub operator: String,
    /// Which of its products.
    pub direction: Direction,
    /// The shapes of the node's inputs.
    pub inputs: Vec<Vec<u64>>,
    /// Those attributes that are given.
    pub attributes: ProductAttributes,
    /// ONNX's name of the first input's type.
    pub element_type: String,
}

/// Attributes that change what a convolution has to do, as far as the node has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductAttributes {
    /// `auto_pad`.
    pub auto_pad: Option<String>,
    /// `pads`.
    pub pads: Option<Vec<i64>>,
    /// `strides`.
    pub strides: Option<Vec<i64>>,
    /// `dilations`.
    pub dilations: Option<Vec<i64>>,
    /// `group`.
    pub group: Option<i64>,
}

impl Product {
    /// What `node` computes in `direction`. Needs concrete shapes.
    pub fn of(graph: &Graph, node: &Node, direction: Direction) -> Product {
        let element = node.reads().find_map(|id| graph.tensor(id).element);
        let list = |name| node.ints(name).map(<[i64]>::to_vec);
        let auto_pad = match node.attribute("auto_pad") {
            Some(AttributeValue::String(name)) => Some(String::from_utf8_lossy(name).into_owned()),
            _ => None,
        };
        Product {
            operator: node.op_type.clone(),
            direction,
            inputs: node
                .reads()
                .filter_map(|id| graph.tensor(id).shape.clone())
                .collect(),
            attributes: ProductAttributes {
                auto_pad,
                pads: list("pads"),
                strides: list("strides"),
                dilations: list("dilations"),
                group: node.int("group"),
            },
            element_type: element
                .map_or("unknown", |element| element.name())
                .to_owned(),
        }
    }
}

/// Figures that take the place of the model's, at least one algorithm for each product.
pub type ConvolutionTable = BTreeMap<Product, Vec<Timed>>;

/// How a device computes convolutions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Convolutions {
    /// How the provider chooses.
    pub choice: AlgorithmChoice,
    /// What is known of single products; for the rest there is the model.
    pub table: Arc<ConvolutionTable>,
}

/// How ONNX Runtime's CUDA provider chooses an algorithm, by its options (read in the code of 1.19; [`AlgorithmChoice::Graph`] was
/// measured in 1.31.1).
///
/// The default, an exhaustive search with as much workspace as there is, is not among them: in the first
/// step it allocates the largest workspace of any algorithm to try all, which no budget could hold for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlgorithmChoice {
    /// cuDNN says which is the fastest, whatever it allocates.
    #[default]
    Heuristic,
    /// All that need at most [`AlgorithmChoice::LIMIT`] are tried, in a workspace of that size.
    Limited,
    /// Always [`Direction::fixed`].
    Fixed,
    /// Left to cuDNN's graph interface, as builds without training do: [`channels_last`](crate::operators::algorithms::channels_last). What
    /// the other options make of them there took up to 200 times as long (DEFAULT), or other algorithms from step to step (EXHAUSTIVE);
    /// how much workspace there may be is not asked for any more.
    Graph,
}

impl AlgorithmChoice {
    /// The workspace of a search that is not to take more.
    pub const LIMIT: Bytes = Bytes(32 << 20);

    /// Those of the release that trains, the fastest first.
    pub const TRAINING: [AlgorithmChoice; 3] = [
        AlgorithmChoice::Heuristic,
        AlgorithmChoice::Limited,
        AlgorithmChoice::Fixed,
    ];

    /// The provider's options, by name.
    pub fn provider_options(self) -> [(&'static str, &'static str); 2] {
        let (search, max) = match self {
            AlgorithmChoice::Heuristic | AlgorithmChoice::Graph => ("HEURISTIC", "1"),
            AlgorithmChoice::Limited => ("EXHAUSTIVE", "0"),
            AlgorithmChoice::Fixed => ("DEFAULT", "1"),
        };
        [
            ("cudnn_conv_algo_search", search),
            ("cudnn_conv_use_max_workspace", max),
        ]
    }

    /// Does each node try algorithms for itself? Those with equal products may then take different ones.
    pub fn tries(self) -> bool {
        self == AlgorithmChoice::Limited
    }

    /// Which of `all`, the fastest first, is taken.
    pub fn takes(self, direction: Direction, all: &[Timed]) -> Option<Timed> {
        let mut all = all.iter();
        let taken = match self {
            AlgorithmChoice::Heuristic | AlgorithmChoice::Graph => all.next(),
            AlgorithmChoice::Limited => all.find(|one| one.workspace <= AlgorithmChoice::LIMIT),
            AlgorithmChoice::Fixed => all.find(|one| one.name == direction.fixed()),
        };
        taken.copied()
    }

    /// Its time; what is allocated for it, the search included.
    pub(super) fn of(self, direction: Direction, all: &[Timed]) -> Option<(Nanos, Bytes)> {
        let taken = self.takes(direction, all)?;
        let workspace = match self.tries() {
            true => AlgorithmChoice::LIMIT,
            false => taken.workspace,
        };
        Some((taken.time, workspace))
    }
}

/// As [`ConvolutionTable`] has them.
pub fn fastest_first(mut all: Vec<Timed>) -> Vec<Timed> {
    all.sort_by_key(|one| (one.time, one.workspace));
    all
}
