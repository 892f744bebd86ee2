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

    /// No memory pattern: all that can be switched off in languages other than Python.
    pub const NO_PATTERN: RuntimeSettings = RuntimeSettings {
        reuse: true,
        pattern: false,
    };

    /// Those that `--runtime-settings` offers.
    pub const ALL: [RuntimeSettings; 3] = [
        RuntimeSettings::DEFAULT,
        RuntimeSettings::NO_PATTERN,
        RuntimeSettings::LEAN,
    ];

    /// As `--runtime-settings` calls them.
    pub fn name(self) -> &'static str {
        match self {
            RuntimeSettings::LEAN => "lean",
            RuntimeSettings::NO_PATTERN => "no-pattern",
            _ => "default",
        }
    }
}
