//! The settings of ONNX Runtime that decide how a step uses memory.

/// Which of the runtime's two ways to plan memory ahead are on (`SessionOptions`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// `enable_mem_reuse`: a tensor may take over the memory of a dead one that has its shape.
    pub reuse: bool,
    /// `enable_mem_pattern`: whatever has a shape before the step begins lies in one block that is
    /// there for the whole step.
    pub pattern: bool,
}

impl RuntimeSettings {
    /// What a session does when nobody changes anything; `onnxruntime.training.api.Module` offers
    /// no way to.
    pub const DEFAULT: RuntimeSettings = RuntimeSettings {
        reuse: true,
        pattern: true,
    };

    /// Both off.
    pub const LEAN: RuntimeSettings = RuntimeSettings {
        reuse: false,
        pattern: false,
    };

    /// As `--runtime-settings` calls them.
    pub fn name(self) -> &'static str {
        match self {
            RuntimeSettings::LEAN => "lean",
            _ => "default",
        }
    }
}
