//! What a transform is, and how one is run.

use crate::graph::Graph;

/// Whether a pass altered the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The graph is what it was.
    No,
    /// Something was altered.
    Yes,
}

/// One rewriting of a graph. What a pass needs to know is in its fields;
/// its documentation says what it **does**, **needs** and **keeps**.
pub trait Pass {
    /// Why the pass can fail.
    type Error: std::error::Error;

    /// The pass's name, in kebab case, as reports and dumps show it.
    fn name(&self) -> &'static str;

    /// Rewrites `graph`, or says why not; after an error the graph must not be used.
    fn run(&self, graph: &mut Graph) -> Result<Changed, Self::Error>;
}
