//! For tests only: random training graphs, and slow answers that are right by definition.

mod backward;
mod forward;
mod graphs;
mod heads;
mod layers;
mod random;

pub use graphs::random_training_graph;
pub use random::SplitMix64;
