//! How far the runtime optimizes a graph before it runs it.

/// `SessionOptions.graph_optimization_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The graph runs as it is.
    DisableAll,
    /// What is redundant goes.
    EnableBasic,
    /// Nodes are fused.
    EnableExtended,
    /// What every session uses unless told otherwise.
    EnableAll,
}

impl Level {
    /// What ONNX Runtime calls it.
    pub fn name(self) -> &'static str {
        match self {
            Level::DisableAll => "ORT_DISABLE_ALL",
            Level::EnableBasic => "ORT_ENABLE_BASIC",
            Level::EnableExtended => "ORT_ENABLE_EXTENDED",
            Level::EnableAll => "ORT_ENABLE_ALL",
        }
    }
}
