//! For tests only: random training graphs, and slow answers that are right by definition.

mod backward;
mod brute_force;
mod chain;
mod forward;
mod further;
mod graphs;
mod heads;
mod layers;
mod mixed;
mod peak;
#[cfg(test)]
mod pipeline;
mod random;
mod unknown;
mod unroll;

pub use brute_force::{Optimum, brute_force};
pub use chain::{UniformChain, fewest_advances};
pub use graphs::{random_training_graph, strange_training_graph, varied_training_graph};
pub use mixed::{in_16_bits, random_mixed_graph};
pub use peak::naive_peak;
pub use random::{Draw, SplitMix64};
pub use unknown::{unknown_costs, unknown_graph};
pub use unroll::unroll;
