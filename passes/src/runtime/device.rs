//! A device, and what of its rates the runtime's kernels reach.

use super::convolutions::Convolutions;
use crate::cost::Nanos;
use crate::graph::{ElementType, Graph, Node};
use crate::operators::{CpuKernels, Family, Provider};

/// The rates of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its name, as `--device` takes it.
    pub name: String,
    /// Which of ONNX Runtime's execution providers runs on it.
    pub provider: Provider,
    /// Floating point operations per second, single precision.
    pub operations_per_second: f64,
    /// Floating point operations per second, float16 and bfloat16.
    pub half_operations_per_second: f64,
    /// Bytes per second to and from its memory.
    pub bytes_per_second: f64,
    /// What starting one node costs. On a GPU the host starts a node while the device is behind, so that it counts where the node
    /// itself takes less.
    pub launch: Nanos,
    /// What a node costs on a GPU that computes nothing there, a Reshape say.
    pub dispatch: Nanos,
    /// How convolutions are computed, where cuDNN does it.
    pub convolutions: Convolutions,
    /// What kernels allocate by, where it is a CPU.
    pub kernels: CpuKernels,
}

/// Name, provider, single and half precision TFLOP/s, GB/s, nanoseconds per launch.
type Preset = (&'static str, Provider, f64, f64, f64, u64);

/// The CPU's rates are those of two cores with AVX-512, fitted to measured times (see
/// [`efficiency`]). The GPUs' are their makers' (SXM versions): dense matrix rates, TF32 for
/// single precision where there is TF32, since ONNX Runtime uses it by default; the H100's launch is what a node of a chain of small ones
/// took in ONNX Runtime 1.31.1 (tools/gpu_barriers.py).
const PRESETS: [Preset; 5] = [
    ("cpu", Provider::Cpu, 0.42, 0.42, 70.0, 4_000),
    ("v100", Provider::Cuda, 15.7, 125.0, 900.0, 6_000),
    ("a100", Provider::Cuda, 156.0, 312.0, 2_039.0, 5_000),
    ("h100", Provider::Cuda, 494.0, 989.0, 3_350.0, 4_000),
    ("h200", Provider::Cuda, 494.0, 989.0, 4_800.0, 4_000),
];

impl Device {
    /// What is meant where none is named.
    pub fn cpu() -> Device {
        Device::of(&PRESETS[0])
    }

    /// The device that is called `name`.
    pub fn preset(name: &str) -> Option<Device> {
        PRESETS.iter().find(|row| row.0 == name).map(Device::of)
    }

    fn of(row: &Preset) -> Device {
        Device {
            name: row.0.to_owned(),
            provider: row.1,
            operations_per_second: row.2 * 1e12,
            half_operations_per_second: row.3 * 1e12,
            bytes_per_second: row.4 * 1e9,
            launch: Nanos(row.5),
            dispatch: Device::dispatch(Nanos(row.5)),
            convolutions: Convolutions::default(),
            kernels: CpuKernels::DEFAULT,
        }
    }

    /// What a node costs that computes nothing, where starting one costs `launch`, and the host may have to wait for the device.
    ///
    /// Measured in 1.31.1 on an H100 (tools/gpu_barriers.py): a barrier by a Size, of three such nodes, takes 6.7 to 8.8 µs.
    pub fn dispatch(launch: Nanos) -> Nanos {
        Nanos(launch.0 / 2)
    }

    /// The same device in a session in which the host waits for nothing until a step ends: nodes that compute nothing cost nothing as
    /// long as the device is behind.
    ///
    /// Measured likewise: a barrier by a Shape takes 2.9 µs among small nodes, and nothing beside what takes the device longer than the
    /// host needs to start it. So it is where the device has at least [`BEHIND`] times as much to do in a step of `nodes` nodes that take
    /// so many `seconds`.
    pub(crate) fn unawaited(&self, nodes: usize, seconds: f64) -> Device {
        let host = nodes as f64 * self.launch.0 as f64 * 1e-9;
        let dispatch = match seconds >= BEHIND * host {
            true => Nanos(1),
            false => Nanos(self.launch.0 / 4),
        };
        Device {
            dispatch,
            ..self.clone()
        }
    }

    /// The names of all presets.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|row| row.0)
    }
}

/// How much longer than the host the device has to be at work in a step so that the host never keeps it waiting: parts of a step
/// are of smaller nodes than others.
const BEHIND: f64 = 2.0;

/// Operations per second in the node's precision.
pub(crate) fn rate(graph: &Graph, node: &Node, device: &Device) -> f64 {
    match precision(graph, node) {
        Some(ElementType::Float16 | ElementType::Bfloat16) => device.half_operations_per_second,
        // Double precision is rare in training, and taken to be as fast as single.
        _ => device.operations_per_second,
    }
}

/// The first floating point type among what the node reads.
fn precision(graph: &Graph, node: &Node) -> Option<ElementType> {
    let elements = node
        .inputs
        .iter()
        .flatten()
        .filter_map(|&id| graph.tensor(id).element);
    elements.into_iter().find(|element| element.is_float())
}

/// What a node takes in all that works for so many seconds.
///
/// Runtime fact, measured in 1.31.1 on an H100 (tools/gpu_barriers.py): a Relu of 0.18 ms takes as long whatever the host does beside it.
pub(crate) fn started(device: &Device, family: Family, seconds: f64) -> Nanos {
    let launch = device.launch.0 as f64 * 1e-9;
    nanos(match (device.provider, family) {
        (Provider::Cpu, _) => launch + seconds,
        (Provider::Cuda, Family::View) => device.dispatch.0 as f64 * 1e-9,
        (Provider::Cuda, _) => launch.max(seconds),
    })
}

/// Saturates; nothing is free, and what is no number takes a nanosecond.
pub(crate) fn nanos(seconds: f64) -> Nanos {
    Nanos(((seconds * 1e9).round() as u64).max(1))
}

/// The parts of a device's arithmetic rate and bandwidth that a family of kernels reaches.
///
/// CPU: fitted to the measured times of 5,745 nodes of nine graphs (ResNet-18, -50 and -152,
/// GoogLeNet, MobileNetV2, U-Net, GPT-2, a triplet and a cross-modal network) in ONNX Runtime
/// 1.19.2 on two cores; small numbers are kernels that run on one thread or element by element.
/// Of a node, the median error is 20 % for convolutions and their gradients and 9 % for matrix
/// products. The predicted time of whole graphs is 0.7 to 1.2 times the measured, but for the
/// triplet network, whose convolutions took twice as long as the same ones of the cross-modal
/// network: 0.5.
///
/// CUDA: typical parts of the peak, not measured.
pub(crate) fn efficiency(provider: Provider, family: Family) -> (f64, f64) {
    match (provider, family) {
        // Only launched: their work is none.
        (_, Family::View) => (1.0, 1.0),

        (Provider::Cpu, Family::Convolution) => (0.84, 0.25),
        (Provider::Cpu, Family::DepthwiseConvolution) => (0.0156, 0.074),
        // 0.62 of a batch normalization's time from 28 x 28 on, fitted to both.
        (Provider::Cpu, Family::ChannelScale) => (0.0625, 0.56),
        (Provider::Cpu, Family::ConvolutionGradient) => (0.71, 0.18),
        (Provider::Cpu, Family::MatrixProduct) => (1.0, 0.21),
        (Provider::Cpu, Family::Elementwise) => (0.02, 0.84),
        (Provider::Cpu, Family::ActivationGradient) => (0.02, 0.105),
        (Provider::Cpu, Family::Transcendental) => (0.055, 0.30),
        (Provider::Cpu, Family::TranscendentalGradient) => (0.1, 0.053),
        (Provider::Cpu, Family::Reduction) => (0.02, 0.25),
        (Provider::Cpu, Family::Normalization) => (0.0625, 0.35),
        // 0.53 of the time of one that makes its statistics (measured, 49 to 12,544 elements in a channel).
        (Provider::Cpu, Family::FixedNormalization) => (0.0625, 0.66),
        (Provider::Cpu, Family::RowNormalization) => (0.031, 0.19),
        (Provider::Cpu, Family::Softmax) => (0.25, 1.0),
        (Provider::Cpu, Family::SoftmaxGradient) => (0.02, 0.28),
        (Provider::Cpu, Family::Loss) => (0.005, 0.037),
        (Provider::Cpu, Family::Pooling) => (0.0017, 0.6),
        (Provider::Cpu, Family::PoolingGradient) => (0.0023, 0.088),
        (Provider::Cpu, Family::Transposition) => (1.0, 0.18),
        (Provider::Cpu, Family::Movement) => (0.0012, 0.59),
        (Provider::Cpu, Family::Gather) => (0.02, 0.7),
        (Provider::Cpu, Family::Scatter) => (0.0055, 0.125),
        (Provider::Cpu, Family::Random) => (0.1, 0.031),
        (Provider::Cpu, Family::Recurrent) => (0.5, 0.2),
        (Provider::Cpu, Family::Other) => (0.01, 0.25),

        (Provider::Cuda, Family::Convolution) => (0.5, 0.7),
        (Provider::Cuda, Family::DepthwiseConvolution | Family::ChannelScale) => (0.02, 0.5),
        (Provider::Cuda, Family::ConvolutionGradient) => (0.45, 0.7),
        (Provider::Cuda, Family::MatrixProduct) => (0.65, 0.8),
        (Provider::Cuda, Family::Recurrent) => (0.3, 0.5),
        (Provider::Cuda, Family::Elementwise | Family::ActivationGradient) => (0.05, 0.8),
        (Provider::Cuda, Family::Transcendental | Family::TranscendentalGradient) => (0.05, 0.8),
        (Provider::Cuda, Family::Reduction | Family::Normalization) => (0.05, 0.6),
        (Provider::Cuda, Family::FixedNormalization) => (0.05, 0.6),
        (Provider::Cuda, Family::RowNormalization | Family::Loss) => (0.05, 0.6),
        (Provider::Cuda, Family::Softmax | Family::SoftmaxGradient) => (0.05, 0.7),
        (Provider::Cuda, Family::Pooling | Family::PoolingGradient) => (0.05, 0.6),
        (Provider::Cuda, Family::Transposition | Family::Movement) => (0.05, 0.65),
        (Provider::Cuda, Family::Gather | Family::Random) => (0.05, 0.5),
        (Provider::Cuda, Family::Scatter | Family::Other) => (0.02, 0.25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_computes_nothing_is_free_while_the_device_is_behind() {
        let device = Device::preset("h100").unwrap();
        let view = |device: &Device| started(device, Family::View, 1.0);
        assert_eq!(view(&device), Nanos(2000));
        // A hundred nodes: 0.4 ms of the host.
        let beside = |seconds| view(&device.unawaited(100, seconds));
        assert_eq!(beside(0.000_79), Nanos(1000));
        assert_eq!(beside(0.000_81), Nanos(1));
    }
}
